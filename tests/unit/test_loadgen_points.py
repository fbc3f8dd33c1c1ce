"""From cells to points: ratios, accuracy and the verdicts that keep a figure out of print."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.loadgen_results import make_cell, make_results
from wattserve_loadgen.figures.points import duration_floor_seconds, make_points, measure_accuracy
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.results.schema import Point, Results

PLAN = schedule.make_plan("quick", ("fp32", "int8"), concurrencies=(4,))


def points(*changes: dict[str, Any], plan: schedule.Plan = PLAN, sensor_period: float = 0.0) -> list[Point]:
    """Points of one cell per change, in blocks 1, 2, ... unless the change says otherwise."""
    cells = [
        make_cell(**{"position": at, "block": at, **change}) for at, change in enumerate(changes, start=1)
    ]
    latencies = {cell.position: np.arange(1, 1001) * 10_000 for cell in cells}
    return make_points(plan, cells, latencies, sensor_period)


def verdicts(*changes: dict[str, Any], **options: Any) -> list[str]:
    return [verdict.text for verdict in points(*changes, **options)[0].verdicts]


def point_of(results: Results, variant: str, concurrency: int) -> Point:
    return next(one for one in results.points if (one.variant, one.concurrency) == (variant, concurrency))


def test_a_point_pools_latencies_and_averages_blocks() -> None:
    found = points({"rate_per_second": 70.0}, {"rate_per_second": 80.0}, {"rate_per_second": 90.0})[0]
    assert found.rate_per_second is not None
    assert (found.rate_per_second.mean, found.rate_per_second.n) == (80.0, 3)
    assert (found.p50_ns, found.p99_ns, found.p999_ns) == (5_000_000, 9_900_000, None)
    assert (found.blocks, found.window_seconds, found.answered) == (3, 36.0, 3000)


def test_points_stand_in_the_order_of_the_plan_whatever_order_cells_ran_in() -> None:
    plan = schedule.make_plan("quick", ("fp32", "int8"), concurrencies=(1, 4))
    found = points(
        {"variant": "int8", "concurrency": 4},
        {"variant": "fp32", "concurrency": 4},
        {"variant": "int8", "concurrency": 1},
        plan=plan,
    )
    assert [(one.variant, one.concurrency) for one in found] == [("fp32", 4), ("int8", 1), ("int8", 4)]


def test_ratios_are_paired_by_block_and_relative_to_the_first_variant() -> None:
    results = make_results()
    speed, energy = (
        point_of(results, "int8", 4).speed_ratio,
        point_of(results, "int8", 4).energy_ratio,
    )
    assert speed is not None
    assert energy is not None
    assert (speed.mean, speed.n) == (pytest.approx(2.0), 3)
    assert energy.mean == pytest.approx(0.5)
    assert point_of(results, "fp32", 4).speed_ratio == replace(speed, mean=1.0, low=1.0, high=1.0)


def test_blocks_without_their_baseline_give_no_ratio() -> None:
    found = points({"variant": "int8", "block": 1}, {"variant": "fp32", "block": 2})
    assert found[1].speed_ratio is None


def test_a_long_complete_quiet_point_has_no_verdict() -> None:
    assert verdicts({}, {}, {}) == []


def test_a_point_needs_its_presets_seconds() -> None:
    assert verdicts({"window_seconds": 9.9}, {}, {"window_seconds": 8.0}) == [
        "too short to publish: 29.9 s of 30 s"
    ]


def test_a_look_says_that_it_is_too_short_however_many_seconds_it_took() -> None:
    plan = schedule.make_plan("look", ("fp32", "int8"), concurrencies=(4,))
    assert verdicts({}, {}, {}, plan=plan) == ["too short to publish: 36.0 s of 600 s"]


@pytest.mark.parametrize(
    ("slowest_ns", "sensor_period", "floor"), [(1, 0.001, 30), (7_000_000_000, 0.001, 35), (1, 0.5, 50)]
)
def test_the_floor_is_the_longest_of_five_p99_a_hundred_sensor_periods_and_the_preset(
    slowest_ns: int, sensor_period: float, floor: float
) -> None:
    assert duration_floor_seconds(PLAN, slowest_ns, sensor_period) == floor


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"client_cpu_share": 0.95}, "the client used 95 % of a core: it may be what limits"),
        ({"failed": 40, "answered": 960}, "40 of 3000 requests failed"),
        ({"stopped": "interrupted by the user"}, "1 of its cells ended early: interrupted by the user"),
        (
            {"energy": {"gap_count": 1, "gap_seconds": 0.25}},
            "1 meter gap of 0.25 s fell in its cells",
        ),
        ({"energy": {"gap_seconds": 0.25}}, "a meter gap of 0.25 s fell in its cells"),
        ({"energy": {"unknown": 31}}, "31 of 3000 answers have no settled energy"),
        ({"energy": {"foreign_sequences": 2}}, "2 sequences of other clients ran meanwhile"),
    ],
)
def test_each_fault_of_one_block_gives_the_point_its_verdict(change: dict[str, Any], text: str) -> None:
    assert verdicts({}, change, {}) == [text]


@pytest.mark.parametrize(
    "change", [{"client_cpu_share": 0.9}, {"failed": 30, "answered": 970}, {"energy": {"unknown": 30}}]
)
def test_what_is_within_the_limits_gives_none(change: dict[str, Any]) -> None:
    assert verdicts({}, change, {}) == []


def test_fewer_than_three_blocks_are_too_few() -> None:
    assert verdicts({"window_seconds": 100.0}, {}) == ["2 of at least 3 blocks"]


def test_accuracy_counts_each_row_once_on_the_rows_that_all_variants_answered() -> None:
    labels = np.array([0, 1, 0, 1])
    predictions = {
        "fp32": {0: [0, 0], 1: [1], 2: [0], 3: [1]},
        "int8": {0: [0, 1], 1: [0], 2: [0]},
    }
    rows, found = measure_accuracy(predictions, labels)
    assert rows == 3
    assert (found["fp32"].correct, found["int8"].correct) == (3, 2)
    assert (found["fp32"].unstable_rows, found["int8"].unstable_rows) == (0, 1)
    assert found["int8"].share == pytest.approx(2 / 3)


def test_an_answer_without_a_prediction_is_wrong() -> None:
    assert measure_accuracy({"fp32": {0: [None]}}, np.array([0]))[1]["fp32"].correct == 0


def test_without_common_rows_there_is_no_accuracy() -> None:
    assert measure_accuracy({"fp32": {0: [1]}, "int8": {1: [1]}}, np.array([1, 1])) == (0, {})
    assert measure_accuracy({}, np.array([1])) == (0, {})
