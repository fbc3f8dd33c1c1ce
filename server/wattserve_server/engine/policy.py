"""The batching policy: which waiting sequences to run together, or until when to wait. Pure.

Starting a batch has a fixed cost. Where a batch is padded, every sequence in it is computed at the length of
its longest; where it is packed, at its own length, and only its attention is spread over a row as long as
the longest. Of all ways to cut the waiting sequences, ordered by length, into batches, the policy takes the
one that costs least, and of it the batch that holds the oldest sequence. So the oldest is always admitted
and nothing starves; the oldest also decides the variant, so variants take turns by age. A priority makes
a sequence older or younger by a fixed time, and no more than that.

Length matters so little to a packed batch that age goes first there: only the oldest sequences that fit one
batch are looked at, and unless their lengths are far apart that is the batch; or unless one leaves no room in
its row for the others, which then have a batch of their own rather than rows as long as that one's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Protocol, TypeVar

FIRST_PRIORITY, NORMAL_PRIORITY, LAST_PRIORITY = 1, 2, 3

PRIORITY_WORTH_NS = 1_000_000_000  # what a level of priority is worth, in time waited


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


Queued = TypeVar("Queued", bound=Waiting)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a batch may hold."""

    max_sequences: int
    max_tokens: int  # computed, padding included, except at the ends of packed rows; a longer one runs alone
    max_wait_ns: int = 0  # for how long an idle device may wait for company for the oldest sequence


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What the batches of a variant cost, in computed tokens."""

    overhead_tokens: float = 0.0  # of starting one, as measured at warm-up

    # Sequences share rows, so about the sum of their lengths is computed, not as many times the longest as
    # there are sequences.
    packs: bool = False

    row_tokens: int = 0  # that a row holds at the most; 0: it is not known

    # Of the model's hidden states. A token's attention over a packed row of n tokens costs about n / width of
    # the rest of its way through a layer; 0: nothing.
    width: int = 0


def wake_at(waiting: Sequence[Queued], limits: BatchLimits) -> int:
    """The instant from which an idle device should run a batch of `waiting`: when it is full, or when one of
    them has waited for company for as long as it may, or for half of the time that its caller gives it."""
    if len(waiting) >= limits.max_sequences or not limits.max_wait_ns:
        return waiting[0].queued_ns
    return min(_patience_ends(item, limits.max_wait_ns) for item in waiting)


def _patience_ends(item: Waiting, max_wait_ns: int) -> int:
    if item.deadline_ns is not None:
        max_wait_ns = min(max_wait_ns, max(0, item.deadline_ns - item.queued_ns) // 2)
    return item.queued_ns + max_wait_ns


# A packed batch is cut by length only where that saves at least this part of what it costs whole: in the
# simulation (`tests/bench/policy`) cuts for less won 3 % at the most, and doubled the longest wait.
PACKED_GAIN = 0.1


def choose_batch(waiting: Sequence[Queued], limits: BatchLimits, cost: BatchCost) -> list[Queued]:
    """The batch to run now: the oldest and those that go best with it, in no order.

    waiting: sequences of one variant, oldest first, not empty. cost: of that variant's batches.
    """
    lengths = [item.length for item in waiting]
    if cost.packs:
        fitting = bisect_right(list(accumulate(lengths[: limits.max_sequences])), limits.max_tokens)
        batch = _packed(lengths[: max(1, fitting)], cost)
    else:
        batch = _padded(lengths, limits, cost)
    return [waiting[index] for index in batch]


def _packed(lengths: list[int], cost: BatchCost) -> Sequence[int]:
    """Indices of a batch with the first of these lengths, which fit one batch together."""
    everything = range(len(lengths))
    if not cost.width or len(lengths) == 1:
        return everything
    longest, total = max(lengths), sum(lengths)
    if 2 * longest > cost.row_tokens > 0 and (apart := _apart(lengths, cost)):
        return apart
    whole = cost.overhead_tokens + total * (1 + longest / cost.width)
    # Cut into single sequences without a second start it would save this; no cut saves more.
    most_saved = (longest * total - sum(map(mul, lengths, lengths))) / cost.width - cost.overhead_tokens
    if most_saved < PACKED_GAIN * whole:
        return everything
    order = _by_length(lengths)
    cheapest, batch = _cheapest_cut(
        order,
        list(accumulate((lengths[index] for index in order), initial=0)),
        [1 + lengths[index] / cost.width for index in order],
        [len(order)] * len(order),
        cost.overhead_tokens,
    )
    return batch if whole - cheapest >= PACKED_GAIN * whole else everything


def _apart(lengths: list[int], cost: BatchCost) -> list[int]:
    """Indices of a batch with the first of these lengths, of which some fill more than half of a row; none
    where they may as well run together."""
    order = _by_length(lengths)[::-1]
    descending = [lengths[index] for index in order]
    _, count = fill(descending, range(len(descending)), cost.row_tokens)
    # At the least, if they could be spread evenly: over more rows, too, which are shorter then.
    longest, total = descending[0], sum(descending)
    counts = {count, max(count, total // longest), max(count, total // longest + 1)}
    whole = min(_rows_cost(rows, max(longest, total / rows), cost) for rows in counts)
    if whole - total - 2 * cost.overhead_tokens < PACKED_GAIN * whole:
        return []
    long = sum(2 * length > cost.row_tokens for length in lengths)
    cheapest, cut = min(
        (sum(_at_most(part, cost) for part in (descending[:cut], descending[cut:])), cut)
        for cut in range(1, min(long + 1, len(lengths)))
    )
    if whole - cheapest < PACKED_GAIN * whole:
        return []
    return order[:cut] if 0 in order[:cut] else order[cut:]


def _at_most(descending: list[int], cost: BatchCost) -> float:
    places, rows = fill(descending, range(len(descending)), cost.row_tokens)
    fullest = max(offset + length for (_, offset), length in zip(places, descending, strict=True))
    return _rows_cost(rows, fullest, cost)


def fill(
    lengths: Sequence[int], descending: Iterable[int], row_tokens: int
) -> tuple[list[tuple[int, int]], int]:
    """Rows of so many tokens filled by best fit, the longest first: (row, offset) of each sequence, and how
    many rows. descending: indices, by length."""
    places = [(0, 0)] * len(lengths)
    rows = 0
    room: list[tuple[int, int]] = []  # (free tokens, row), the fullest first
    for index in descending:
        at = bisect_left(room, (lengths[index], -1))
        if at == len(room):
            free, row = row_tokens, rows
            rows += 1
        else:
            free, row = room.pop(at)
        places[index] = row, row_tokens - free
        if free > lengths[index]:
            insort(room, (free - lengths[index], row))
    return places, rows


def _rows_cost(count: int, tokens: float, cost: BatchCost) -> float:
    return cost.overhead_tokens + count * tokens * (1 + tokens / cost.width)


def _padded(lengths: list[int], limits: BatchLimits, cost: BatchCost) -> Sequence[int]:
    """Indices of a batch with the first of these lengths."""
    count, longest = len(lengths), max(lengths)
    most_saved = count * longest - sum(lengths) - cost.overhead_tokens
    is_one_batch = count <= limits.max_sequences and count * longest <= limits.max_tokens
    if count == 1 or (is_one_batch and most_saved <= 0):
        return range(count)
    order = _by_length(lengths)
    _, batch = _cheapest_cut(
        order,
        list(range(count + 1)),
        [float(lengths[index]) for index in order],
        [max(1, min(limits.max_sequences, limits.max_tokens // lengths[index])) for index in order],
        cost.overhead_tokens,
    )
    return batch


def _by_length(lengths: list[int]) -> list[int]:
    """Indices; of equal lengths the oldest last, where equally cheap cuts have their full batches."""
    return sorted(range(len(lengths) - 1, -1, -1), key=lengths.__getitem__)


def _cheapest_cut(
    order: list[int], units: list[int], prices: list[float], most: list[int], overhead: float
) -> tuple[float, list[int]]:
    """Cut `order`, indices by length, into batches: the least that it costs, and the batch of index 0.

    A batch of order[start:end] costs overhead + (units[end] - units[start]) * prices[end - 1], and holds at
    most most[end - 1] of them.
    """
    cheapest = [0.0]  # cheapest[end]: what the best way to run order[:end] costs
    begins = [0]  # begins[end]: where its last batch begins
    for end in range(1, len(order) + 1):
        price = prices[end - 1]
        # As sequences get longer the best begin never moves back: the costs meet the quadrangle inequality.
        begin = max(begins[-1], end - most[end - 1])
        best = cheapest[begin] - units[begin] * price
        for start in range(begin + 1, end):
            relative = cheapest[start] - units[start] * price
            if relative < best:
                best, begin = relative, start
        cheapest.append(best + overhead + units[end] * price)
        begins.append(begin)
    oldest, end = order.index(0), len(order)
    while begins[end] > oldest:
        end = begins[end]
    return cheapest[-1], order[begins[end] : end]
