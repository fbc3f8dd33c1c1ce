"""Which waiting sequences run together."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from wattserve_server.engine.policy import BatchLimits, choose_batch, wake_at


@dataclass(frozen=True)
class Item:
    length: int
    queued_ns: int = 0


LIMITS = BatchLimits(max_sequences=4, max_tokens=400)


def lengths_chosen(
    lengths: list[int], limits: BatchLimits = LIMITS, overhead_tokens: float = 1000.0
) -> list[int]:
    return [item.length for item in choose_batch([Item(n) for n in lengths], limits, overhead_tokens)]


def test_the_oldest_is_admitted_even_when_others_fit_together_better() -> None:
    assert 50 in lengths_chosen([50, 10, 10, 10, 10, 10])


def test_those_that_waste_the_least_padding_join_the_oldest() -> None:
    assert lengths_chosen([50, 5, 52, 90, 49, 51]) == [49, 50, 51, 52]


def test_a_batch_keeps_to_its_sequences() -> None:
    assert len(lengths_chosen([10] * 9)) == 4


def test_a_batch_keeps_to_its_tokens_padding_included() -> None:
    assert lengths_chosen([100, 100, 100, 101, 150], BatchLimits(32, 310)) == [100, 100, 100]


def test_a_sequence_longer_than_the_token_budget_runs_alone() -> None:
    assert lengths_chosen([500, 10, 10], BatchLimits(32, 400)) == [500]


def test_a_sequence_joins_only_when_that_computes_less_than_running_apart() -> None:
    assert lengths_chosen([50, 30], overhead_tokens=19.0) == [50]
    assert lengths_chosen([50, 30], overhead_tokens=20.0) == [30, 50]
    assert lengths_chosen([30, 50], overhead_tokens=19.0) == [30]


def test_a_longer_newcomer_costs_padding_for_everybody_in_the_batch() -> None:
    assert lengths_chosen([30, 30, 40], overhead_tokens=19.0) == [30, 30]
    assert lengths_chosen([30, 30, 40], overhead_tokens=20.0) == [30, 30, 40]


def test_without_a_wait_a_batch_may_run_at_once() -> None:
    assert wake_at([Item(5, queued_ns=70)], LIMITS) == 70


def test_a_partial_batch_waits_for_company_and_a_full_one_does_not() -> None:
    limits = BatchLimits(max_sequences=2, max_tokens=100, max_wait_ns=30)
    assert wake_at([Item(5, queued_ns=70)], limits) == 100
    assert wake_at([Item(5, queued_ns=70), Item(5, queued_ns=80)], limits) == 70


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
