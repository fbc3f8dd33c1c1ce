"""From cells to points: what is pooled, what is paired, and what is withheld."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.loadgen_results import ARMS, FP32, INT8, OPEN, TWIN, make_cell_of, no_energy
from wattserve_loadgen.figures.measure import CellSamples
from wattserve_loadgen.figures.points import make_points
from wattserve_loadgen.model.cells import CellResult
from wattserve_loadgen.model.ratios import Ratios
from wattserve_loadgen.model.results import Ceiling, Point
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.plan.load import OFFLINE, Arm, Load, closed

LOAD = closed(4)
PLAN = schedule.make_plan("quick", ARMS, loads=[LOAD])
LOOK = schedule.make_plan("look", ARMS, loads=[LOAD], seconds=12)
LATENCIES = np.arange(1, 1001, dtype=np.int64) * 10_000
NOTHING = np.array([], dtype=np.int64)


def cell(arm: Arm, position: int, block: int, load: Load = LOAD, **changes: Any) -> CellResult:
    return make_cell_of(arm, load, position=position, block=block, **changes)


def sweep(
    *, load: Load = LOAD, arms: tuple[Arm, ...] = (FP32, INT8), **by_arm: dict[str, Any]
) -> list[CellResult]:
    """Three blocks of these arms; `by_arm` changes the cell of that arm in block 2."""
    return [
        cell(arm, 10 * block + at, block, load, **(by_arm.get(arm.name, {}) if block == 2 else {}))
        for block in (1, 2, 3)
        for at, arm in enumerate(arms)
    ]


def samples_of(cells: list[CellResult]) -> dict[int, CellSamples]:
    opened = any(cell.service is not None for cell in cells)
    one = CellSamples(LATENCIES, LATENCIES - 5_000 if opened else None, LATENCIES // 100 if opened else None)
    return {cell.position: one for cell in cells}


def points(cells: list[CellResult], plan: schedule.Plan = PLAN, **known: Any) -> dict[str, Point]:
    """By the arm's name; for plans of one load."""
    about = {"sensor_period_seconds": {}, "ceilings": {}, **known}
    return {point.arm: point for point in make_points(plan, cells, samples_of(cells), **about)}


def test_a_point_pools_latencies_and_averages_blocks() -> None:
    cells = [cell(FP32, block, block, rate_per_second=60.0 + 10 * block) for block in (1, 2, 3)]
    point = points(cells)["fp32"]
    assert point.figures is not None
    assert point.figures.rate_per_second is not None
    assert (point.figures.rate_per_second.mean, point.figures.rate_per_second.n) == (80.0, 3)
    assert (point.figures.latency.samples, point.figures.latency.effective_samples) == (3000, 9600)
    assert (point.figures.latency.p50_ns, point.figures.latency.p99_ns) == (5_000_000, 9_900_000)
    assert (point.blocks, point.window_seconds, point.answered) == (3, 37.5, 12_000)
    assert (point.verdicts, point.withheld, point.hollow) == ([], None, False)


def test_latencies_are_pooled_in_the_order_of_blocks_whatever_order_cells_are_in() -> None:
    cells = sweep(arms=(FP32,))
    turned = {key: replace(one, latency_ns=LATENCIES * key) for key, one in samples_of(cells).items()}
    there = make_points(PLAN, cells, turned, {}, {})
    assert make_points(PLAN, cells[::-1], turned, {}, {}) == there


def test_an_open_loop_has_service_time_and_lag_beside_its_latency() -> None:
    plan = schedule.make_plan("quick", ARMS, loads=[OPEN])
    point = points(sweep(load=OPEN), plan)["fp32"]
    assert point.figures is not None
    assert point.figures.service is not None
    assert point.figures.lag is not None
    assert point.figures.latency.p50_ns == 5_000_000
    assert (point.figures.service.p50_ns, point.figures.lag.p50_ns) == (4_995_000, 50_000)
    assert point.offered_per_second == 40.0


