"""The batcher: the bounded queue of one device, between the event loop and the runner's thread.

The event loop puts requests in and takes cancelled ones out; the runner asks for what to do next. What
goes into a batch is for `policy` to say. Chores (a warm-up, say) run on the same thread, one between two
batches, so that neither keeps the other from running.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice

from wattserve_server.engine.policy import BatchLimits, choose_batch, wake_at
from wattserve_server.engine.request import Request, Sequence
from wattserve_server.errors import OverloadedError

Chore = Callable[[], None]

LOOKAHEAD = 2
"""The policy looks at this many times a full batch of the oldest waiting sequences."""


class Batcher:
    """max_queue: sequences that may wait. on_expired: called by the runner's thread with a request
    whose deadline passed while it waited; all its waiting sequences have left the queue."""

    def __init__(
        self, limits: BatchLimits, max_queue: int, on_expired: Callable[[Request, int], None]
    ) -> None:
        self._limits = limits
        self._max_queue = max_queue
        self._on_expired = on_expired
        self._overhead_tokens: dict[str, float] = {}
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, int], dict[Sequence, None]] = {}  # by variant and priority
        self._chores: deque[Chore] = deque()
        self._is_chores_turn = True
        self._count = 0
        self._is_closed = False

    @property
    def limits(self) -> BatchLimits:
        return self._limits

    @property
    def max_queue(self) -> int:
        return self._max_queue

    def set_overhead_tokens(self, variant: str, tokens: float) -> None:
        """What starting a batch of a variant costs, as measured at warm-up."""
        self._overhead_tokens[variant] = tokens

    def __len__(self) -> int:
        return self._count

    def put(self, request: Request) -> None:
        """Queue all sequences of a request, or none: OverloadedError when they do not fit."""
        with self._changed:
            if self._count + len(request.sequences) > self._max_queue:
                raise OverloadedError(
                    f"the queue is full: {self._count} of {self._max_queue} sequences wait, and this "
                    f"request has {len(request.sequences)}; try again later"
                )
            queue = self._waiting.setdefault((request.variant, request.priority), {})
            queue.update(dict.fromkeys(request.sequences))
            self._count += len(request.sequences)
            self._changed.notify()

    def withdraw(self, request: Request) -> int:
        """Take a request's waiting sequences out of the queue; how many there were."""
        with self._changed:
            return self._remove(request.sequences)

    def add_chore(self, chore: Chore) -> None:
        """Have the runner's thread call it. Not called any more once the batcher is closed."""
        with self._changed:
            self._chores.append(chore)
            self._changed.notify()

    def take(self) -> list[Sequence] | Chore | None:
        """The next batch, marked as running, or the next chore; blocks until there is one. None once
        closed."""
        with self._changed:
            while True:
                if self._is_closed:
                    return None
                now_ns = time.monotonic_ns()
                queue = self._next_queue(now_ns)
                if self._chores and (queue is None or self._is_chores_turn):
                    self._is_chores_turn = False
                    return self._chores.popleft()
                if queue is None:
                    self._changed.wait()
                    continue
                variant, waiting = queue
                wait_ns = wake_at(waiting, self._limits) - now_ns
                if wait_ns > 0:
                    self._changed.wait(wait_ns / 1e9)
                    continue
                batch = choose_batch(waiting, self._limits, self._overhead_tokens.get(variant, 0.0))
                self._remove(batch)
                for sequence in batch:
                    sequence.line.batch_size = len(batch)
                self._is_chores_turn = True
                return batch

    def close(self) -> None:
        """`take` returns None from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next_queue(self, now_ns: int) -> tuple[str, list[Sequence]] | None:
        """The variant whose oldest sequence has waited longest, priorities counted in, and what it may run
        with."""
        best: tuple[int, str] | None = None
        for (variant, _), queue in self._waiting.items():
            self._expire(queue, now_ns)
            if queue:
                turn = next(iter(queue)).turn_ns
                best = min(best or (turn, variant), (turn, variant))
        if best is None:
            return None
        variant = best[1]
        queues = [queue for (name, _), queue in self._waiting.items() if name == variant]
        waiting = merge(*queues, key=lambda sequence: sequence.turn_ns)
        return variant, list(islice(waiting, LOOKAHEAD * self._limits.max_sequences))

    def _expire(self, queue: dict[Sequence, None], now_ns: int) -> None:
        expired = {
            sequence.request
            for sequence in queue
            if sequence.request.deadline_ns is not None and sequence.request.deadline_ns <= now_ns
        }
        for request in expired:
            self._on_expired(request, self._remove(request.sequences))

    def _remove(self, sequences: Iterable[Sequence]) -> int:
        removed = 0
        for sequence in sequences:
            queue = self._waiting.get((sequence.request.variant, sequence.request.priority), {})
            if sequence in queue:
                del queue[sequence]
                removed += 1
        self._count -= removed
        return removed
