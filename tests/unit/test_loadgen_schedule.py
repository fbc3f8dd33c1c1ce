"""The plan of a sweep: cells, blocks and the order of rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.schedule import PRESETS, cells, load_seconds, make_plan, row_order

PLAN = make_plan("look", ("fp32", "bf16", "int8"), seed=11)


def test_the_presets_are_what_the_help_says() -> None:
    shape = {name: (plan.blocks, plan.concurrencies, plan.seconds) for name, plan in PRESETS.items()}
    assert shape == {
        "look": (3, (1, 4, 16), 2),
        "quick": (3, (1, 2, 4, 8, 16, 32), 12),
        "full": (5, (1, 2, 4, 8, 16, 32), 125),
    }


def test_quick_and_full_give_each_point_the_time_that_their_rule_asks_for() -> None:
    for name in ("quick", "full"):
        plan = PRESETS[name]
        assert plan.blocks * plan.seconds > plan.publish_seconds


def test_a_look_is_always_too_short_to_publish() -> None:
    assert PRESETS["look"].blocks * PRESETS["look"].seconds < PRESETS["look"].publish_seconds


def test_every_block_runs_every_cell_once() -> None:
    wanted = {(variant, load) for variant in PLAN.variants for load in PLAN.concurrencies}
    for block in range(4):
        run = [(cell.variant, cell.concurrency) for cell in cells(PLAN) if cell.block == block]
        assert len(run) == 9
        assert set(run) == wanted


def test_the_first_block_is_short_and_discarded() -> None:
    first, rest = cells(PLAN)[:9], cells(PLAN)[9:]
    assert all(cell.discarded and load_seconds(cell) == 0.4 for cell in first)
    assert not any(cell.discarded for cell in rest)
    assert all(load_seconds(cell) == 2.3 for cell in rest)


def test_blocks_run_in_different_orders() -> None:
    orders = [
        tuple((cell.variant, cell.concurrency) for cell in cells(PLAN) if cell.block == block)
        for block in range(4)
    ]
    assert len(set(orders)) == 4


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    again, other = make_plan("look", PLAN.variants, seed=11), make_plan("look", PLAN.variants, seed=12)
    assert cells(again) == cells(PLAN)
    assert cells(other) != cells(PLAN)


def test_the_order_is_the_same_on_every_machine() -> None:
    """Literal, because results say that their seed repeats them."""
    plan = make_plan("look", ("a", "b"), concurrencies=(1, 2), seed=5)
    assert [(cell.variant, cell.concurrency) for cell in cells(plan)][:4] == [
        ("b", 2),
        ("a", 2),
        ("b", 1),
        ("a", 1),
    ]
    assert row_order(plan, 1, 6) == [0, 5, 4, 3, 2, 1]


def test_positions_count_from_one() -> None:
    assert [cell.position for cell in cells(PLAN)] == list(range(1, 37))


@given(st.integers(0, 99), st.integers(0, 9), st.integers(1, 200))
def test_a_row_order_is_a_permutation_that_knows_only_seed_and_block(
    seed: int, block: int, rows: int
) -> None:
    one, two = make_plan("look", ("a",), seed=seed), make_plan("quick", ("a", "b"), blocks=9, seed=seed)
    assert sorted(row_order(one, block, rows)) == list(range(rows))
    assert row_order(one, block, rows) == row_order(two, block, rows)


def test_given_parts_replace_those_of_the_preset() -> None:
    plan = make_plan("quick", ("a",), concurrencies=(3,), blocks=7, seconds=1.5, seed=2)
    assert (plan.concurrencies, plan.blocks, plan.seconds, plan.seed) == ((3,), 7, 1.5, 2)
    assert plan.publish_seconds == 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrencies": ()}, "no concurrency to sweep"),
        ({"concurrencies": (4, 0)}, "concurrency 0: it must be at least 1"),
        ({"concurrencies": (2, 4, 2)}, "concurrency 2 is listed twice"),
        ({"blocks": 0}, "--blocks 0: at least one block must run"),
        ({"seconds": 0.0}, "--seconds 0: a cell takes more than 0 and at most 86400 seconds"),
        ({"seconds": float("nan")}, "--seconds nan: a cell takes more than 0 and at most 86400 seconds"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan("look", ("fp32",), **changes)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_variant_listed_twice_is_refused() -> None:
    with pytest.raises(PlanError, match="variant fp32 is listed twice"):
        make_plan("look", ("fp32", "bf16", "fp32"))
