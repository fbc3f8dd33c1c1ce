"""Two sweeps side by side: like environments, unpaired intervals, and a floor from their A/A pairs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.loadgen_results import (
    ARMS,
    FP32,
    INT8,
    TWIN,
    make_point,
    make_record,
    make_results,
    make_server,
)
from wattserve_common.stats import Interval
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.model.codec import plain
from wattserve_loadgen.model.results import Results, Verdict
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.results.compare import (
    CAUTION,
    Change,
    Comparison,
    answers_of,
    compare,
    comparison_text,
    first_answers,
    welch_ratio,
)


def sped_up(results: Results, *factors: float) -> Results:
    """The rates of fp32's blocks, block by block, times these."""
    cells = [
        replace(cell, rate_per_second=(cell.rate_per_second or 0.0) * factors[cell.block - 1])
        if cell.arm == "fp32"
        else cell
        for cell in results.cells
    ]
    return replace(results, cells=cells)


def change(comparison: Comparison, figure: str, arm: str = "fp32", load: str = "concurrency 4") -> Change:
    (pair,) = [one for one in comparison.pairs if (one.arm, one.load) == (arm, load)]
    return next(one for one in pair.changes if one.figure == figure)


def test_the_same_sweep_does_not_differ_from_itself() -> None:
    found = compare(make_results(), make_results())
    assert [(one.arm, one.load) for one in found.pairs] == [
        ("fp32", "concurrency 1"),
        ("fp32", "concurrency 4"),
        ("int8", "concurrency 1"),
        ("int8", "concurrency 4"),
    ]
    assert {one.differs for pair in found.pairs for one in pair.changes} == {False}
    assert [one.figure for one in found.pairs[0].changes] == [
        "rate",
        "p50",
        "p95",
        "active energy",
        "total energy",
    ]


def test_a_ratio_is_of_the_second_over_the_first_with_an_unpaired_interval() -> None:
    found = change(compare(make_results(), sped_up(make_results(), 1.2, 1.25, 1.3)), "rate")
    assert found.ratio.mean == pytest.approx(1.24933, abs=1e-5)
    assert found.ratio.low == pytest.approx(1.131093, abs=1e-5)  # t is 4.302653: the first does not vary
    assert found.ratio.high == pytest.approx(1.379933, abs=1e-5)
    assert found.ratio.n == 6
    assert found.differs is True


def test_welch_counts_both_variances() -> None:
    found = welch_ratio([2.0, 2.2, 2.4], [1.0, 1.1, 1.2])
    assert found is not None
    # 4 degrees of freedom, whose t is 2.776445; the standard error of the logs is 0.074458
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(1.626480, abs=1e-5)
    assert found.high == pytest.approx(2.459299, abs=1e-5)


def test_one_block_has_a_ratio_and_no_interval() -> None:
    found = welch_ratio([2.0], [1.0, 1.1])
    assert found is not None
    assert (found.low, found.high, found.n) == (None, None, 3)
    assert welch_ratio([], [1.0]) is None
    assert welch_ratio([0.0], [1.0]) is None


def test_blocks_that_cannot_be_of_one_system_have_a_finite_interval() -> None:
    found = welch_ratio([1e30, 1e-300, 1e30], [1e30, 1e-300])
    assert found is not None
    assert found.low == 0.0
    assert found.high == sys.float_info.max


def test_nothing_below_the_rigs_own_resolution_counts_as_a_difference() -> None:
    found = change(compare(make_results(), sped_up(make_results(), 1.015, 1.015, 1.015)), "rate")
    assert found.ratio.low == pytest.approx(1.015)
    assert found.resolution == pytest.approx(0.0204, abs=1e-4)
    assert found.differs is False


def test_without_a_pair_nothing_can_be_judged() -> None:
    alone = make_results(arms=ARMS[:2])
    found = change(compare(alone, sped_up(alone, 2.0, 2.0, 2.0)), "rate")
    assert (found.resolution, found.differs) == (None, None)


def unlike(**changes: Any) -> Results:
    results = make_results()
    return replace(results, **changes)


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (unlike(client=make_results().client | {"cpu_model": "b"}), "client CPU: a CPU, then b"),
        (unlike(client=make_results().client | {"usable_cpus": 4}), "client cores: 2, then 4"),
        (
            unlike(client=make_results().client | {"governor": None}),
            "client governor: performance, then not stated",
        ),
        (
            unlike(client=make_results().client | {"packages": {"grpcio": "1.72"}}),
            "client grpcio: 1.80, then 1.72",
        ),
        (
            make_results(server=make_server(hardware="another")),
            "server hardware: a test bench, then another",
        ),
        (
            make_results(server=make_server(versions={"torch": "2.11"})),
            "server torch: 2.13, then 2.11",
        ),
        (make_results(server=make_server(model_name="big")), "model: demo, then big"),
        (
            unlike(dataset=replace(make_results().dataset, sha256="cd" * 32)),
            "dataset: abababababab, then cdcdcdcdcdcd",
        ),
        (make_results(preset="full"), "preset: quick, then full; seconds of a window: 12, then 125"),
    ],
)
def test_an_unlike_environment_is_refused_by_name(second: Results, text: str) -> None:
    with pytest.raises(ResultsError) as caught:
        compare(make_results(), second)
    assert str(caught.value) == (
        f"these results are not of one environment: {text} (--force compares them all the same)"
    )
    assert compare(make_results(), second, force=True).mismatches == text.split("; ")


