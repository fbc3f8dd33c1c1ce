"""The batcher: the queue of one device, between the event loop and the runner's thread.

The event loop puts requests in and takes cancelled ones out; the runner asks for what to do next. What
goes next is for `queue` to say. Chores (a warm-up, say) run on the same thread, one between two
batches, so that neither keeps the other from running.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from wattserve_server.engine.policy import BatchCost, BatchLimits
from wattserve_server.engine.queue import Queue
from wattserve_server.engine.request import Request, Sequence

Chore = Callable[[], None]


class Batcher:
    """max_queue: sequences that may wait. on_expired: called by the runner's thread with a request
    whose deadline passed while it waited; all its waiting sequences have left the queue."""

    def __init__(
        self, limits: BatchLimits, max_queue: int, on_expired: Callable[[Request, int], None]
    ) -> None:
        self._limits = limits
        self._max_queue = max_queue
        self._queue = Queue(limits, max_queue, on_expired)
        self._changed = threading.Condition()
        self._chores: deque[Chore] = deque()
        self._is_chores_turn = True
        self._is_closed = False

    @property
    def limits(self) -> BatchLimits:
        return self._limits

    @property
    def max_queue(self) -> int:
        return self._max_queue

    def set_cost(self, variant: str, cost: BatchCost) -> None:
        """What a variant's batches cost, as measured at warm-up."""
        with self._changed:
            self._queue.set_cost(variant, cost)

    def limit_tokens(self, variant: str, tokens: int) -> None:
        """From now on no batch of a variant computes more tokens than that, as it has been found not to fit
        into memory; one sequence longer than that still runs, alone."""
        with self._changed:
            self._queue.limit_tokens(variant, tokens)

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, request: Request) -> None:
        """Queue all sequences of a request, or none: OverloadedError when they do not fit."""
        with self._changed:
            self._queue.put(request)
            self._changed.notify()

    def withdraw(self, request: Request) -> int:
        """Take a request's waiting sequences out of the queue; how many there were."""
        with self._changed:
            return self._queue.remove(request.sequences)

    def add_chore(self, chore: Chore) -> None:
        """Have the runner's thread call it. Not called any more once the batcher is closed."""
        with self._changed:
            self._chores.append(chore)
            self._changed.notify()

    def take(self) -> list[Sequence] | Chore | None:
        """The next batch, marked as running, or the next chore; blocks until there is one. None once
        closed."""
        with self._changed:
            while not self._is_closed:
                if self._chores and self._is_chores_turn:
                    return self._next_chore()
                now_ns = time.monotonic_ns()
                work = self._queue.take(now_ns)
                if isinstance(work, list):
                    for sequence in work:
                        sequence.line.batch_size = len(work)
                    self._is_chores_turn = True
                    return work
                if self._chores:
                    return self._next_chore()
                self._changed.wait(None if work is None else (work - now_ns) / 1e9)
            return None

    def close(self) -> None:
        """`take` returns None from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next_chore(self) -> Chore:
        self._is_chores_turn = False
        return self._chores.popleft()
