"""What a report says of the A/A pair, and of what is compared with the baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fixtures.loadgen_pages import Page, default_page
from tests.fixtures.loadgen_results import ARMS, FP32, TWIN, make_point, make_results
from wattserve_common.stats import Interval
from wattserve_loadgen.model.ratios import Ratios
from wattserve_loadgen.model.results import Results, Verdict
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.report.page import render
from wattserve_loadgen.report.scene import ACTIVE, resolved
from wattserve_loadgen.report.tables import accuracy_table, energy_table, ratio_table, summary_table
from wattserve_loadgen.report.text import headline, twin_sentence, twin_sentences


def with_ratios(arm: str, ratios: Ratios) -> Results:
    results = make_results()
    points = [
        replace(one, figures=replace(one.shown, ratios=ratios)) if one.arm == arm else one
        for one in results.points
    ]
    return replace(results, points=points)


def test_the_twin_is_left_out_of_ordinary_tables_and_charts() -> None:
    results = make_results()
    assert [row[0].text for row in summary_table(results, closed(4)).rows] == ["fp32", "int8"]
    assert [row[0].text for row in energy_table(results, [closed(4)]).rows] == ["fp32", "int8"]
    found = default_page()
    for title in ("Median latency", "Energy per request", "The tail", "Batch sizes", "Compared with fp32"):
        assert "fp32 (A/A)" not in found.figure(title)


def test_the_twin_says_how_far_equal_arms_differ() -> None:
    ratios = Ratios(active_energy=Interval(1.012, 0.995, 1.03, 3), rate=Interval(0.99, None, None, 1))
    assert twin_sentence(with_ratios(TWIN.name, ratios), closed(4)) == (
        "fp32, measured twice under two names, differed at concurrency 4 by +1.2 % (−0.5 to +3.0 %) in active"
        " energy, −1.0 % in throughput: smaller differences than that mean nothing here."
    )


def test_without_a_twin_the_resolution_is_said_to_be_unknown() -> None:
    assert twin_sentences(make_results(arms=[FP32])) == [
        "No variant was measured twice under two names, so this rig's own resolution is not known."
    ]
    assert twin_sentences(with_ratios(TWIN.name, Ratios())) == [
        "The baseline's second measurement has no figures: the rig's own resolution is not known."
    ]
    assert twin_sentences(make_results(points=[])) == []


def test_a_spoiled_twin_says_nothing() -> None:
    results = make_results()
    late = Verdict("late sends", "9 % were late")
    points = [
        make_point(TWIN, results.load(one.load), [late]) if one.arm == TWIN.name else one
        for one in results.points
    ]
    assert twin_sentence(replace(results, points=points), closed(4)) == ""


def test_the_page_prints_the_resolution_beside_the_figures_and_the_band_beside_the_ratios() -> None:
    found = default_page()
    assert "measured twice under two names, differed at concurrency 4 by" in found.text
    compared = found.figure("Compared with fp32 at concurrency 4")
    assert "The grey band is how far fp32 differs from itself" in compared


@pytest.mark.parametrize(
    ("low", "mean", "high", "shown"),
    [
        (0.95, 0.97, 0.99, False),  # less than the 4 % by which equal arms differ
        (0.90, 0.92, 0.94, True),
        (1.07, 1.09, 1.11, True),
        (0.70, 0.92, 1.10, False),
    ],
)
def test_a_difference_within_that_of_equal_arms_is_none(
    low: float, mean: float, high: float, shown: bool
) -> None:
    results = with_ratios(TWIN.name, Ratios(active_energy=Interval(1.0, 0.96, 1.03, 3)))
    assert resolved(results, closed(4), Interval(mean, low, high, 3), ACTIVE) is shown


def test_a_difference_is_not_claimed_where_the_rigs_resolution_is_unknown() -> None:
    small = Interval(0.99, 0.985, 0.995, 3)
    assert not resolved(make_results(arms=ARMS[:2]), closed(4), small, ACTIVE)
    assert not resolved(with_ratios(TWIN.name, Ratios()), closed(4), Interval(0.5, 0.4, 0.6, 3), ACTIVE)
    assert headline(make_results(arms=ARMS[:2])) == (
        "At concurrency 4, no difference in active energy per request between int8 and fp32 could be shown,"
        " nor in speed (without figures of an A/A pair this rig's resolution is not known); accuracy 90.0 %"
        " against 92.0 %."
    )


def test_the_headline_claims_nothing_that_equal_arms_differ_by() -> None:
    wide = Interval(1.0, 0.4, 2.5, 3)
    text = headline(with_ratios(TWIN.name, Ratios(active_energy=wide, rate=wide)))
    assert (
        "no difference in active energy per request between int8 and fp32 could be shown, nor in speed"
        in text
    )


def test_ratios_stand_in_a_table_with_the_twin_last() -> None:
    table = ratio_table(make_results(), closed(4))
    assert [row[0].text for row in table.rows] == ["int8", "fp32 (A/A)"]
    assert table.columns == (
        "against fp32",
        "active energy",
        "total energy",
        "p50 latency",
        "p95 latency",
        "throughput",
    )
    assert [entry.text for entry in table.rows[0]][1:] == ["0.500×", "0.500×", "0.500×", "0.500×", "2.00×"]


def test_a_missing_ratio_says_why() -> None:
    table = ratio_table(with_ratios("int8", Ratios(reason="fp32 has no valid point here")), closed(4))
    assert [entry.text for entry in table.rows[0]] == ["int8", "fp32 has no valid point here"]


def test_accuracy_is_paired_with_the_baseline_on_the_same_rows() -> None:
    rows = [
        [f"{entry.text} {entry.below}".strip() for entry in row]
        for row in accuracy_table(make_results()).rows
    ]
    assert rows[0] == ["fp32", "92 of 100", "92.0 % 85.0–97.0", "–", "–", "–", "–", "0"]
    assert rows[1] == [
        "int8",
        "90 of 100",
        "90.0 % 83.0–95.0",
        "−2.0 points −6.0 to +2.0",
        "1",
        "3",
        "0.625",
        "0",
    ]


def test_receipts_stand_beside_the_meters_own_count_with_the_difference() -> None:
    row = energy_table(make_results(), [closed(4)]).rows[0]
    assert [entry.text for entry in row] == [
        "fp32",
        "concurrency 4",
        "20.0 mJ",
        "15.6 mJ",
        "35.6 mJ",
        "35.6 mJ",
        "0.0 %",
        "800 µJ",
        "640 µJ",
    ]
    assert row[6].below == "−1.0 to +1.0"


def test_two_arms_without_a_twin_still_have_their_forest() -> None:
    found = Page(render(make_results(arms=ARMS[:2]), {}))
    assert "grey band" not in found.figure("Compared with fp32 at concurrency 4")
