"""The batching policy: which waiting sequences to run together, or until when to wait. Pure.

The oldest waiting sequence is always admitted, so nothing starves, and it decides the variant, so
variants take turns by age. The rest of the batch is filled, outwards from the oldest's length,
with sequences of the same variant for as long as joining the batch costs no more computed tokens
than running apart would (the sequence's own tokens and a batch's fixed cost).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Waiting(Protocol):
    """What the policy needs to know of a sequence: its tokens, and when it was queued."""

    @property
    def length(self) -> int: ...

    @property
    def queued_ns(self) -> int: ...


Item = TypeVar("Item", bound=Waiting)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """max_sequences: of a batch. max_tokens: computed tokens of a batch, padding included; one
    sequence longer than that still runs, alone. max_wait_ns: for how long an idle device may wait
    for company for the oldest sequence.
    """

    max_sequences: int
    max_tokens: int
    max_wait_ns: int = 0


def wake_at(waiting: Items[Item], limits: BatchLimits) -> int:
    """The instant from which an idle device should run a batch of `waiting` (oldest first)."""
    if len(waiting) >= limits.max_sequences:
        return waiting[0].queued_ns
    return waiting[0].queued_ns + limits.max_wait_ns


def choose_batch(waiting: Items[Item], limits: BatchLimits, overhead_tokens: float) -> list[Item]:
    """The batch to run now: the oldest and those that go best with it, in order of length.

    waiting: sequences of one variant, oldest first, not empty. overhead_tokens: what starting a
    batch of that variant costs, in computed tokens, as measured at warm-up.
    """
    oldest = waiting[0]
    ordered = sorted(waiting, key=lambda item: item.length)
    low = bisect_left(ordered, oldest.length, key=lambda item: item.length)
    while ordered[low] is not oldest:
        low += 1
    high = low + 1  # the batch is ordered[low:high]
    while high - low < limits.max_sequences:
        count = high - low
        longest = ordered[high - 1].length
        joins: list[tuple[int, bool]] = []  # padding that a newcomer causes, and whether it is longer
        if high < len(ordered) and (count + 1) * ordered[high].length <= limits.max_tokens:
            joins.append((count * (ordered[high].length - longest), True))
        if low > 0 and (count + 1) * longest <= limits.max_tokens:
            joins.append((longest - ordered[low - 1].length, False))
        if not joins:
            break
        padding, is_longer = min(joins)
        if padding > overhead_tokens:
            break
        if is_longer:
            high += 1
        else:
            low -= 1
    return ordered[low:high]