def test_another_meter_is_another_environment() -> None:
    server = make_server()
    server["meter"]["boundary"] = "all of it"
    server["meter"]["source"] |= {"quality": "estimated"}
    found = compare(make_results(), make_results(server=server), force=True).mismatches
    assert found == [
        "energy quality: measured, then estimated",
        "energy boundary: CPU package 0, then all of it",
    ]


def test_a_point_with_a_verdict_has_no_ratio_but_its_reason() -> None:
    spoilt = make_point(FP32, closed(1), [Verdict("drift", "throughput fell by 9 %")])
    second = make_results(points=[spoilt, make_point(INT8, closed(1))])
    found = compare(make_results(), second)
    assert found.pairs[0].changes == []
    assert found.pairs[0].verdicts == ["second: throughput fell by 9 %"]
    assert found.unmatched == [
        "fp32, concurrency 4: only in the first",
        "int8, concurrency 4: only in the first",
    ]


def test_joules_that_are_withheld_are_not_compared() -> None:
    point = make_point(FP32, closed(1))
    assert point.figures is not None
    blank = replace(point, figures=replace(point.figures, active_uj=None, total_uj=None))
    found = compare(make_results(), make_results(points=[blank]))
    assert [one.figure for one in found.pairs[0].changes] == ["rate", "p50", "p95"]


def answered(wrong: int) -> Iterator[Record]:
    """By fp32, which got the first rows wrong."""
    for row in range(20):
        yield make_record(rows=[row], predicted=[int(row >= wrong)])
    yield make_record(rows=[0], predicted=[1])  # a later answer does not count


def test_accuracy_is_paired_on_the_rows_of_both() -> None:
    answers = answers_of(answered(2), answered(6))
    found = compare(make_results(), make_results(), answers=answers).accuracy["fp32"]
    assert (found.items, found.difference) == (20, -0.2)
    assert found.p == pytest.approx(0.125)


def test_without_labels_accuracy_is_not_compared_and_says_why() -> None:
    assert first_answers(iter([make_record(labels=[None])])) is None
    assert answers_of(iter([]), answered(1)) is None
    assert compare(make_results(), make_results()).accuracy_reason == "one of them has no records with labels"


def test_the_table_warns_first_and_judges_every_ratio() -> None:
    lines = comparison_text(compare(make_results(), sped_up(make_results(), 1.2, 1.25, 1.3))).splitlines()
    assert lines[3] == CAUTION
    assert "38 %" in CAUTION
    assert lines[5].split()[:5] == ["variant", "load", "figure", "second", "/"]
    assert lines[6].split() == [
        "fp32",
        "concurrency",
        "1",
        "rate",
        "1.25×",
        "1.13–1.38",
        "±",
        "2.0",
        "%",
        "differs",
    ]
    assert lines[7].endswith("no difference")
    assert lines[-1] == "accuracy is not compared: one of them has no records with labels"


def test_twins_that_differ_by_more_than_twice_allow_no_conclusion() -> None:
    results = make_results(loads=[closed(1)])
    points = []
    for point in results.points:
        figures = point.shown
        if point.arm == TWIN.name:
            ratios = replace(figures.ratios, rate=Interval(1.3, 0.4, 4.0, 3))
            figures = replace(figures, ratios=ratios)
        points.append(replace(point, figures=figures))
    coarse = replace(results, points=points)
    (line,) = [line for line in comparison_text(compare(coarse, results)).splitlines() if " rate " in line][
        :1
    ]
    assert line.endswith("more than 2×: no conclusion  cannot be judged")


def test_a_comparison_is_plain_json_too() -> None:
    found = plain(compare(make_results(), make_results()))
    assert found["pairs"][0]["changes"][0]["ratio"]["mean"] == 1.0


def test_welch_rounds_its_degrees_of_freedom_down() -> None:
    found = welch_ratio([2.0, 2.2, 2.4, 2.1], [1.0, 1.5, 0.8])  # 2.18 degrees: taken as 2
    assert found is not None
    assert found.low == pytest.approx(0.909299, abs=1e-5)
    assert found.high == pytest.approx(4.586140, abs=1e-4)
