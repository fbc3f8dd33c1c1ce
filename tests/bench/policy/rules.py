"""What is compared: arrival order, a sorted window, and the server's own queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tests.bench.policy.world import MakeRule, Request, Rule, Sequence
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.policy import BatchCost, BatchLimits

OnExpired = Callable[[Request, int], None]


class Fifo:
    """The oldest and those of its variant that came next, as many as fit. Knows no priority."""

    def __init__(self, limits: BatchLimits, costs: dict[str, BatchCost], on_expired: OnExpired) -> None:
        self._limits = limits
        self._costs = costs
        self._on_expired = on_expired
        self._waiting: list[Sequence] = []

    def put(self, request: Request, now_ns: int) -> None:
        self._waiting += request.sequences

    def take(self, now_ns: int) -> list[Sequence] | None:
        self._expire(now_ns)
        if not self._waiting:
            return None
        variant = self._waiting[0].request.variant
        batch = self._first_batch([item for item in self._waiting if item.request.variant == variant])
        taken = set(batch)
        self._waiting = [item for item in self._waiting if item not in taken]
        return batch

    def began(self, batch: list[Sequence], now_ns: int) -> None:
        """What runs teaches it nothing."""

    def ended(self, now_ns: int) -> None: ...

    def _first_batch(self, items: list[Sequence]) -> list[Sequence]:
        packs = self._costs[items[0].request.variant].packs
        longest = total = 0
        for position, item in enumerate(items[: self._limits.max_sequences]):
            longest, total = max(longest, item.length), total + item.length
            tokens = total if packs else longest * (position + 1)
            if position and tokens > self._limits.max_tokens:
                return items[:position]
        return items[: self._limits.max_sequences]

    def _expire(self, now_ns: int) -> None:
        for item in [item for item in self._waiting if (item.deadline_ns or now_ns + 1) <= now_ns]:
            self._waiting.remove(item)
            self._on_expired(item.request, 1)


class SortedWindow(Fifo):
    """All that waits of the oldest one's variant, sorted by length and cut into batches; what comes
    meanwhile waits until all of them have run."""

    def __init__(self, limits: BatchLimits, costs: dict[str, BatchCost], on_expired: OnExpired) -> None:
        super().__init__(limits, costs, on_expired)
        self._window: list[Sequence] = []

    def take(self, now_ns: int) -> list[Sequence] | None:
        self._expire(now_ns)
        waiting = set(self._waiting)
        self._window = [item for item in self._window if item in waiting]
        if not self._window:
            variant = self._waiting[0].request.variant if self._waiting else ""
            ours = [item for item in self._waiting if item.request.variant == variant]
            self._window = sorted(ours, key=lambda item: item.length)
        if not self._window:
            return None
        batch = self._first_batch(self._window)
        taken = set(batch)
        self._window = self._window[len(batch) :]
        self._waiting = [item for item in self._waiting if item not in taken]
        return batch


def ours(limits: BatchLimits, costs: dict[str, BatchCost], on_expired: OnExpired) -> Rule:
    """The server's queue, as it is. It is declared for the server's requests, and looks at no more of them
    than these have."""
    return _queue(Batcher, limits, costs, on_expired)


def restless(limits: BatchLimits, costs: dict[str, BatchCost], on_expired: OnExpired) -> Rule:
    """The same, but the device never rests while something waits."""
    return _queue(Restless, limits, costs, on_expired)


class Restless(Batcher):
    _may_rest = False


def _queue(
    kind: type[Batcher], limits: BatchLimits, costs: dict[str, BatchCost], on_expired: OnExpired
) -> Rule:
    queue = kind(limits, 1_000_000, cast(Any, on_expired))
    for variant, cost in costs.items():
        queue.set_cost(variant, cost)
    return cast(Rule, queue)


RULES: dict[str, MakeRule] = {
    "FIFO": Fifo,
    "sorted window": SortedWindow,
    "ours, without rests": restless,
    "ours": ours,
}
