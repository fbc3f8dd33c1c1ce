"""Plans within a time: what is given up, in which order, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.budget import describe, fit, plan_seconds
from wattserve_loadgen.plan.load import POISSON, RAMP, Arm, Load, closed
from wattserve_loadgen.plan.schedule import Plan, make_plan

FP32, INT8, BF16 = (Arm(name, name, "wattserve") for name in ("fp32", "int8", "bf16"))
TWIN = Arm("fp32 again", "fp32", "wattserve", twin_of="fp32")
ARMS = (FP32, TWIN, INT8, BF16)
QUICK = make_plan("quick", ARMS)
ASIDE = 0.5


def fitted(plan: Plan, seconds: float) -> tuple[Plan, list[str]]:
    return fit(plan, seconds, aside_seconds_per_cell=ASIDE)


def test_the_time_of_a_plan_is_load_and_what_cells_take_beside_it() -> None:
    plan = make_plan("quick", (FP32,), loads=(closed(1), closed(2)))
    # a heat-up of 1 s and three blocks of 1 s + 12 s, for two cells each, and half a second for each cell
    assert plan_seconds(plan, ASIDE) == 2 * (1 + 3 * 13) + 8 * 0.5


def test_a_plan_that_fits_is_left_alone() -> None:
    assert fitted(QUICK, 3600) == (QUICK, [])


def test_windows_are_shortened_first_and_no_more_than_needed() -> None:
    whole = plan_seconds(QUICK, ASIDE)
    plan, said = fitted(QUICK, whole - 72)  # 72 counted cells: one second each
    assert plan == replace(QUICK, seconds=11.0)
    assert said == ["windows are 11 s instead of 12 s"]


def test_blocks_go_next_and_the_windows_keep_what_a_point_needs() -> None:
    asked = make_plan("quick", ARMS, blocks=6, seconds=6)
    shortest = plan_seconds(replace(asked, seconds=5.1), ASIDE)
    plan, said = fitted(asked, shortest - 10)
    assert (plan.blocks, plan.loads, plan.arms) == (5, asked.loads, ARMS)
    assert plan.blocks * plan.seconds > 30
    assert said == [
        f"windows are {plan.seconds:g} s instead of 6 s",
        "5 blocks instead of 6: wider intervals",
    ]


def test_loads_in_between_go_before_variants() -> None:
    plan, said = fitted(QUICK, 700)
    assert plan.arms == ARMS
    assert plan.blocks == 3
    assert [load.name for load in plan.loads] == [
        "concurrency 1",
        "concurrency 4",
        "concurrency 8",
        "concurrency 32",
    ]
    assert said[-1] == "loads that are not measured: concurrency 2, concurrency 16"


def test_variants_go_last_from_the_end_and_the_baseline_stays_with_its_twin() -> None:
    plan, said = fitted(QUICK, 250)
    assert plan.arms == (FP32, TWIN, INT8)[: len(plan.arms)]
    assert [load.name for load in plan.loads] == ["concurrency 1", "concurrency 32"]
    assert said[-1] == "variants that are not measured: bf16"
    assert fitted(QUICK, 180)[0].arms == (FP32, TWIN)


def test_a_budget_that_nothing_fits_names_the_least_that_works() -> None:
    with pytest.raises(PlanError) as caught:
        fitted(QUICK, 60)
    assert str(caught.value) == (
        "--budget: 60 s are too few (a number alone is seconds, 10m ten minutes); the least that works is"
        " 2 min 27 s, for fp32; fp32 again under concurrency 1; concurrency 32 in 3 blocks"
    )
    assert plan_seconds(fitted(QUICK, 147)[0], ASIDE) <= 147


def test_a_full_plan_that_does_not_fit_is_told_of_the_quick_one() -> None:
    with pytest.raises(PlanError, match="or choose --preset quick"):
        fitted(make_plan("full", ARMS), 600)


def test_a_full_plan_keeps_the_time_that_publishing_needs() -> None:
    asked = make_plan("full", ARMS)
    plan, _ = fitted(asked, 5000)
    assert plan.blocks * plan.seconds >= 600


def test_a_full_plan_keeps_the_blocks_that_publishing_needs() -> None:
    """Of eight asked for five stay, then loads go; a quick one goes down to three."""
    loads = [closed(2**step) for step in range(4)]
    for preset, least in (("full", 5), ("quick", 3)):
        asked = make_plan(preset, (FP32, TWIN), loads=loads, blocks=8, seconds=125)
        smallest = replace(
            asked, blocks=least, seconds=asked.publish_seconds * 1.05 / least, loads=tuple(loads[:2])
        )
        plan, _ = fitted(asked, plan_seconds(smallest, ASIDE))
        assert (plan.blocks, len(plan.loads)) == (least, 2)


def test_a_look_may_shrink_to_windows_of_a_second() -> None:
    look = make_plan("look", (FP32,))
    plan, _ = fitted(look, 25)
    assert 1.0 <= plan.seconds < 2
    assert plan.loads == look.loads


def test_fewer_blocks_than_three_stay_as_they_were_asked_for() -> None:
    plan, _ = fitted(make_plan("quick", (FP32,), blocks=2, seconds=20), 150)
    assert plan.blocks == 2


def test_the_ends_of_an_open_loop_stay_too() -> None:
    rates = tuple(Load(POISSON, rate=rate) for rate in (10.0, 20.0, 40.0, 80.0))
    plan, _ = fitted(make_plan("quick", (FP32, TWIN), loads=rates), 150)
    assert [load.rate for load in plan.loads] == [10.0, 80.0]


def test_a_plan_whose_loads_a_search_will_find_says_how_long_that_may_take() -> None:
    empty = make_plan("quick", ARMS, loads=())
    lines = describe(empty, aside_seconds_per_cell=ASIDE, search_s=600).splitlines()
    assert lines[1:3] == [
        "loads: the rates that a search finds, which takes at most 10 min",
        "cells: 3 blocks; 1 s of warm-up and a window of 12 s each",
    ]


def test_what_speaks_against_figures_stands_with_what_points_are_good_for() -> None:
    said = describe(QUICK, aside_seconds_per_cell=ASIDE, against=["the sensor is too slow"])
    assert said.endswith("\n  the sensor is too slow")


@settings(deadline=None, max_examples=60)
@given(
    budget=st.floats(5, 5000),
    blocks=st.integers(1, 8),
    seconds=st.floats(0.5, 200),
    preset=st.sampled_from(["look", "quick", "full"]),
    arms=st.integers(1, 4),
    loads=st.integers(1, 7),
)
def test_what_is_fitted_fits_and_is_never_more_than_was_asked_for(
    budget: float, blocks: int, seconds: float, preset: str, arms: int, loads: int
) -> None:
    asked = make_plan(
        preset,
        ARMS[:arms],
        loads=[closed(2**step) for step in range(loads)],
        blocks=blocks,
        seconds=seconds,
    )
    try:
        plan, said = fitted(asked, budget)
    except PlanError:
        return
    assert plan_seconds(plan, ASIDE) <= budget + 1e-6
    assert (plan == asked) == (not said)
    assert plan.blocks <= asked.blocks
    assert set(plan.loads) <= set(asked.loads)
    assert plan.arms[0] == FP32
    if asked.blocks * asked.seconds >= asked.publish_seconds:
        assert plan.blocks * plan.seconds >= asked.publish_seconds - 1e-6


def test_a_description_says_cells_order_time_and_worth() -> None:
    plan = make_plan("quick", (FP32, TWIN), loads=(closed(4), Load(POISSON, rate=20.0)), seed=3)
    lines = describe(plan, aside_seconds_per_cell=ASIDE, left_out=["3 blocks instead of 5"]).splitlines()
    assert lines == [
        "arms: fp32 (the baseline), fp32 again (the same as fp32: how far two equal arms differ)",
        "loads: concurrency 4; 20/s poisson",
        "cells: 12 in 3 blocks of 4, after a heat-up block that is not counted; 1 s of warm-up and a window"
        " of 12 s each",
        "time: 2 min 48 s, of it 2 min 40 s under load",
        "order of block 1:",
        *lines[5:9],
        "seed: 3",
        "left out: 3 blocks instead of 5",
        "each point:",
        "  36 s of windows: enough for a quick look that is labelled so, 600 s are needed to publish",
        "  3 blocks: intervals are wide; figures to publish need 5",
        "  20/s poisson: about 720 requests, enough for p99 at best",
        "  percentiles need this many independent requests, else they are not shown: p50 11, p90 64, p95 130,"
        " p99 662, p99.9 6,636",
    ]
    assert sorted(lines[5:9]) == [
        "  fp32 again, 20/s poisson",
        "  fp32 again, concurrency 4",
        "  fp32, 20/s poisson",
        "  fp32, concurrency 4",
    ]


def test_a_description_says_what_is_too_short_and_what_is_enough() -> None:
    def said(preset: str) -> str:
        return describe(make_plan(preset, (FP32,)), aside_seconds_per_cell=0)

    assert "6 s of windows: too short to publish, as a look always is" in said("look")
    assert "625 s of windows: enough to publish (600 s)" in said("full")


def test_a_ramp_is_counted_by_its_mean_rate() -> None:
    plan = make_plan("quick", (FP32,), loads=(Load(RAMP, rate=1.0, rate_end=3.0),))
    assert "1-3/s ramp: about 72 requests, enough for p90 at best" in describe(plan, aside_seconds_per_cell=0)


def test_least_requests_are_said_to_take_longer() -> None:
    plan = make_plan("quick", (FP32,), least_requests=24_576)
    assert "at least 24576 requests: a slow server takes longer" in describe(plan, aside_seconds_per_cell=0)
