"""Objectives: how they are written, and what a sample says of them."""

from __future__ import annotations

import numpy as np
import pytest

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.figures.slo import Objective, goodput_share, judge, parse_objectives

MS = 1_000_000


@pytest.mark.parametrize(
    ("text", "objectives"),
    [
        ("p99<50ms", [Objective(99.0, 50 * MS)]),
        ("p95<=20ms", [Objective(95.0, 20 * MS, strict=False)]),
        ("p99<50ms,p50<10ms", [Objective(99.0, 50 * MS), Objective(50.0, 10 * MS)]),
        (
            " P99.9 < 1.5 s , p90 <= 250us ",
            [Objective(99.9, 1500 * MS), Objective(90.0, 250_000, strict=False)],
        ),
        ("p50<.5ms", [Objective(50.0, 500_000)]),
    ],
)
def test_objectives_are_read_in_order(text: str, objectives: list[Objective]) -> None:
    assert list(parse_objectives(text)) == objectives


@pytest.mark.parametrize("text", ["p99<50ms", "p95<=20ms", "p99.9<1500ms", "p50<2s", "p90<250us"])
def test_an_objective_is_written_as_it_was_read(text: str) -> None:
    assert parse_objectives(text)[0].text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an objective is missing"),
        ("p99<50ms,", "an objective is missing"),
        ("p99>50ms", "'p99>50ms' is not an objective"),
        ("fast", "'fast' is not an objective"),
        ("p99<-5ms", "is not an objective"),
        ("p99<50", "it has no unit; write us, ms or s"),
        ("p99<50min", "the unit 'min' is unknown"),
        ("p98<50ms", "p98 is not measured; choose from p50 p90 p95 p99 p99.9"),
        ("p99<0ms", "a limit is at least 1us"),
        ("p99<1e9s", "the unit 'e' is unknown|is not an objective"),
        ("p99<999999s", "at most 86400s"),
        ("p99<50ms,p99<20ms", "p99 has two limits"),
    ],
)
def test_what_is_no_objective_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message) as error:
        parse_objectives(text)
    assert "\n" not in str(error.value)


THOUSAND = np.arange(1, 1_001, dtype=np.int64) * MS  # 1 ms to 1 s; p99: bounds 981 ms and 999 ms


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("p99<=999ms", "met"),
        ("p99<999ms", "undecided"),
        ("p99<985ms", "undecided"),
        ("p99<970ms", "broken"),
        ("p99<=999ms,p50<600ms", "met"),
        ("p99<=999ms,p50<400ms", "broken"),
        ("p99<985ms,p50<600ms", "undecided"),
        ("p99<985ms,p50<400ms", "broken"),
        ("p99.9<2s", "undecided"),
        ("p99.9<500ms", "broken"),
    ],
)
def test_an_objective_is_met_or_broken_only_beyond_its_bounds(text: str, verdict: str) -> None:
    assert judge(parse_objectives(text), THOUSAND, 1_000.0, 0, 1_000).verdict == verdict


@pytest.mark.parametrize(
    ("text", "effective", "said"),
    [
        ("p99<=999ms", 1_000.0, "p99 at most 999 ms"),
        ("p99<985ms", 1_000.0, "p99 between 981 ms and 999 ms"),
        ("p99<970ms", 1_000.0, "p99 above 981 ms"),
        ("p99<2s", 512.4, "p99 not known: 1,000 requests are worth 512 independent ones, 662 are needed"),
        ("p99<=999ms,p50<600ms", 1_000.0, "p99 at most 999 ms; p50 at most 539 ms"),
    ],
)
def test_a_judgement_says_what_decided_or_what_was_missing(text: str, effective: float, said: str) -> None:
    assert judge(parse_objectives(text), THOUSAND, effective, 0, 1_000).text == said


def test_dependent_samples_decide_less() -> None:
    met = parse_objectives("p99<2s")
    assert judge(met, THOUSAND, 700.0, 0, 1_000).verdict == "met"
    assert judge(met, THOUSAND, 600.0, 0, 1_000).verdict == "undecided"


def test_failed_requests_count_as_infinitely_late() -> None:
    values = np.full(9_950, 5 * MS, dtype=np.int64)
    easy = parse_objectives("p99<10ms")
    assert judge(easy, values, 9_950.0, 50, 10_000).verdict == "met"
    assert judge(easy, values[:9_910], 9_910.0, 90, 10_000).verdict == "undecided"
    assert judge(parse_objectives("p99.9<10ms"), values, 9_950.0, 50, 10_000).verdict == "broken"


def test_more_than_one_failure_in_a_hundred_breaks_any_objective() -> None:
    values = np.full(980, 5 * MS, dtype=np.int64)
    found = judge(parse_objectives("p50<10ms"), values, 980.0, 20, 1_000)
    assert (found.verdict, found.text) == ("broken", "20 of 1,000 requests failed")
    assert judge(parse_objectives("p50<10ms"), values, 980.0, 9, 1_000).verdict == "met"


def test_requests_still_unanswered_are_late_even_if_they_did_not_fail() -> None:
    found = judge(parse_objectives("p50<10ms"), np.full(100, 5 * MS, dtype=np.int64), 100.0, 0, 1_000)
    assert found.verdict == "broken"
    assert found.text == "p50 among requests without an answer"


def test_no_requests_decide_nothing() -> None:
    found = judge(parse_objectives("p50<10ms"), np.array([], dtype=np.int64), None, 0, 0)
    assert found.verdict == "undecided"
    assert found.text == "p50 not known: 0 requests are worth 0 independent ones, 11 are needed"
    assert goodput_share(parse_objectives("p50<10ms"), np.array([], dtype=np.int64), 0) is None


def test_goodput_counts_the_answers_within_the_limit_of_the_highest_percentile() -> None:
    values = np.array([5, 9, 10, 30, 60], dtype=np.int64) * MS
    assert goodput_share(parse_objectives("p99<50ms,p50<10ms"), values, 10) == 0.4
    assert goodput_share(parse_objectives("p50<10ms,p99<50ms"), values, 10) == 0.4
    assert goodput_share(parse_objectives("p50<=10ms"), values, 10) == 0.3


def test_a_system_that_holds_its_objectives_has_all_the_goodput() -> None:
    """A median below 10 ms leaves half of the answers above it."""
    values = np.tile(np.array([8, 9, 20], dtype=np.int64) * MS, 1000)
    objectives = parse_objectives("p50<10ms,p99<50ms")
    assert judge(objectives, values, 3000.0, 0, 3000).verdict == "met"
    assert goodput_share(objectives, values, 3000) == 1.0


def test_more_answers_than_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="5 answered and 1 failed of 5 sent"):
        judge(parse_objectives("p50<10ms"), np.arange(5, dtype=np.int64), 5.0, 1, 5)
