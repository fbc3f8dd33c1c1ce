"""The plan of a sweep: cells, blocks and the order of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import POISSON, Arm, Load, closed
from wattserve_loadgen.plan.schedule import (
    PRESETS,
    cells,
    load_seconds,
    make_plan,
    row_groups,
    row_order,
)


def arms(*names: str) -> tuple[Arm, ...]:
    return tuple(Arm(name, name, "wattserve") for name in names)


PLAN = make_plan("look", arms("fp32", "bf16", "int8"), seed=11)


def test_the_presets_are_what_the_help_says() -> None:
    shape = {
        name: (plan.blocks, tuple(load.concurrency for load in plan.loads), plan.seconds)
        for name, plan in PRESETS.items()
    }
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
    wanted = {(arm, load) for arm in PLAN.arms for load in PLAN.loads}
    for block in range(4):
        run = [(cell.arm, cell.load) for cell in cells(PLAN) if cell.block == block]
        assert len(run) == 9
        assert set(run) == wanted


def test_the_first_block_is_short_and_discarded() -> None:
    first, rest = cells(PLAN)[:9], cells(PLAN)[9:]
    assert all(cell.discarded and load_seconds(cell) == 0.4 for cell in first)
    assert not any(cell.discarded for cell in rest)
    assert all(load_seconds(cell) == 2.3 for cell in rest)


def test_blocks_run_in_different_orders() -> None:
    orders = [
        tuple((cell.arm, cell.load) for cell in cells(PLAN) if cell.block == block) for block in range(4)
    ]
    assert len(set(orders)) == 4


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    again, other = make_plan("look", PLAN.arms, seed=11), make_plan("look", PLAN.arms, seed=12)
    assert cells(again) == cells(PLAN)
    assert cells(other) != cells(PLAN)


def test_the_order_is_the_same_on_every_machine() -> None:
    """Literal, because results say that their seed repeats them."""
    plan = make_plan("look", arms("a", "b"), loads=(closed(1), closed(2)), seed=5)
    assert [(cell.arm.name, cell.load.concurrency) for cell in cells(plan)][:4] == [
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
    one, two = (
        make_plan("look", arms("a"), seed=seed),
        make_plan("quick", arms("a", "b"), blocks=9, seed=seed),
    )
    assert sorted(row_order(one, block, rows)) == list(range(rows))
    assert row_order(one, block, rows) == row_order(two, block, rows)


def test_given_parts_replace_those_of_the_preset() -> None:
    loads = (closed(3), Load(POISSON, rate=50.0))
    plan = make_plan("quick", arms("a"), loads=loads, blocks=7, seconds=1.5, seed=2)
    assert (plan.loads, plan.blocks, plan.seconds, plan.seed) == (loads, 7, 1.5, 2)
    assert plan.publish_seconds == 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loads": (closed(4), closed(0))}, "concurrency 0: it must be from 1 to 4096"),
        ({"loads": (closed(2), closed(4), closed(2))}, "concurrency 2 is listed twice"),
        ({"blocks": 0}, "0 blocks: a plan takes 1 to 1000"),
        ({"blocks": 1001}, "1001 blocks: a plan takes 1 to 1000"),
        ({"seconds": 0.0}, "0 seconds: a cell takes more than 0 and at most 86400"),
        ({"seconds": float("nan")}, "nan seconds: a cell takes more than 0 and at most 86400"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan("look", arms("fp32"), **changes)
    assert str(caught.value) == message


def test_a_variant_listed_twice_is_refused() -> None:
    with pytest.raises(PlanError, match="variant fp32 is listed twice"):
        make_plan("look", arms("fp32", "bf16", "fp32"))


def test_a_plan_without_a_variant_is_refused() -> None:
    with pytest.raises(PlanError, match="no variant to measure"):
        make_plan("look", ())


def test_what_a_search_found_is_measured_for_its_own_variant_alone() -> None:
    found = Load(POISSON, rate=42.0)
    plan = replace(make_plan("look", arms("a", "b"), loads=(closed(1),)), own_loads={"b": [found]})
    assert [(arm.name, load.name) for arm, load in plan.pairs()] == [
        ("a", "concurrency 1"),
        ("b", "concurrency 1"),
        ("b", "42/s poisson"),
    ]


def test_least_requests_are_shared_among_the_blocks_and_rounded_up() -> None:
    assert make_plan("quick", arms("a"), least_requests=100).cell_requests() == 34
    assert make_plan("quick", arms("a")).cell_requests() == 0


def test_only_a_look_still_shows_figures_with_a_verdict() -> None:
    assert [name for name, plan in PRESETS.items() if not plan.withholds] == ["look"]


def test_requests_of_several_sequences_take_their_rows_in_turn_and_go_round() -> None:
    assert row_groups([5, 6, 7], 1) == [[5], [6], [7]]
    assert row_groups([5, 6, 7, 8, 9], 2) == [[5, 6], [7, 8], [9, 5]]
    assert row_groups([5, 6], 5) == [[5, 6, 5, 6, 5]]
