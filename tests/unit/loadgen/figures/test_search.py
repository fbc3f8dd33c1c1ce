"""The search for the highest rate: where it looks next, what it doubts, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from wattserve_common.stats import effective_samples
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.figures.search import RateSearch
from wattserve_loadgen.figures.slo import judge, parse_objectives

Says = tuple[str, str]
MET: Says = ("met", "")
BROKEN: Says = ("broken", "it is broken")
UNDECIDED: Says = ("undecided", "it is undecided")


def run(search: RateSearch, outcome: Callable[[float], Says]) -> list[float]:
    """The rates tried, each answered by `outcome`."""
    tried = []
    while (rate := search.next_rate()) is not None:
        tried.append(rate)
        search.record(rate, rate, *outcome(rate))
    return tried


def test_rates_double_then_halve_in_logarithms_and_both_ends_are_tried_again() -> None:
    search = RateSearch(100.0, ratio=1.5)
    tried = run(search, lambda rate: MET if rate < 300 else BROKEN)
    root = 200 * math.sqrt(2)
    assert tried == pytest.approx([100, 200, 400, root, 400, root])
    found = search.result()
    assert (found.rate_per_second, found.ratio) == pytest.approx((root, 2**0.5))
    assert (found.broken_at, found.trials, found.reason) == (400, 6, "it is broken")


def test_a_start_that_is_too_high_halves_down() -> None:
    tried = run(RateSearch(800.0, ratio=1.5), lambda rate: MET if rate < 150 else BROKEN)
    assert tried[:4] == [800, 400, 200, 100]


def test_the_two_rates_end_within_the_ratio() -> None:
    search = RateSearch(10.0)
    run(search, lambda rate: MET if rate <= 777 else BROKEN)
    found = search.result()
    assert found.rate_per_second is not None
    assert found.broken_at is not None
    assert found.rate_per_second <= 777 < found.broken_at <= 1.05 * found.rate_per_second


def test_an_undecided_rate_is_repeated_twice_as_long_and_then_counts_as_broken() -> None:
    search = RateSearch(100.0, most_repeats=2)
    seconds = []
    for _ in range(3):
        assert search.next_rate() == 100
        seconds.append(search.next_seconds(10))
        search.record(100, 100, *UNDECIDED)
    assert seconds == [10, 20, 40]
    assert [trial.met for trial in search.trials] == [None, None, False]
    assert (search.next_rate(), search.next_seconds(10)) == (50, 10)
    assert search.trials[-1].reason == "it is undecided"


def test_a_rate_that_was_never_broken_is_not_called_so() -> None:
    search = RateSearch(100.0, most_repeats=0)
    for rate, says in ((100, MET), (400, BROKEN), (200, UNDECIDED)):
        search.record(rate, rate, *says)
    found = search.result()
    assert (found.rate_per_second, found.broken_at, found.undecided_at) == (100, 400, 200)
    assert found.ratio == 2
    search.record(200, 200, *MET)  # met once, then undecided: no more is known of it
    assert search.result().undecided_at == 200
    search.record(200, 200, *BROKEN)
    assert search.result().undecided_at == 200
    search.record(200, 200, *BROKEN)
    assert (search.result().broken_at, search.result().undecided_at) == (200, None)


def test_where_nothing_was_broken_beyond_doubt_there_is_no_broken_rate() -> None:
    search = RateSearch(100.0, lowest_rate=30.0, most_repeats=0)
    run(search, lambda _: UNDECIDED)
    found = search.result()
    assert (found.rate_per_second, found.broken_at, found.undecided_at) == (None, None, 30)
    assert found.reason == "30/s is the lowest rate that is tried: it is undecided"


def test_one_unlucky_trial_does_not_decide() -> None:
    unlucky = iter([MET, BROKEN])  # at 200, of a server that can do 1000

    def outcome(rate: float) -> Says:
        return next(unlucky, MET) if rate in (100, 200) else (MET if rate < 1_000 else BROKEN)

    search = RateSearch(100.0)
    run(search, outcome)
    found = search.result()
    assert found.rate_per_second == pytest.approx(1_000, rel=0.05)
    assert found.broken_at == pytest.approx(1_000, rel=0.05)


def test_one_lucky_trial_does_not_decide() -> None:
    lucky = iter([MET])

    def outcome(rate: float) -> Says:
        return next(lucky, BROKEN) if rate == 400 else (MET if rate < 300 else BROKEN)

    search = RateSearch(100.0)
    run(search, outcome)
    found = search.result()
    assert found.rate_per_second == pytest.approx(300, rel=0.05)


def test_a_met_rate_above_a_broken_one_sends_the_broken_one_back() -> None:
    search = RateSearch(100.0)
    search.record(100, 100, *BROKEN)
    search.record(50, 50, *MET)
    search.record(400, 400, *MET)
    assert search.next_rate() == 100
    search.record(100, 100, *BROKEN)
    assert search.result().broken_at == 100
    assert search.result().rate_per_second == 50


def test_a_rate_that_was_not_sent_is_broken_whatever_its_latencies() -> None:
    search = RateSearch(1_000.0)
    search.record(1_000, 989, *MET)
    assert search.trials[-1].met is False
    assert search.trials[-1].reason == "only 989 of 1000 requests per second were sent"
    search.record(500, 495, *MET)
    assert search.trials[-1].met is True


def test_a_server_that_never_breaks_ends_at_the_highest_rate_allowed() -> None:
    search = RateSearch(100.0, highest_rate=350.0)
    assert run(search, lambda _: MET) == [100, 200, 350, 350]
    found = search.result()
    assert (found.rate_per_second, found.broken_at, found.undecided_at, found.ratio) == (
        350,
        None,
        None,
        None,
    )
    assert found.reason == "350/s is the highest rate that is tried"


def test_a_server_that_never_meets_it_ends_at_the_lowest_rate_allowed() -> None:
    search = RateSearch(100.0, lowest_rate=30.0)
    assert run(search, lambda _: BROKEN) == [100, 50, 30, 30]
    found = search.result()
    assert (found.rate_per_second, found.broken_at) == (None, 30)
    assert found.reason == "30/s is the lowest rate that is tried: it is broken"


def test_a_search_ends_at_its_limit_of_trials_and_says_so() -> None:
    search = RateSearch(1.0, most_trials=4)
    run(search, lambda rate: MET if rate < 1e9 else BROKEN)
    assert search.result().rate_per_second == 8
    assert search.result().reason == "it ended at its limit of 4 trials"


def test_a_search_that_goes_on_says_so() -> None:
    assert RateSearch(5.0).result().reason == "the search is not over"


@pytest.mark.parametrize(
    ("start", "options", "message"),
    [
        (0.0, {}, "starts at a rate above 0"),
        (math.nan, {}, "starts at a rate above 0"),
        (1.0, {"ratio": 1.0}, "a ratio from 1.001 to 2"),
        (1.0, {"most_trials": 0}, "find no rate"),
        (1.0, {"lowest_rate": 5.0, "highest_rate": 4.0}, "no rate lies between"),
    ],
)
def test_a_search_that_cannot_end_well_is_refused(
    start: float, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        RateSearch(start, **options)


SERVICE_RATE = 1_000.0


def queue(rate: float, seconds: float, source: np.random.Generator) -> npt.NDArray[np.int64]:
    """Response times of a queue with one server, Poisson arrivals and exponential service, settled at the
    start."""
    count = int(rate * seconds)
    gaps, work = source.exponential(1 / rate, count), source.exponential(1 / SERVICE_RATE, count)
    path = np.cumsum(np.concatenate([[0.0], work[:-1] - gaps[1:]]))
    waits = path - np.minimum.accumulate(path)
    return ((waits + work) * 1e9).astype(np.int64)[count // 10 :]


@pytest.mark.parametrize("seed", range(4))
def test_the_capacity_of_a_queue_is_found_within_five_percent(seed: int) -> None:
    """M/M/1: response times are exponential with the rate mu - lambda, so p99 < 10 ms up to mu - 461/s."""
    exact = SERVICE_RATE - math.log(100) / 0.010
    source = np.random.default_rng(seed)
    objectives = parse_objectives("p99<10ms")
    search = RateSearch(50.0)
    while (rate := search.next_rate()) is not None:
        values = queue(rate, search.next_seconds(200), source)
        judgement = judge(objectives, values, effective_samples(values), 0, len(values))
        search.record(rate, rate, judgement.verdict, judgement.text)
    found = search.result()
    assert found.rate_per_second is not None
    assert found.broken_at is not None
    assert 0.95 * exact < found.rate_per_second < exact < found.broken_at < 1.05 * exact
