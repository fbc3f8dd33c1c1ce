"""Which waiting sequences run together."""

from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from wattserve_server.engine import policy
from wattserve_server.engine.policy import BatchCost, BatchLimits, choose_batch, wake_at
from wattserve_server.engine.variants.packing import pack


@dataclass(frozen=True)
class Item:
    length: int
    queued_ns: int = 0
    deadline_ns: int | None = None


LIMITS = BatchLimits(max_sequences=4, max_tokens=400)


def lengths_chosen(
    lengths: list[int], limits: BatchLimits = LIMITS, overhead_tokens: float = 1000.0
) -> list[int]:
    cost = BatchCost(overhead_tokens)
    return sorted(item.length for item in choose_batch([Item(n) for n in lengths], limits, cost))


def packed(lengths: list[int], width: int, limits: BatchLimits = LIMITS, overhead: float = 10.0) -> list[int]:
    cost = BatchCost(overhead, packs=True, width=width)
    return [item.length for item in choose_batch([Item(n) for n in lengths], limits, cost)]


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


def test_packed_sequences_are_budgeted_by_the_sum_of_their_lengths() -> None:
    assert packed([100, 10, 10, 10], width=0, limits=BatchLimits(32, 130)) == [100, 10, 10, 10]
    assert packed([100, 10, 11, 10], width=0, limits=BatchLimits(32, 130)) == [100, 10, 11]
    assert packed([200, 10], width=0, limits=BatchLimits(32, 130)) == [200]


def test_a_packed_batch_takes_the_oldest_whatever_their_lengths() -> None:
    assert packed([9, 80, 7, 60, 8, 8, 8], width=0) == [9, 80, 7, 60]
    assert packed([9, 80, 7, 60, 8, 8, 8], width=768) == [9, 80, 7, 60]


def test_a_packed_batch_is_cut_where_a_long_row_would_cost_the_short_ones_a_tenth() -> None:
    # Whole: 10 + 320 * (1 + 120 / width); apart: 20 + 200 * (1 + 20 / width) + 120 * (1 + 120 / width).
    limits = BatchLimits(16, 1000)
    assert packed([20, 120, *[20] * 9], width=100, limits=limits) == [20] * 10  # 714 against 524
    assert packed([120, *[20] * 10], width=100, limits=limits) == [120]
    assert packed([20, 120, *[20] * 9], width=768, limits=limits) == [20, 120, *[20] * 9]  # 380 against 364


def test_a_packed_batch_is_whole_where_a_start_costs_more_than_a_long_row() -> None:
    assert len(packed([20, 120, *[20] * 9], width=100, limits=BatchLimits(16, 1000), overhead=300.0)) == 11


def in_rows(lengths: list[int], row: int = 512) -> list[int]:
    cost = BatchCost(25.0, packs=True, row_tokens=row, width=768)
    return sorted(
        item.length for item in choose_batch([Item(n) for n in lengths], BatchLimits(32, 4096), cost)
    )


def test_who_leaves_no_room_in_its_row_runs_apart_from_those_who_would_need_another() -> None:
    assert in_rows([512, 32]) == [512]
    assert in_rows([32, 512]) == [32]
    assert in_rows([32, 512, 40, 512]) == [32, 40]
    assert in_rows([512, 32, 300, 512]) == [512, 512]
    assert in_rows([300, 512, 32]) == [32, 300]


def test_who_finds_room_in_a_long_ones_row_runs_with_it() -> None:
    for lengths in ([480, 32], [300, 32], [300, 280], [512, 512], [40, 30]):
        assert in_rows(lengths) == sorted(lengths)
        assert in_rows(lengths[::-1]) == sorted(lengths)
    assert in_rows([512]) == [512]
    assert in_rows([512, 32], row=0) == [32, 512]  # the longest row is not known


@given(
    st.lists(st.integers(1, 128), min_size=1, max_size=15).flatmap(
        lambda rest: st.integers(65, 128).flatmap(lambda long: st.permutations([long, *rest]))
    )
)
@example([65, 1, 13, 63, 80])  # three rows of 80 cost less than two of 128
@settings(max_examples=300, deadline=None)
def test_what_is_cut_for_its_rows_is_computed_for_less(lengths: list[int]) -> None:
    def computed(run: list[int]) -> float:
        layout = pack(run, 64, 128) if len(run) > 1 else None
        rows, row = (len(run), max(run)) if layout is None else (layout.rows, layout.length)
        return 5 + rows * row * (1 + row / 64)

    cost = BatchCost(5.0, packs=True, row_tokens=128, width=64)
    batch = policy._apart(lengths, cost)
    if batch:
        rest = [length for index, length in enumerate(lengths) if index not in batch]
        assert 0 in batch
        assert computed([lengths[index] for index in batch]) + computed(rest) < computed(lengths)


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
