"""Which waiting sequences run together."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from wattserve_server.engine.policy import BatchLimits, choose_batch, wake_at


@dataclass(frozen=True)
class Item:
    length: int
    queued_ns: int = 0
    deadline_ns: int | None = None


LIMITS = BatchLimits(max_sequences=4, max_tokens=400)


def lengths_chosen(
    lengths: list[int], limits: BatchLimits = LIMITS, overhead_tokens: float = 1000.0
) -> list[int]:
    return [item.length for item in choose_batch([Item(n) for n in lengths], limits, overhead_tokens)]


def test_the_oldest_is_admitted_even_when_others_fit_together_better() -> None:
    assert 50 in lengths_chosen([50, 10, 10, 10, 10, 10])


def test_the_batches_are_those_of_the_cheapest_cut_by_length() -> None:
    # 4 + 51 + 52 and 90 apart: 12 + 104 + 90 tokens and three starts; any other cut computes more.
    assert lengths_chosen([51, 4, 52, 90, 3, 4], overhead_tokens=20.0) == [51, 52]
    assert lengths_chosen([4, 51, 52, 90, 3, 4], overhead_tokens=20.0) == [3, 4, 4]
    assert lengths_chosen([90, 51, 52, 4, 3, 4], overhead_tokens=20.0) == [90]


def test_the_more_a_start_costs_the_more_run_together() -> None:
    assert lengths_chosen([30, 50], overhead_tokens=19.0) == [30]
    assert lengths_chosen([30, 50], overhead_tokens=21.0) == [30, 50]


def test_a_batch_keeps_to_its_sequences() -> None:
    assert len(lengths_chosen([10] * 9)) == 4


def test_a_batch_keeps_to_its_tokens_padding_included() -> None:
    assert lengths_chosen([100, 100, 100, 101, 150], BatchLimits(32, 310)) == [100, 100, 100]


def test_a_sequence_longer_than_the_token_budget_runs_alone() -> None:
    assert lengths_chosen([500, 10, 10], BatchLimits(32, 400)) == [500]


def test_a_long_sequence_does_not_pad_many_short_ones() -> None:
    assert lengths_chosen([5, 6, 5, 100], overhead_tokens=50.0) == [5, 5, 6]


def test_without_a_wait_a_batch_may_run_at_once() -> None:
    assert wake_at([Item(5, queued_ns=70)], LIMITS) == 70


def test_a_partial_batch_waits_for_company_and_a_full_one_does_not() -> None:
    limits = BatchLimits(max_sequences=2, max_tokens=100, max_wait_ns=30)
    assert wake_at([Item(5, queued_ns=70)], limits) == 100
    assert wake_at([Item(5, queued_ns=70), Item(5, queued_ns=80)], limits) == 70


def test_nobody_waits_for_company_until_its_deadline() -> None:
    limits = BatchLimits(max_sequences=3, max_tokens=100, max_wait_ns=30)
    assert wake_at([Item(5, queued_ns=70, deadline_ns=90)], limits) == 80
    assert wake_at([Item(5, queued_ns=70), Item(5, queued_ns=80, deadline_ns=84)], limits) == 82
    assert wake_at([Item(5, queued_ns=70, deadline_ns=60)], limits) == 70


def test_an_urgent_latecomer_does_not_make_the_others_wait_longer() -> None:
    limits = BatchLimits(max_sequences=3, max_tokens=100, max_wait_ns=30)
    urgent_first = [Item(5, queued_ns=99), Item(5, queued_ns=70)]
    assert wake_at(urgent_first, limits) == 100


@given(
    st.lists(st.integers(1, 512), min_size=1, max_size=80),
    st.integers(1, 40),
    st.integers(1, 4096),
    st.floats(0, 4096),
)
def test_every_batch_holds_the_oldest_and_keeps_to_its_limits(
    lengths: list[int], max_sequences: int, max_tokens: int, overhead_tokens: float
) -> None:
    waiting = [Item(length, queued_ns=age) for age, length in enumerate(lengths)]
    batch = choose_batch(waiting, BatchLimits(max_sequences, max_tokens), overhead_tokens)
    assert waiting[0] in batch
    assert len(set(batch)) == len(batch) <= max_sequences
    assert len(batch) == 1 or len(batch) * max(item.length for item in batch) <= max_tokens


def _cheapest(lengths: list[int], limits: BatchLimits, overhead: float) -> float:
    """By brute force over every cut of the ordered lengths."""
    if not lengths:
        return 0.0
    return min(
        overhead + count * lengths[count - 1] + _cheapest(lengths[count:], limits, overhead)
        for count in range(1, len(lengths) + 1)
        if count == 1 or (count <= limits.max_sequences and count * lengths[count - 1] <= limits.max_tokens)
    )


@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.floats(0, 100))
def test_running_batch_after_batch_costs_no_more_than_the_cheapest_cut(
    lengths: list[int], overhead: float
) -> None:
    limits = BatchLimits(max_sequences=4, max_tokens=120)
    waiting = [Item(length, queued_ns=age) for age, length in enumerate(lengths)]
    spent = 0.0
    while waiting:
        batch = choose_batch(waiting, limits, overhead)
        spent += overhead + len(batch) * max(item.length for item in batch)
        waiting = [item for item in waiting if item not in batch]
    assert spent <= _cheapest(sorted(lengths), limits, overhead) + 1e-6