def test_an_offline_load_is_valid_without_a_latency() -> None:
    burst = Load(OFFLINE, concurrency=4)
    plan = schedule.make_plan("quick", (FP32,), loads=[burst])
    cells = sweep(load=burst, arms=(FP32,), fp32={})
    samples = {one.position: CellSamples(NOTHING, LATENCIES, None) for one in cells}
    point = make_points(plan, cells, samples, {}, {})[0]
    assert point.figures is not None
    assert (point.verdicts, point.figures.latency.samples) == ([], 0)


def test_points_stand_in_the_order_of_the_plan_whatever_order_cells_ran_in() -> None:
    plan = schedule.make_plan("quick", ARMS, loads=[closed(1), LOAD])
    cells = [cell(INT8, 1, 1), cell(FP32, 2, 1), cell(INT8, 3, 1, closed(1))]
    found = make_points(plan, cells, samples_of(cells), {}, {})
    assert [(one.arm, one.load) for one in found] == [
        ("fp32", "concurrency 4"),
        ("int8", "concurrency 1"),
        ("int8", "concurrency 4"),
    ]


def test_ratios_are_paired_by_block_and_relative_to_the_baseline() -> None:
    ratios = points(sweep())["int8"].shown.ratios
    means = {name: getattr(ratios, name).mean for name in ("rate", "p50", "p95", "active_energy")}
    assert means == pytest.approx({"rate": 2.0, "p50": 0.5, "p95": 0.5, "active_energy": 0.5}, rel=1e-6)
    assert ratios.total_energy is not None
    assert ratios.total_energy.mean == pytest.approx(0.5)
    assert ratios.total_energy.n == 3
    assert ratios.reason == ""


def test_the_baseline_has_no_ratio_and_its_twin_has_one() -> None:
    found = points(sweep(arms=(FP32, TWIN)))
    assert found["fp32"].shown.ratios == Ratios()
    twin = found["fp32 (A/A)"].shown.ratios.rate
    assert twin is not None
    assert twin.mean == pytest.approx(1.0)


def test_blocks_without_their_baseline_give_no_ratio() -> None:
    cells = [cell(INT8, 1, 1), cell(FP32, 2, 2)]
    assert points(cells, LOOK)["int8"].shown.ratios == Ratios(
        reason="no block has run both this arm and the baseline"
    )


def test_an_arm_without_a_baseline_under_its_load_says_so() -> None:
    own = schedule.make_plan("quick", ARMS, loads=[LOAD])
    own = replace(own, own_loads={"int8": [OPEN]})
    found = make_points(own, cells := sweep(load=OPEN, arms=(INT8,)), samples_of(cells), {}, {})
    assert found[0].shown.ratios == Ratios(reason="the baseline has not run under this load")


def test_a_verdict_withholds_the_figures() -> None:
    point = points(sweep(int8={"stopped": "interrupted by the user"}))["int8"]
    assert point.figures is None
    assert point.withheld is not None
    assert (point.shown, point.hollow) == (point.withheld, True)
    assert [one.text for one in point.verdicts] == ["1 of its cells ended early: interrupted by the user"]


def test_a_look_keeps_its_figures_beside_the_verdict() -> None:
    point = points(sweep(), LOOK)["int8"]
    assert point.figures is not None
    assert (point.withheld, point.hollow) == (None, True)
    assert [one.text for one in point.verdicts] == ["too short to publish: 37.5 s of 600 s"]
    assert point.figures.active_uj is not None
    assert point.figures.ratios.rate is not None


