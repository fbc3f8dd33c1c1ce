"""The queue of one device: which sequences wait, and which of them go next. It knows no thread and no clock.

What goes into a batch is for `policy` to say; here are the limits and costs of each variant, whose turn it
is, and who leaves without having run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from wattserve_server.engine.policy import BatchCost, BatchLimits, choose_batch, wake_at
from wattserve_server.errors import OverloadedError

if TYPE_CHECKING:  # who simulates the queue needs no torch
    from wattserve_server.engine.request import Request, Sequence

LOOKAHEAD = 2
"""The policy looks at this many times a full batch of the oldest waiting sequences."""


class Queue:
    """limits: of every variant's batches. max_queue: sequences that may wait. on_expired: called by `take`
    with a request whose deadline passed while it waited, and how many sequences of it left the queue."""

    def __init__(
        self, limits: BatchLimits, max_queue: int, on_expired: Callable[[Request, int], None]
    ) -> None:
        self._limits = limits
        self._max_queue = max_queue
        self._on_expired = on_expired
        self._costs: dict[str, BatchCost] = {}
        self._learned: dict[str, BatchLimits] = {}
        self._waiting: dict[tuple[str, int], dict[Sequence, None]] = {}  # by variant and priority
        self._count = 0
        self._first_deadline_ns: int | None = None  # no request that waits has an earlier one

    def __len__(self) -> int:
        return self._count

    def set_cost(self, variant: str, cost: BatchCost) -> None:
        self._costs[variant] = cost

    def limit_tokens(self, variant: str, tokens: int) -> None:
        """No batch of a variant computes more than that from now on; `limits.max_tokens` lifts it."""
        self._learned[variant] = replace(self._limits, max_tokens=tokens)

    def put(self, request: Request) -> None:
        """Queue all sequences of a request, or none: OverloadedError when they do not fit."""
        count = len(request.sequences)
        if self._count + count > self._max_queue:
            raise OverloadedError(
                f"the queue is full: {self._count} of {self._max_queue} sequences wait, and this "
                f"request has {count}; try again later"
            )
        queue = self._waiting.setdefault((request.variant, request.priority), {})
        for sequence in request.sequences:
            queue[sequence] = None
        self._count += count
        deadline_ns, first_ns = request.deadline_ns, self._first_deadline_ns
        if deadline_ns is not None and (first_ns is None or deadline_ns < first_ns):
            self._first_deadline_ns = deadline_ns

    def take(self, now_ns: int) -> list[Sequence] | int | None:
        """The batch to run now; or the instant until which it is worth waiting for company; or None where
        nothing waits."""
        turn = self._next_turn(now_ns)
        if turn is None:
            return None
        variant, waiting, limits = turn
        wake_ns = wake_at(waiting, limits)
        if wake_ns > now_ns:
            return wake_ns
        batch = choose_batch(waiting, limits, self._costs.get(variant, BatchCost()))
        self.remove(batch)
        return batch

    def remove(self, sequences: Iterable[Sequence]) -> int:
        """Take out those that wait; how many there were."""
        removed = 0
        for sequence in sequences:
            queue = self._waiting.get((sequence.request.variant, sequence.request.priority), {})
            if sequence in queue:
                del queue[sequence]
                removed += 1
        self._count -= removed
        return removed

    def _next_turn(self, now_ns: int) -> tuple[str, list[Sequence], BatchLimits] | None:
        """The variant whose oldest sequence has waited longest, priorities counted in, and what it may run
        with."""
        if self._first_deadline_ns is not None and self._first_deadline_ns <= now_ns:
            self._expire(now_ns)
        turns = [(next(iter(queue)).turn_ns, name) for (name, _), queue in self._waiting.items() if queue]
        if not turns:
            return None
        variant = min(turns)[1]
        limits = self._learned.get(variant, self._limits)
        queues = [queue for (name, _), queue in self._waiting.items() if name == variant and queue]
        oldest: Iterable[Sequence] = queues[0]
        if len(queues) > 1:
            oldest = merge(*queues, key=lambda sequence: sequence.turn_ns)
        return variant, list(islice(oldest, LOOKAHEAD * limits.max_sequences)), limits

    def _expire(self, now_ns: int) -> None:
        """Every request leaves whose deadline has passed."""
        timed = {
            sequence.request: sequence.request.deadline_ns
            for queue in self._waiting.values()
            for sequence in queue
            if sequence.request.deadline_ns is not None
        }
        expired = [request for request, deadline_ns in timed.items() if deadline_ns <= now_ns]
        for request in expired:
            self._on_expired(request, self.remove(request.sequences))
            del timed[request]
        self._first_deadline_ns = min(timed.values(), default=None)
