"""What a report says of open loops: response time, coordinated omission, goodput, searches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.fixtures.loadgen_pages import Page, columns_for, make_sheet
from tests.fixtures.loadgen_results import FP32, INT8, OPEN, PEER, make_point, make_results
from wattserve_loadgen.model.results import Results, Search, Trial, Verdict
from wattserve_loadgen.plan.load import OFFLINE, POISSON, RAMP, Load, closed
from wattserve_loadgen.report.console import summary
from wattserve_loadgen.report.load_charts import goodput_against_offered, in_lines, latency_against_rate
from wattserve_loadgen.report.page import render
from wattserve_loadgen.report.record_charts import batch_shares
from wattserve_loadgen.report.scene import main_loads, shown_points, table_loads
from wattserve_loadgen.report.tables import summary_table, trials_table
from wattserve_loadgen.report.text import headline, search_sentence
from wattserve_loadgen.report.trade_charts import time_stages

FASTER = Load(POISSON, rate=80.0)
RATES = (OPEN, FASTER)
MIXED = (closed(1), closed(4), *RATES)
TRIALS = [
    Trial(100, 99.8, 8, "met", "p99 at most 40.0 ms", 798, 702.3),
    Trial(200, 150.0, 4, "broken", "p99 above 210 ms"),  # as older results have it
]
FOUND = "the highest rate lies between 100/s and 200/s; the time was up"
SEARCH = Search("int8", "p99<50ms", 100.0, 200.0, TRIALS, FOUND)


def with_objective(results: Results) -> Results:
    points = [
        replace(point, figures=replace(point.shown, goodput_share=0.9)) if point.offered_per_second else point
        for point in results.points
    ]
    return replace(results, points=points, plan=replace(results.plan, objective="p99<50ms"))


@cache
def open_page() -> Page:
    return Page(render(make_results(loads=RATES), columns_for(*RATES)))


def test_every_latency_chart_of_an_open_loop_says_that_it_is_response_time() -> None:
    found = open_page()
    latency = [figure for figure in found.figures if "latency" in figure.lower()]
    assert len(latency) == 7
    assert all("esponse time (open loop: counted from the schedule)" in figure for figure in latency)
    assert "closed loop: there is no schedule" not in " ".join(found.figures)


@pytest.mark.long
def test_mixed_loads_name_both_kinds_of_time_and_both_kinds_of_mark() -> None:
    found = Page(render(make_results(loads=MIXED), columns_for(*MIXED)))
    median = found.figure("Median latency")
    assert "Service time (closed loop: there is no schedule) and response time (open loop" in median
    assert "closed loop, its concurrency" in median
    assert len([figure for figure in found.figures if figure.strip().startswith("The tail")]) == 2


def test_closed_and_open_loads_are_never_joined_nor_are_two_ramps() -> None:
    ramps = (Load(RAMP, rate=1, rate_end=9), Load(RAMP, rate=2, rate_end=9))
    results = make_results(arms=[FP32], loads=(*MIXED, *ramps))
    lines = [[point.load.name for point in line] for line in in_lines(shown_points(results))]
    assert lines == [
        ["concurrency 1", "concurrency 4"],
        ["40/s poisson", "80/s poisson"],
        ["1-9/s ramp"],
        ["2-9/s ramp"],
    ]


def test_the_tail_of_an_open_loop_shows_response_and_service_time_and_what_the_gap_is() -> None:
    found = open_page()
    tail = found.figure("The tail at 80 requests per second (Poisson)")
    assert "response time" in tail
    assert "service time" in tail
    assert "(coordinated omission)" in tail


def test_the_lag_has_its_own_part_of_the_time_and_the_parts_sum_to_the_whole() -> None:
    seen = shown_points(make_results(arms=[FP32], loads=[OPEN]))[0]
    lag, queue, compute, rest = time_stages(seen)
    assert lag == pytest.approx(0.065)
    assert (queue, compute) == (2.0, 9.0)
    assert lag + queue + compute + rest == pytest.approx(13.0)


def test_what_no_server_says_is_rest_and_not_zero_latency() -> None:
    seen = shown_points(make_results(arms=[FP32]))[0]
    silent = replace(seen, figures=replace(seen.figures, mean_queue_ns=None, mean_compute_ns=None))
    assert time_stages(silent) == (0.0, 0.0, 0.0, 13.0)


def test_everything_at_once_is_on_no_latency_chart() -> None:
    offline = Load(OFFLINE, concurrency=64)
    sheet = make_sheet(make_results(arms=[FP32], loads=[offline]))
    assert latency_against_rate(sheet, 50) is None
    assert "Offline, 64 in flight" in Page(render(make_results(arms=[FP32], loads=[offline]), {})).text


def test_the_load_that_stands_for_all_is_the_heaviest_of_which_most_arms_have_figures() -> None:
    results = make_results(arms=(FP32, INT8), loads=MIXED)
    late = Verdict("late sends", "9 % were late")
    points = [
        make_point(FP32, FASTER, [late]) if (one.arm, one.load) == ("fp32", FASTER.name) else one
        for one in results.points
    ]
    assert main_loads(results) == [closed(4), FASTER]
    assert main_loads(replace(results, points=points)) == [closed(4), OPEN]
    assert table_loads(results) == [closed(4), closed(1), FASTER, OPEN]


def test_loads_are_said_in_words() -> None:
    assert closed(4).phrase == "at concurrency 4"
    assert closed(4, 8).phrase == "at concurrency 4, 8 sequences each"
    assert OPEN.phrase == "at 40 requests per second (Poisson)"
    assert Load(RAMP, rate=1, rate_end=9).phrase == "in a ramp from 1 to 9 requests per second"


def test_under_a_schedule_the_headline_speaks_of_latency_and_not_of_throughput() -> None:
    assert headline(make_results(loads=[OPEN])) == (
        "At 40 requests per second (Poisson), int8 saves 50 % of the active energy per request of fp32"
        " (7 % less with its share of the idle draw) and has 0.500× the median latency;"
        " accuracy 90.0 % against 92.0 %."
    )


def test_under_a_schedule_the_table_compares_the_median_latency() -> None:
    table = summary_table(make_results(loads=[OPEN]), OPEN)
    assert (table.columns[-2], table.rows[1][-2].text) == ("p50 ratio", "0.500×")


def test_goodput_is_drawn_only_where_there_is_an_objective() -> None:
    results = make_results(loads=RATES)
    assert goodput_against_offered(make_sheet(results)) is None
    found = Page(render(with_objective(results), {})).figure("Goodput against offered rate")
    assert "Objective: p99<50ms." in found
    assert "answers per second within the objective" in found


def test_a_search_says_between_which_rates_the_answer_lies() -> None:
    said = "int8 within p99<50ms: the highest rate lies between 100/s and 200/s; the time was up."
    assert search_sentence(SEARCH) == said


@pytest.mark.parametrize(
    ("held", "broken", "undecided", "said"),
    [
        (367.5, 418.2, None, "the highest rate lies between 367.5/s and 418.2/s"),
        (367.5, 418.2, 401, "the highest rate lies between 367.5/s and 418.2/s; 401/s could not be decided"),
        (367.5, None, 401, "the highest rate is at least 367.5/s; 401/s could not be decided"),
        (367.5, None, None, "the highest rate is at least 367.5/s"),
        (None, 30, None, "no rate held; 30/s did not"),
        (None, None, 30, "no rate held; 30/s could not be decided"),
        (None, None, None, "no rate was decided"),
    ],
)
def test_a_search_that_was_interrupted_keeps_what_it_knows(
    held: float | None, broken: float | None, undecided: float | None, said: str
) -> None:
    search = Search("fp32", "p90<60ms", held, broken, TRIALS, "", undecided)
    sentence = f"fp32 within p90<60ms: {said}; the search was not finished."
    results = make_results(points=[], searches=[search], ended="interrupted by the user")
    assert headline(results) == search_sentence(search) == summary(results)[0] == sentence


def test_a_search_shows_each_trial_with_what_decided_it() -> None:
    results = make_results(points=[], searches=[SEARCH])
    assert [[entry.text for entry in row] for row in trials_table(results).rows] == [
        ["int8", "p99<50ms", "100/s", "99.8/s", "8.0 s", "798", "≈ 702", "held", "p99 at most 40.0 ms"],
        ["int8", "p99<50ms", "200/s", "150/s", "4.0 s", "–", "–", "not held", "p99 above 210 ms"],
    ]
    found = Page(render(results, {}))
    assert "int8 within p99<50ms: the highest rate" in found.text
    assert "not held" in found.figure("The highest rate within p99<50ms")


def test_each_batch_counts_once_however_many_requests_saw_it() -> None:
    assert batch_shares(np.array([1.0, 1, 4, 4, 4, 4, np.nan])).tolist() == pytest.approx(
        [0, 2 / 3, 0, 0, 1 / 3]
    )
    assert batch_shares(np.array([np.nan])).tolist() == []


def test_a_sweep_of_a_peer_names_both_servers_and_who_read_the_meter() -> None:
    found = Page(render(make_results(arms=(FP32, PEER)), {}))
    assert "open inference protocol at 127.0.0.1:8001" in found.text
    assert "read by loadgen" in found.text
    assert "triton: demo" in found.figure("Median latency")
