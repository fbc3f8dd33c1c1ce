"""Whatever cells have run: what a point shows follows from its verdicts, and ratios from pairs of blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.loadgen_results import FP32, INT8, OPEN, TWIN, make_cell_of, no_energy, no_percentiles
from wattserve_common.stats import Interval
from wattserve_loadgen.figures.measure import CellSamples
from wattserve_loadgen.figures.points import make_points
from wattserve_loadgen.model.cells import CellResult
from wattserve_loadgen.model.ratios import Ratios
from wattserve_loadgen.model.results import Point
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.plan.load import closed

ARMS = (FP32, INT8, TWIN)
LOADS = (closed(1), OPEN)
BLOCKS = 4
Sweep = tuple[list[CellResult], dict[int, CellSamples]]

faults: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {},
        {},
        {"stopped": "interrupted"},
        {"failed": 100},
        {"answered": 0, "rate_per_second": None, "latency": no_percentiles()},
        {"slices": None},
        {"energy": no_energy("frozen")},
        {"energy": {"gap_count": 1}},
        {"energy": {"accounts_residual_uj": 1}},
        {"energy": {"meter_uj_per_request": None}},
    ]
)


@st.composite
def sweeps(draw: st.DrawFn) -> Sweep:
    """Some of the cells of a plan, some of them faulty, in any order."""
    cells, samples, position = list[CellResult](), dict[int, CellSamples](), 0
    for block in range(1, BLOCKS + 1):
        for arm in ARMS:
            for load in LOADS:
                if not draw(st.integers(0, 5)):
                    continue
                position += 1
                changes = draw(faults)
                one = make_cell_of(arm, load, position=position, block=block, **changes)
                cells.append(replace(one, rate_per_second=one.rate_per_second and draw(st.floats(1, 1e4))))
                count = draw(st.integers(0, 200))
                latency = np.arange(count, dtype=np.int64) * 1_000 + 5_000_000
                opened = load.scheduled
                samples[position] = CellSamples(
                    latency, latency - 100 if opened else None, latency * 0 if opened else None
                )
    return draw(st.permutations(cells)), samples


def points(sweep: Sweep, preset: str = "quick") -> list[Point]:
    plan = schedule.make_plan(preset, ARMS, loads=LOADS, blocks=BLOCKS, seconds=12)
    return make_points(plan, *sweep, sensor_period_seconds={}, ceilings={})


def joules(point: Point) -> list[Interval | None]:
    shown = point.shown
    return [
        shown.active_uj,
        shown.idle_uj,
        shown.total_uj,
        shown.meter_uj,
        shown.meter_difference,
        shown.active_uj_per_token,
        shown.active_uj_per_padded_token,
        shown.ratios.active_energy,
        shown.ratios.total_energy,
    ]


@settings(max_examples=15, deadline=None)
@given(sweeps())
def test_figures_are_withheld_exactly_where_a_verdict_spoils_the_point(sweep: Sweep) -> None:
    for point in points(sweep):
        assert (point.figures is None) == point.hollow == (point.withheld is not None)


@settings(max_examples=15, deadline=None)
@given(sweeps())
def test_no_joule_is_shown_where_a_verdict_spoils_energy_and_a_missing_one_has_a_reason(sweep: Sweep) -> None:
    for point in points(sweep):
        if any(one.spoils == "energy" for one in point.verdicts):
            assert joules(point) == [None] * 9
        assert bool(point.shown.energy_reason) == (point.shown.active_uj is None)


@settings(max_examples=15, deadline=None)
@given(sweeps())
def test_a_look_shows_everything_under_its_verdict(sweep: Sweep) -> None:
    for point in points(sweep, "look"):
        assert point.figures is not None
        assert point.withheld is None
        assert "too short" in [one.code for one in point.verdicts]


@settings(max_examples=15, deadline=None)
@given(sweeps(), st.randoms())
def test_points_do_not_depend_on_the_order_of_cells(sweep: Sweep, random: Any) -> None:
    cells, samples = sweep
    turned = list(cells)
    random.shuffle(turned)
    assert points((turned, samples)) == points(sweep)


@settings(max_examples=15, deadline=None)
@given(sweeps())
def test_the_baseline_has_no_ratios_and_a_missing_ratio_of_another_has_a_reason_or_no_pair(
    sweep: Sweep,
) -> None:
    for point in points(sweep):
        if point.arm == FP32.name:
            assert point.shown.ratios == Ratios()
        elif point.shown.ratios.reason and "joules" not in point.shown.ratios.reason:
            assert replace(point.shown.ratios, reason="") == Ratios()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=3, max_size=6))
def test_swapping_an_arm_with_the_baseline_inverts_its_ratio(rates: list[tuple[float, float]]) -> None:
    def ratio(turned: bool) -> Interval:
        cells = []
        for block, (one, other) in enumerate(rates, start=1):
            pair = (other, one) if turned else (one, other)
            for at, (arm, rate) in enumerate(zip((FP32, TWIN), pair, strict=True)):
                position = 2 * block + at
                cells.append(
                    make_cell_of(arm, LOADS[0], position=position, block=block, rate_per_second=rate)
                )
        latency = np.arange(1000, dtype=np.int64) + 5_000_000
        samples = {cell.position: CellSamples(latency, None, None) for cell in cells}
        plan = schedule.make_plan("quick", (FP32, TWIN), loads=LOADS[:1], blocks=len(rates))
        found = make_points(plan, cells, samples, {}, {})[1].shown.ratios.rate
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        return found

    there, back = ratio(False), ratio(True)
    assert math.isclose(there.mean * back.mean, 1, rel_tol=1e-9)
    assert there.low is not None
    assert back.high is not None
    assert math.isclose(there.low * back.high, 1, rel_tol=1e-6)
