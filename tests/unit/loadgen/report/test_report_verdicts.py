"""What a report does with points that failed a gate, with looks, and with quick sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from tests.fixtures.loadgen_pages import COLUMNS, Page, default_html, default_page
from tests.fixtures.loadgen_results import ARMS, FP32, INT8, make_point, make_results
from wattserve_loadgen.model.results import Check, Results, Verdict
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.report.load_charts import knee_of
from wattserve_loadgen.report.page import render
from wattserve_loadgen.report.scene import shown_points, shown_under, twin_of_baseline
from wattserve_loadgen.report.tables import (
    checks_table,
    energy_table,
    gates_table,
    summary_table,
    validity_table,
)
from wattserve_loadgen.report.text import banners, headline, verdicts_sentence
from wattserve_loadgen.report.trade_charts import Quality, pareto_line

BUSY = Verdict("client busy", "the client used 95 % of a core")
GAP = Verdict("meter gap", "a meter gap of 0.40 s", "energy")
SHORT = Verdict("too short", "too short to publish: 6 s of 600 s")


def spoiled(verdicts: Sequence[Verdict], arm: str = "int8", preset: str = "quick") -> Results:
    """Every point of that arm has these verdicts; a look shows its figures all the same."""
    results = make_results(preset=preset)
    points = []
    for point in results.points:
        if point.arm == arm:
            made = make_point(results.arm(arm), results.load(point.load), verdicts)
            point = replace(made, figures=made.shown) if preset == "look" else made
        points.append(point)
    return replace(results, points=points)


@cache
def spoiled_html() -> str:
    return render(spoiled([BUSY]), COLUMNS)


def test_a_spoiled_point_shows_its_verdict_and_none_of_its_figures() -> None:
    table = summary_table(spoiled([BUSY]), closed(4))
    texts = [entry.text for entry in table.rows[1]]
    assert texts == ["int8", "cpu", BUSY.text, "90.0 %", "2.50 MB", "–", "–"]
    assert sum(entry.span for entry in table.rows[1]) == len(table.columns)


def test_a_spoiled_point_has_a_verdict_in_the_table_of_energies_too() -> None:
    rows = energy_table(spoiled([BUSY]), [closed(4)]).rows
    assert [entry.text for entry in rows[1]] == ["int8", "concurrency 4", BUSY.text]


def test_a_verdict_on_the_energy_alone_leaves_the_latency() -> None:
    results = spoiled([GAP])
    points = [
        replace(one, figures=replace(one.shown, active_uj=None, idle_uj=None)) if one.verdicts else one
        for one in results.points
    ]
    texts = {
        name: (entry.text, entry.below)
        for name, entry in zip(
            summary_table(results, closed(4)).columns,
            summary_table(replace(results, points=points), closed(4)).rows[1],
            strict=True,
        )
    }
    assert texts["energy per request"] == ("–", "meter gap")
    assert texts["latency p50"] == ("6.25 ms", "≤ 6.38 ms")


def test_a_look_shows_its_figures_beside_the_verdict_and_says_so() -> None:
    results = spoiled([SHORT], preset="look")
    entries = summary_table(results, closed(4)).rows[1]
    assert (entries[0].text, entries[0].below) == ("int8", "too short")
    assert entries[2].text == "640"
    assert ("loud", "Too short to publish") in [(one.kind, one.title) for one in banners(results)]
    assert headline(results).endswith("Too short to publish: only a look.")


def test_a_quick_sweep_is_labelled_with_its_blocks() -> None:
    assert "A quick sweep: 3 blocks" in [one.title for one in banners(make_results())]


def test_a_full_sweep_has_no_such_label() -> None:
    full = make_results(preset="full")
    full = replace(full, plan=replace(full.plan, blocks=5))
    assert not any("quick" in one.title or "short" in one.title for one in banners(full))


def test_the_banner_counts_the_verdicts_by_gate() -> None:
    banner = next(one for one in banners(spoiled([BUSY, GAP])) if one.title == "Some points have a verdict")
    assert banner.text == (
        "2 of 6 points have a verdict instead of figures: client busy (2). Charts draw them hollow."
    )


def test_verdicts_on_the_joules_alone_are_counted_apart() -> None:
    assert verdicts_sentence(spoiled([GAP])) == (
        "2 of 6 points have a verdict instead of joules: meter gap (2)"
    )


def test_a_look_counts_only_what_speaks_against_some_of_its_points() -> None:
    assert verdicts_sentence(spoiled([SHORT], preset="look")) == ""
    assert verdicts_sentence(spoiled([SHORT, BUSY], preset="look")) == (
        "2 of 6 points have a verdict beside figures: client busy (2)"
    )


@pytest.mark.long
def test_spoiled_points_are_drawn_hollow() -> None:
    hollow = spoiled_html()
    assert hollow.count("fill: #ffffff") > default_html().count("fill: #ffffff")


def test_no_figure_of_a_spoiled_point_is_written_beside_a_chart() -> None:
    found = Page(spoiled_html())
    for title, figure in (
        ("Where the time goes", "6.50 ms"),
        ("Compared with fp32", "0.500×"),
        ("Accuracy against energy", "8.50 ms"),
        ("Batch sizes", "int8: mean 1.60"),
    ):
        assert figure in default_page().figure(title)
        assert figure not in found.figure(title)
        assert "verdict" in found.figure(title)


def best_arms(results: Results) -> list[str]:
    qualities = {arm: Quality(one.share, one.low, one.high) for arm, one in results.accuracy.items()}
    return [one.arm for one in pareto_line(shown_under(results, closed(4)), qualities)]


def test_a_hollow_point_is_never_on_the_pareto_line() -> None:
    assert best_arms(make_results()) == ["int8", "fp32"]
    assert best_arms(spoiled([BUSY])) == ["fp32"]
    assert best_arms(spoiled([GAP])) == ["fp32"]


def test_the_knee_is_where_more_load_buys_less_rate_than_it_costs_latency() -> None:
    results = make_results(arms=[FP32], loads=[closed(1), closed(2), closed(4), closed(8)])
    line = []
    for point, rate, latency in zip(
        shown_points(results), (80, 160, 200, 205), (12e6, 13e6, 20e6, 40e6), strict=True
    ):
        figures = point.figures
        assert figures.rate_per_second is not None
        figures = replace(
            figures,
            rate_per_second=replace(figures.rate_per_second, mean=float(rate)),
            latency=replace(figures.latency, mean_ns=latency),
        )
        line.append(replace(point, figures=figures))
    knee = knee_of(line)
    assert knee is not None
    assert knee.load == closed(2)
    assert knee_of(line[:2]) is None
    assert knee_of(line[1:]) is None


def test_points_that_all_failed_leave_no_claim() -> None:
    results = make_results(arms=ARMS[:2])
    points = [make_point(results.arm(one.arm), results.load(one.load), [BUSY]) for one in results.points]
    results = replace(results, points=points)
    assert headline(results) == "No point of this sweep has figures: each has a verdict instead."
    found = Page(render(results, {}))
    assert BUSY.text in found.text
    assert "6.25 ms" not in " ".join(found.tables)


def test_a_sweep_that_ended_after_its_twin_alone_has_a_report() -> None:
    results = make_results()
    twin = twin_of_baseline(results)
    results = replace(results, points=[point for point in results.points if point.arm == twin])
    assert results.points
    assert headline(results) == "It ended before anything but the twin of fp32 was measured."
    assert Page(render(results, {})).text


def test_without_the_baselines_figures_there_is_nothing_to_compare_with() -> None:
    assert headline(spoiled([BUSY], arm="fp32")) == (
        "At concurrency 4, fp32 has no figures, so there is nothing to compare with."
    )


def test_every_point_is_in_the_validity_table_with_its_verdict_or_as_passed() -> None:
    rows = [[entry.text for entry in row] for row in validity_table(spoiled([BUSY, GAP])).rows]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("fp32", "concurrency 1", "passed"),
        ("fp32", "concurrency 4", "passed"),
        ("int8", "concurrency 1", f"{BUSY.text}; {GAP.text}"),
        ("int8", "concurrency 4", f"{BUSY.text}; {GAP.text}"),
        ("fp32 (A/A)", "concurrency 1", "passed"),
        ("fp32 (A/A)", "concurrency 4", "passed"),
    ]
    assert rows[0][-2] == "1,250 µs"


def test_a_gate_that_failed_says_what_it_spoils_and_where() -> None:
    assert [[entry.text for entry in row] for row in gates_table(spoiled([BUSY, GAP])).rows] == [
        ["client busy", "2 of 6", "all its figures", "int8, concurrency 1; int8, concurrency 4"],
        ["meter gap", "2 of 6", "its joules", "int8, concurrency 1; int8, concurrency 4"],
    ]
    assert gates_table(make_results()).rows == []


@pytest.mark.parametrize(("passed", "text"), [(True, "passed"), (False, "FAILED"), (None, "does not apply")])
def test_the_checklist_says_how_each_check_ended(passed: bool | None, text: str) -> None:
    results = make_results(checks=[Check("steady power", passed, "31 % deviation")])
    assert [entry.text for entry in checks_table(results).rows[0]] == ["steady power", text, "31 % deviation"]
    titles = [one.title for one in banners(results)]
    assert ("1 check of loadgen validate failed" in titles) == (passed is False)


def test_the_checklist_is_on_the_page() -> None:
    results = make_results(points=[], checks=[Check("steady power", False, "31 % deviation")])
    assert "31 % deviation" in Page(render(results, {})).text


def test_an_arm_with_no_point_is_missing_and_not_a_row_of_zeros() -> None:
    results = make_results()
    results = replace(results, points=[one for one in results.points if one.arm != INT8.name])
    assert [row[0].text for row in summary_table(results, closed(4)).rows] == ["fp32"]
