"""The batching policy: which waiting sequences to run together, or until when to wait. Pure.

Starting a batch has a fixed cost, and every sequence in it is computed at the length of its longest.
Of all ways to cut the waiting sequences, ordered by length, into batches, the policy takes the one
that costs least, and of it the batch that holds the oldest sequence. So the oldest is always admitted
and nothing starves; the oldest also decides the variant, so variants take turns by age. A priority makes
a sequence older or younger by a fixed time, and no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol, TypeVar

FIRST_PRIORITY, NORMAL_PRIORITY, LAST_PRIORITY = 1, 2, 3

PRIORITY_WORTH_NS = 1_000_000_000
"""What a level of priority is worth, in time waited."""


def turn_ns(queued_ns: int, priority: int) -> int:
    """By what waiting sequences are put in order, oldest first."""
    return queued_ns + (priority - NORMAL_PRIORITY) * PRIORITY_WORTH_NS


class Waiting(Protocol):
    """What the policy needs to know of a sequence: its tokens, when it was queued, until when it may wait."""

    @property
    def length(self) -> int: ...

    @property
    def queued_ns(self) -> int: ...

    @property
    def deadline_ns(self) -> int | None: ...


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
    """The instant from which an idle device should run a batch of `waiting`: when it is full, or when one of
    them has waited for company for as long as it may, or for half of the time that its caller gives it."""
    if len(waiting) >= limits.max_sequences:
        return waiting[0].queued_ns
    return min(_patience_ends(item, limits.max_wait_ns) for item in waiting)


def _patience_ends(item: Waiting, max_wait_ns: int) -> int:
    if item.deadline_ns is not None:
        max_wait_ns = min(max_wait_ns, max(0, item.deadline_ns - item.queued_ns) // 2)
    return item.queued_ns + max_wait_ns


def choose_batch(waiting: Items[Item], limits: BatchLimits, overhead_tokens: float) -> list[Item]:
    """The batch to run now: the oldest and those that go best with it, in order of length.

    waiting: sequences of one variant, oldest first, not empty. overhead_tokens: what starting a
    batch of that variant costs, in computed tokens, as measured at warm-up.
    """
    ordered = sorted(waiting, key=lambda item: item.length)
    # cost[end]: of the cheapest way to run ordered[:end]; first[end]: where its last batch begins.
    cost = [0.0]
    first = [0]
    for end in range(1, len(ordered) + 1):
        longest = ordered[end - 1].length
        most = max(1, min(limits.max_sequences, limits.max_tokens // longest))
        best, begin = min(
            (cost[start] + overhead_tokens + (end - start) * longest, start)
            for start in range(max(0, end - most), end)
        )
        cost.append(best)
        first.append(begin)
    end = len(ordered)
    while waiting[0] not in ordered[first[end] : end]:
        end = first[end]
    return ordered[first[end] : end]
