"""The batching policy and the queue, whatever waits."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fixtures.queued import request
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.policy import (
    NORMAL_PRIORITY,
    PRIORITY_WORTH_NS,
    BatchCost,
    BatchLimits,
    choose_batch,
    turn_ns,
)
from wattserve_server.engine.queued import QueuedSequence, Request


def asked(
    number: int, length: int, at_ns: int, variant: str = "a", priority: int = NORMAL_PRIORITY
) -> Request:
    return request([length], variant, at_ns=at_ns, priority=priority, request_id=str(number))


def waiting_of(lengths: list[int]) -> list[QueuedSequence]:
    return [asked(number, length, number).sequences[0] for number, length in enumerate(lengths)]


def modelled(batch: list[int], cost: BatchCost) -> float:
    """Cost of a batch, in tokens."""
    longest = max(batch)
    if not cost.packs:
        return cost.overhead_tokens + len(batch) * longest
    return cost.overhead_tokens + sum(batch) * (1 + (longest / cost.width if cost.width else 0))


def fits(batch: list[int], limits: BatchLimits, cost: BatchCost) -> bool:
    tokens = sum(batch) if cost.packs else len(batch) * max(batch)
    return len(batch) == 1 or (len(batch) <= limits.max_sequences and tokens <= limits.max_tokens)


def cheapest(lengths: list[int], limits: BatchLimits, cost: BatchCost) -> float:
    """By brute force over every cut of the ordered lengths."""
    if not lengths:
        return 0.0
    return min(
        modelled(lengths[:count], cost) + cheapest(lengths[count:], limits, cost)
        for count in range(1, len(lengths) + 1)
        if fits(lengths[:count], limits, cost)
    )


def in_order_of_arrival(lengths: list[int], limits: BatchLimits, cost: BatchCost) -> float:
    total, batch = 0.0, lengths[:1]
    for length in lengths[1:]:
        if fits([*batch, length], limits, cost):
            batch = [*batch, length]
        else:
            total, batch = total + modelled(batch, cost), [length]
    return total + modelled(batch, cost)


def spent_until_empty(lengths: list[int], limits: BatchLimits, cost: BatchCost) -> float:
    waiting, spent = waiting_of(lengths), 0.0
    while waiting:
        batch = choose_batch(waiting, limits, cost)
        spent += modelled([item.length for item in batch], cost)
        waiting = [item for item in waiting if item not in batch]
    return spent


lengths_drawn = st.lists(st.integers(1, 512), min_size=1, max_size=80)
limits_drawn = st.builds(BatchLimits, st.integers(1, 40), st.integers(1, 4096))
costs_drawn = st.builds(BatchCost, st.floats(0, 4096), st.booleans(), st.sampled_from([0, 32, 128, 768]))
paddings_drawn = st.builds(BatchCost, st.floats(0, 100))
packings_drawn = st.builds(BatchCost, st.floats(0, 100), st.just(True), st.sampled_from([0, 32, 128, 768]))
FEW = BatchLimits(max_sequences=4, max_tokens=120)
few_lengths = st.lists(st.integers(1, 60), min_size=1, max_size=9)


@given(lengths_drawn, limits_drawn, costs_drawn)
def test_every_batch_holds_the_oldest_once_and_keeps_to_its_limits(
    lengths: list[int], limits: BatchLimits, cost: BatchCost
) -> None:
    waiting = waiting_of(lengths)
    batch = choose_batch(waiting, limits, cost)
    assert waiting[0] in batch
    assert len(set(batch)) == len(batch)
    assert set(batch) <= set(waiting)
    assert fits([item.length for item in batch], limits, cost)


@given(few_lengths, paddings_drawn)
def test_padded_batches_one_after_the_other_cost_no_more_than_the_cheapest_cut(
    lengths: list[int], cost: BatchCost
) -> None:
    assert spent_until_empty(lengths, FEW, cost) <= cheapest(sorted(lengths), FEW, cost) + 1e-6


@given(few_lengths, st.one_of(paddings_drawn, st.builds(BatchCost, st.floats(0, 100), st.just(True))))
def test_batches_one_after_the_other_cost_no_more_than_in_order_of_arrival(
    lengths: list[int], cost: BatchCost
) -> None:
    """Of packed rows whose attention costs too, what a cut leaves may meet worse company: it wins on average
    (`tests/bench/policy`), and not for every queue."""
    assert spent_until_empty(lengths, FEW, cost) <= in_order_of_arrival(lengths, FEW, cost) + 1e-6


@given(few_lengths, packings_drawn)
def test_a_packed_batch_that_is_cut_is_that_of_a_cut_which_saves_a_tenth(
    lengths: list[int], cost: BatchCost
) -> None:
    limits = BatchLimits(9, 9 * 60)
    batch = choose_batch(waiting_of(lengths), limits, cost)
    whole, best = modelled(lengths, cost), cheapest(sorted(lengths), limits, cost)
    if len(batch) < len(lengths):
        assert best <= 0.9 * whole + 1e-6
    else:
        assert best >= 0.9 * whole - 1e-6


streams = st.lists(
    st.tuples(
        st.integers(1, 512), st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 2 * PRIORITY_WORTH_NS)
    ),
    min_size=1,
    max_size=60,
)


def queue_of(limits: BatchLimits, cost: BatchCost) -> Batcher:
    queue = Batcher(limits, 10_000, on_expired=_nobody_expires)
    for variant in "ab":
        queue.set_cost(variant, cost)
    return queue


def _nobody_expires(request: object, count: int) -> None:
    raise AssertionError("nothing here has a deadline")


@given(streams, streams, limits_drawn, costs_drawn)
def test_nothing_waits_for_more_batches_than_sequences_were_there_before_it(
    before: list[tuple[int, str, int, int]],
    later: list[tuple[int, str, int, int]],
    limits: BatchLimits,
    cost: BatchCost,
) -> None:
    """However many come later, of whatever length, variant and priority, once the levels are made up for."""
    queue = queue_of(limits, cost)
    for number, (length, variant, priority, _) in enumerate(before):
        queue.put(asked(number, length, 0, variant, priority))
    unlucky = asked(-1, 512, 0, "b", 3)
    queue.put(unlucky)
    now_ns = 2 * PRIORITY_WORTH_NS + 1
    for _ in range(len(before) + 1):
        for length, variant, priority, pause_ns in later:
            now_ns += pause_ns
            queue.put(asked(1000, length, now_ns, variant, priority))
        batch = queue.take(now_ns)
        assert isinstance(batch, list)
        if unlucky.sequences[0] in batch:
            return
    raise AssertionError("it still waits")


@given(streams, limits_drawn, costs_drawn)
def test_a_level_of_priority_is_worth_exactly_its_time(
    stream: list[tuple[int, str, int, int]], limits: BatchLimits, cost: BatchCost
) -> None:
    """The same batches as if everything were normal and had come that much earlier or later."""
    now_ns, arrivals = 0, []
    for number, (length, variant, priority, pause_ns) in enumerate(stream):
        now_ns += 1 + pause_ns
        arrivals.append((turn_ns(now_ns, priority), now_ns, number, length, variant, priority))
    assume(len({turn for turn, *_ in arrivals}) == len(arrivals))  # else the name of the variant decides
    with_levels, without = queue_of(limits, cost), queue_of(limits, cost)
    for _, at_ns, number, length, variant, priority in arrivals:
        with_levels.put(asked(number, length, at_ns, variant, priority))
    for turn, _, number, length, variant, _ in sorted(arrivals):
        without.put(asked(number, length, turn, variant))
    now_ns += 2 * PRIORITY_WORTH_NS
    assert _batches(with_levels, now_ns) == _batches(without, now_ns)


def _batches(queue: Batcher, now_ns: int) -> list[list[str]]:
    taken = []
    while isinstance(batch := queue.take(now_ns), list):
        taken.append(sorted(item.request.receipt.request_id for item in batch))
    return taken
