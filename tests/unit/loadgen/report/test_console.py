"""The end of a sweep on the console: a table of every point, and what speaks against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.fixtures.loadgen_results import (
    ARMS,
    FP32,
    INT8,
    OPEN,
    TWIN,
    make_percentiles,
    make_point,
    make_results,
    make_server,
    with_source,
)
from wattserve_loadgen.model.results import Results, Verdict
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.report.console import summary
from wattserve_loadgen.report.text import accuracy_sentence

SHORT = Verdict("too short", "too short to publish: 15.0 s of 30 s")
DRIFT = Verdict("drift", "throughput fell by 9 % within its windows")
GAP = Verdict("meter gap", "a meter gap of 0.40 s fell in its cells", "energy")


def judged(verdicts: list[Verdict], **more: Any) -> Results:
    """A sweep at concurrency 4, of which int8 has these verdicts."""
    results = make_results(loads=[closed(4)], **more)
    points = [
        make_point(INT8, closed(4), verdicts) if point.arm == INT8.name else point for point in results.points
    ]
    return replace(results, points=points)


def test_every_point_is_a_line_with_its_figures_in_the_order_of_the_loads() -> None:
    assert summary(make_results()) == [
        "load           variant     answers/s      p50      p99"
        "  J/request   + idle        against fp32  accuracy",
        "concurrency 1  fp32             80.0  12.5 ms  22.0 ms"
        "    20.0 mJ  62.5 mJ                   1    92.0 %",
        "concurrency 1  int8              160  6.25 ms  11.0 ms"
        "    10.0 mJ  31.2 mJ  0.500× 0.490–0.510    90.0 %",
        "concurrency 1  fp32 (A/A)       80.0  12.5 ms  22.0 ms"
        "    20.0 mJ  62.5 mJ    1.00× 0.980–1.02    92.0 %",
        "concurrency 4  fp32              320  12.5 ms  22.0 ms"
        "    20.0 mJ  15.6 mJ                   1    92.0 %",
        "concurrency 4  int8              640  6.25 ms  11.0 ms"
        "    10.0 mJ  7.81 mJ  0.500× 0.490–0.510    90.0 %",
        "concurrency 4  fp32 (A/A)        320  12.5 ms  22.0 ms"
        "    20.0 mJ  15.6 mJ    1.00× 0.980–1.02    92.0 %",
        "J/request is active energy, apportioned from joules measured; its ratio has a 95 % interval over 3"
        " blocks.",
        "+ idle is a request's share of what the device draws anyway, beside its J/request.",
        "fp32 (A/A): fp32 once more. A difference below its own means nothing here.",
        "At concurrency 4, int8 saves 50 % of the active energy per request of fp32 (50 % less with its"
        " share of the idle draw) and answers 2.00× as many requests per second;"
        " accuracy 90.0 % against 92.0 %.",
    ]


def test_a_sweep_that_ended_early_says_over_how_many_blocks_its_intervals_are() -> None:
    results = make_results()
    points = []
    for point in results.points:
        assert point.figures is not None
        assert point.figures.rate_per_second is not None
        rate = replace(point.figures.rate_per_second, n=2)
        points.append(replace(point, figures=replace(point.figures, rate_per_second=rate)))
    told = " ".join(summary(replace(results, points=points)))
    assert "its ratio has a 95 % interval over 2 blocks." in told


def test_a_point_whose_figures_are_withheld_has_dashes_and_its_verdicts() -> None:
    _, _, line, _, *meanings = summary(judged([SHORT, DRIFT]))
    assert line.split() == ["concurrency", "4", "int8", *"––––––", "90.0", "%", "too", "short,", "drift"]
    assert len(meanings) == 4


def test_a_verdict_on_the_joules_alone_is_named_beside_what_stands() -> None:
    line = summary(judged([GAP]))[2]
    assert line.endswith("90.0 %  meter gap")
    assert "6.25 ms" in line


def test_that_a_look_is_too_short_is_not_said_of_each_of_its_points() -> None:
    results = judged([SHORT, DRIFT], preset="look")
    points = [replace(point, figures=point.shown) for point in results.points]
    lines = summary(replace(results, points=points))
    assert lines[2].endswith("90.0 %  drift")
    assert "640" in lines[2]


def test_what_no_sample_carries_and_no_meter_counted_is_a_dash_with_its_reason() -> None:
    point = make_point(FP32, closed(1))
    figures = replace(point.shown, latency=make_percentiles(samples=100), active_uj=None)
    results = make_results(arms=[FP32], loads=[closed(1)], accuracy={}, accuracy_reason="no labels")
    head, line, *meanings = summary(replace(results, points=[replace(point, figures=figures)]))
    assert head.split() == [
        "load",
        "variant",
        "answers/s",
        "p50",
        "p99",
        "J/request",
        "+",
        "idle",
        "against",
        "fp32",
        "accuracy",
    ]
    assert line.split() == ["concurrency", "1", "fp32", "80.0", "12.5", "ms", *"–––––"]
    assert meanings == [
        "p99 –: too few independent answers, 662 are needed (p50: 11).",
        "accuracy –: no labels.",
        "At concurrency 1, fp32 answers 80.0 requests per second.",
    ]


def test_how_many_rows_have_no_label_is_said_with_the_table_and_in_the_report() -> None:
    results = make_results()
    results = replace(results, dataset=replace(results.dataset, rows=450, unlabelled_rows=1))
    sentence = "1 of 450 dataset rows has no label: accuracy is of the others."
    assert sentence in summary(results)
    assert sentence in accuracy_sentence(results)


def test_a_proxy_is_marked_and_estimated_joules_are_called_so() -> None:
    server = with_source(quality="estimated")
    server["variants"] = make_server()["variants"]
    server["variants"][1]["proxy"] = "fp32 kernels"
    lines = summary(make_results(server=server))
    assert any("int8 (proxy)" in line for line in lines)
    assert any(
        line.startswith("J/request is active energy, apportioned from joules estimated;") for line in lines
    )


def test_each_arm_may_have_a_load_of_its_own() -> None:
    results = make_results(arms=ARMS, loads=[OPEN])
    own = [point for point in results.points if point.arm != TWIN.name]
    assert [line.split()[2] for line in summary(replace(results, points=own))[1:3]] == ["fp32", "int8"]


def test_of_nothing_measured_there_is_nothing_to_say() -> None:
    assert summary(make_results(points=[])) == []