def test_spoilt_energy_leaves_latency_and_no_joule() -> None:
    point = points(sweep(int8={"energy": {"gap_count": 1, "gap_seconds": 0.25}}))["int8"]
    figures = point.figures
    assert figures is not None
    assert (point.withheld, point.hollow) == (None, False)
    assert figures.latency.p50_ns == 5_000_000
    assert figures.ratios.rate is not None
    joules = (
        figures.active_uj,
        figures.idle_uj,
        figures.total_uj,
        figures.meter_uj,
        figures.meter_difference,
        figures.active_uj_per_token,
        figures.active_uj_per_padded_token,
        figures.ratios.active_energy,
        figures.ratios.total_energy,
    )
    assert joules == (None,) * 9
    assert figures.energy_reason == "1 meter gap of 0.25 s fell in its cells"


def test_a_look_shows_spoilt_energy_too() -> None:
    point = points(sweep(int8={"energy": {"gap_count": 1, "gap_seconds": 0.25}}), LOOK)["int8"]
    assert point.shown.active_uj is not None
    assert [one.code for one in point.verdicts] == ["too short", "meter gap"]


def test_withheld_figures_hold_no_spoilt_joule_either() -> None:
    point = points(sweep(int8={"stopped": "x", "energy": {"gap_count": 1}}))["int8"]
    assert point.withheld is not None
    assert (point.withheld.active_uj, point.withheld.energy_reason) == (
        None,
        "1 meter gap of 0.00 s fell in its cells",
    )


def test_nothing_is_compared_with_an_invalid_baseline() -> None:
    point = points(sweep(fp32={"stopped": "x"}))["int8"]
    assert point.figures is not None
    assert point.figures.ratios == Ratios(
        reason="the baseline's own point is not valid: 1 of its cells ended early: x"
    )


def test_joules_are_not_compared_with_a_baseline_without_valid_ones() -> None:
    ratios = points(sweep(fp32={"energy": {"gap_count": 2}}))["int8"].shown.ratios
    assert ratios.rate is not None
    assert (ratios.active_energy, ratios.total_energy) == (None, None)
    assert ratios.reason == "the baseline has no valid joules: 2 meter gaps of 0.00 s fell in its cells"


def test_without_a_meter_a_point_is_valid_and_says_why_it_has_no_joules() -> None:
    point = points([cell(FP32, at, at, energy=no_energy()) for at in (1, 2, 3)])["fp32"]
    assert point.figures is not None
    assert (point.figures.active_uj, point.verdicts) == (None, [])
    assert point.figures.energy_reason == "the server has no meter"


def test_a_percentile_that_a_block_lacks_has_no_interval_over_the_others() -> None:
    lacking = replace(cell(INT8, 1, 1).latency, p95_ns=None)
    figures = points(sweep(int8={"latency": lacking}))["int8"].shown
    assert (figures.p95_blocks_ns, figures.ratios.p95) == (None, None)
    assert figures.p50_blocks_ns is not None
    assert figures.ratios.p50 is not None


def test_goodput_is_a_share_of_all_that_was_sent() -> None:
    changes: dict[str, Any] = {"sent": 100, "answered": 99, "failed": 1}
    cells = [cell(FP32, at, at, within_objective=80 + at, **changes) for at in (1, 2, 3)]
    assert points(cells)["fp32"].shown.goodput_share == pytest.approx(0.82)
    assert points(sweep())["fp32"].shown.goodput_share is None


def test_the_busiest_client_and_its_time_per_request_are_shown() -> None:
    cells = [cell(FP32, at, at, client_cpu_share=at / 10, client_cpu_seconds=2.0) for at in (1, 2, 3)]
    figures = points(cells)["fp32"].shown
    assert figures.client_cpu_share == 0.3
    assert figures.client_cpu_us_per_request == 500


def test_what_is_known_of_an_arm_reaches_its_gates() -> None:
    slow = Ceiling(100.0, 50.0, 1024, "unary", 1, "2026-01-01T00:00:00+00:00")
    found = points(sweep(), ceilings={"int8": slow}, sensor_period_seconds={"fp32": 1.0})
    assert [one.text for one in found["fp32"].verdicts] == ["too short to publish: 37.5 s of 100 s"]
    assert [one.code for one in found["int8"].verdicts] == ["near ceiling"]
