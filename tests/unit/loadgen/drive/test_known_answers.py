"""loadgen against servers whose answer is known: a law of latencies, a planted stall, a queue, a slow client.

What a request should have taken is computed from its schedule and the law. In virtual time nothing else takes
any, but the stamps: what is measured lies above it by no more than they cost.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.fake_server.law import Law
from tests.fixtures.fake_server.memory import MemoryServer, memory_servers
from tests.fixtures.law_runs import Run, arrivals_ns, cell_of, drive, plan_of
from tests.fixtures.law_search import departures
from wattserve_common.stats import SAMPLE_FLOORS, effective_samples
from wattserve_loadgen.figures.percentiles import percentiles_of, quantile_of
from wattserve_loadgen.model.cells import Percentiles
from wattserve_loadgen.plan.load import CONSTANT, POISSON, RAMP, RECORDED, Load, closed

SECOND = 1_000_000_000
PERCENTS = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99"}
STALL_AFTER_SECONDS, STALL_SECONDS, STALLED_SECONDS, SLOTS = 0.8, 0.5, 2.0, 4
BLOCK_SECONDS, BLOCKED_SECONDS = 0.4, 1.6
SLACK_NS = 50_000  # what the stamps of a request cost, and of those that are sent with it
BURST_NS = 1_000_000  # and of the hundreds that a stall lets go at once

LINE = Law(floor_seconds=0.03, mean_seconds=0.06)
STALLING = Law(0.015, 0.01, stall_after_seconds=STALL_AFTER_SECONDS, stall_seconds=STALL_SECONDS)
QUEUE = Law(floor_seconds=0.005, queue=True)
FIXED = Law(floor_seconds=0.02)


def at(law: Law, load: Load, seconds: float, preset: str = "full", warmup_seconds: float = 0.2) -> Run:
    server = MemoryServer(law)
    with memory_servers():
        return drive(server.address, law, load, seconds, warmup_seconds=warmup_seconds, preset=preset)


@pytest.fixture(scope="module")
def poisson() -> Run:
    return at(LINE, Load(POISSON, rate=400), 2.0)


@pytest.fixture(scope="module")
def constant() -> Run:
    return at(LINE, Load(CONSTANT, rate=400), 2.0)


@pytest.fixture(scope="module")
def stalled() -> Run:
    return at(STALLING, Load(CONSTANT, rate=400), STALLED_SECONDS, "look")


@pytest.fixture(scope="module")
def stalled_closed() -> Run:
    return at(STALLING, closed(SLOTS), STALLED_SECONDS, "look")


@pytest.fixture(scope="module")
def blocked() -> Run:
    server = MemoryServer(FIXED)
    with memory_servers() as clock:

        async def block() -> None:
            await asyncio.sleep(0.7)
            clock.sleep(BLOCK_SECONDS)

        load = Load(CONSTANT, rate=200)
        return drive(server.address, FIXED, load, BLOCKED_SECONDS, beside=block)


@pytest.fixture(scope="module")
def overloaded() -> Run:
    return at(QUEUE, Load(POISSON, rate=400), 0.8)


def value(found: Percentiles, percent: float) -> int:
    seen = getattr(found, f"{PERCENTS[percent]}_ns")
    assert seen is not None
    return int(seen)


def mean(found: Percentiles) -> float:
    assert found.mean_ns is not None
    return found.mean_ns


def law_ns(law: Law, percent: float) -> float:
    return (law.floor_seconds - law.mean_seconds * math.log1p(-percent / 100)) * SECOND


@pytest.fixture(params=["poisson", "constant"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    return found


def test_the_stamps_of_client_and_server_are_in_the_order_of_events(run: Run) -> None:
    stamps = [run.scheduled_ns, run.sent_ns, run.server_ns("arrived_ns"), run.server_ns("due_ns")]
    stamps += [run.server_ns("answered_ns"), run.done_ns]
    for before, after in pairwise(stamps):
        assert (before <= after).all()


def test_every_request_takes_at_least_what_the_law_says(run: Run) -> None:
    assert (run.done_ns - run.scheduled_ns >= run.ideal_ns).all()


@pytest.mark.parametrize("percent", PERCENTS)
def test_response_time_percentiles_are_those_of_the_delays_that_were_applied(
    run: Run, percent: float
) -> None:
    exact, found = (
        value(percentiles_of(one, None, floors_by_effective=False), percent)
        for one in (run.ideal_ns, run.samples.latency_ns)
    )
    assert exact <= found <= exact + SLACK_NS
    assert getattr(run.result.latency, f"{PERCENTS[percent]}_ns") in (found, None)


@pytest.mark.parametrize("percent", PERCENTS)
def test_response_time_percentiles_match_the_law_within_their_bounds(run: Run, percent: float) -> None:
    worth = run.result.latency.effective_samples or 0.0
    assert worth >= SAMPLE_FLOORS[percent]
    found = quantile_of(run.samples.latency_ns, worth, percent)
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.high_ns == getattr(run.result.latency, f"{PERCENTS[percent]}_bound_ns")
    assert found.low_ns - SLACK_NS <= law_ns(LINE, percent) <= found.high_ns


def test_a_punctual_client_shows_no_gap_between_response_and_service(run: Run) -> None:
    response, service, lag = run.result.latency, run.result.service, run.result.lag
    assert service
    assert lag
    assert mean(response) - mean(service) == pytest.approx(mean(lag))
    assert mean(lag) < SLACK_NS


@pytest.mark.parametrize("percent", PERCENTS)
def test_upper_bounds_of_the_law_hold_in_99_of_100_samples(percent: float) -> None:
    source = np.random.default_rng(7)
    held = 0
    for _ in range(500):
        drawn = SECOND * (LINE.floor_seconds + source.exponential(LINE.mean_seconds, 750))
        sample = drawn.astype(np.int64)
        bound = quantile_of(sample, effective_samples(sample), percent).high_ns
        held += bound is None or bound >= law_ns(LINE, percent)
    assert held >= 490  # of 500: 0.99 less two standard deviations


def test_upper_bounds_hold_in_99_of_100_samples_of_a_queue_whose_answers_depend_on_each_other() -> None:
    """M/M/1 at a load of 0.7: p95 of the response time is ln 20 / 0.3 services."""
    source = np.random.default_rng(8)
    held = 0
    for _ in range(300):
        arrivals = np.cumsum(source.exponential(1 / 0.7, 14_000))
        waited = departures(arrivals, source.exponential(1.0, 14_000)) - arrivals
        sample = (waited[2_000:] * 1e6).astype(np.int64)
        bound = quantile_of(sample, effective_samples(sample), 95.0).high_ns
        assert bound is not None
        held += bound >= math.log(20) / 0.3 * 1e6
    assert held >= 294  # of 300: 0.99 less two standard deviations


def test_in_an_open_loop_requests_due_in_a_stall_wait_for_its_rest(stalled: Run) -> None:
    response, ideal = stalled.done_ns - stalled.scheduled_ns, stalled.ideal_ns
    found, exact = stalled.result.latency, percentiles_of(ideal, None, floors_by_effective=False)
    assert (response >= ideal).all()
    assert mean(exact) <= mean(found) <= mean(exact) + BURST_NS
    for percent in (90.0, 99.0):
        assert value(exact, percent) <= value(found, percent) <= value(exact, percent) + BURST_NS
    assert (found.max_ns or 0) >= STALL_SECONDS * SECOND


def test_an_open_loop_sees_the_stall_at_the_size_that_theory_gives(stalled: Run) -> None:
    """A share s / w of the requests falls into a stall of s in a window of w. Their waits are spread evenly
    from 0 to s: beyond what the law takes by itself the mean grows by s^2 / 2w, and p is s - (1 - p) w."""
    found = stalled.result.latency
    alone = (STALLING.floor_seconds + STALLING.mean_seconds) * SECOND
    grown = STALL_SECONDS**2 / (2 * STALLED_SECONDS) * SECOND
    assert mean(found) == pytest.approx(alone + grown, abs=0.05 * grown)
    for percent in (90.0, 99.0):
        waited = (STALL_SECONDS - (1 - percent / 100) * STALLED_SECONDS) * SECOND
        assert waited <= value(found, percent) <= waited + law_ns(STALLING, 90.0)


def test_a_closed_loop_sees_a_stall_once_for_each_of_its_slots(stalled_closed: Run) -> None:
    ends = stalled_closed.server_ns("first_ns") + round((STALL_AFTER_SECONDS + STALL_SECONDS) * SECOND)
    stuck = stalled_closed.server_ns("due_ns") == ends
    assert 1 <= np.count_nonzero(stuck) <= SLOTS
    service = stalled_closed.done_ns - stalled_closed.sent_ns
    assert (service[stuck] >= STALL_SECONDS * SECOND / 2).any()
    assert np.percentile(service[~stuck], 99) <= law_ns(STALLING, 99.5)


def test_coordinated_omission_is_the_difference_that_theory_gives(stalled: Run, stalled_closed: Run) -> None:
    """The closed loop's mean grows by at most (slots / requests) s where the open one's grows by s^2 / 2w,
    and its p90 is the law's own where the open one's is s - w / 10."""
    open_loop, closed_loop = stalled.result.latency, stalled_closed.result.latency
    hidden = STALL_SECONDS**2 / (2 * STALLED_SECONDS) - SLOTS * STALL_SECONDS / closed_loop.samples
    assert mean(open_loop) - mean(closed_loop) >= 0.9 * hidden * SECOND
    assert value(closed_loop, 90.0) <= law_ns(STALLING, 93.0)
    assert value(open_loop, 90.0) >= (STALL_SECONDS - STALLED_SECONDS / 10) * SECOND


def test_one_stall_is_one_observation_and_publishes_no_tail(stalled: Run) -> None:
    """A look shows the p99 that was seen; what is published is worth too few independent answers."""
    published = replace(stalled, plan=plan_of(stalled.cell.load, STALLED_SECONDS)).result.latency
    assert (published.effective_samples or math.inf) < published.samples / 10
    assert (published.p99_ns, published.p99_bound_ns) == (None, None)
    assert value(stalled.result.latency, 99.0) >= 0.9 * STALL_SECONDS * SECOND
    assert published.max_ns == stalled.result.latency.max_ns


def test_a_client_that_stands_still_shows_in_lag_and_response_and_not_in_service(blocked: Run) -> None:
    response, service, lag = blocked.result.latency, blocked.result.service, blocked.result.lag
    assert service
    assert lag
    assert mean(response) - mean(service) == pytest.approx(mean(lag))
    assert mean(lag) >= 0.95 * BLOCK_SECONDS**2 / (2 * BLOCKED_SECONDS) * SECOND
    held_up = (BLOCK_SECONDS - BLOCKED_SECONDS / 10) * SECOND  # p90 of the lag
    responses, services = blocked.samples.latency_ns, blocked.samples.service_ns
    assert services is not None
    assert np.percentile(responses, 90) >= 0.95 * held_up
    assert np.percentile(services, 90) <= np.percentile(responses, 90) - held_up / 3  # a burst follows
    assert np.percentile(services, 50) <= FIXED.floor_seconds * SECOND + SLACK_NS


def test_the_client_gate_refuses_a_point_whose_client_stood_still(blocked: Run) -> None:
    assert blocked.point.figures is None
    assert blocked.point.withheld is not None
    assert "late sends" in blocked.verdicts
    assert (blocked.result.late or 0) >= 0.9 * BLOCK_SECONDS * 200


def test_an_overloaded_queue_answers_at_its_own_rate_and_is_behind_its_offer(overloaded: Run) -> None:
    """M/D/1 of 200 answers per second, offered twice as many."""
    assert overloaded.result.rate_per_second == pytest.approx(200, rel=0.06)
    assert overloaded.result.offered_per_second == pytest.approx(400, rel=0.1)
    (text,) = [one.text for one in overloaded.point.verdicts if one.code == "behind offer"]
    assert 44 <= float(text.split()[0]) <= 52
    assert overloaded.point.figures is None


def test_an_overloaded_queue_is_measured_from_the_schedule(overloaded: Run) -> None:
    """Mean response time by Lindley's recursion over the schedule."""
    exact, found = float(overloaded.ideal_ns.mean()), mean(overloaded.result.latency)
    assert exact <= found <= exact + SLACK_NS
    assert exact > 0.3 * SECOND


def test_a_ramp_offers_in_each_slice_what_was_asked() -> None:
    """From 100/s to 300/s in 2 s, in slices of 0.4 s, on average over 200 seeds."""
    ramp = Load(RAMP, rate=100, rate_end=300)
    offered = [
        arrivals_ns(replace(plan_of(ramp, 2.0), seed=seed), cell_of(ramp, 2.0, 0.0)) for seed in range(200)
    ]
    counts = np.mean([np.histogram(due / SECOND, bins=5, range=(0, 2))[0] for due in offered], axis=0)
    assert counts == pytest.approx([48, 64, 80, 96, 112], rel=0.03)


def test_a_ramp_is_sent_as_it_was_planned() -> None:
    ramp = Load(RAMP, rate=100, rate_end=300)
    found = at(FIXED, ramp, 0.8)
    asked = arrivals_ns(found.plan, found.cell)
    assert found.loop.scheduled_ns is not None
    assert np.diff(found.loop.scheduled_ns).tolist() == np.diff(asked).tolist()
    early, late = (np.count_nonzero((asked >= at) & (asked < at + 4e8)) for at in (2e8, 6e8))
    assert (early, late) == pytest.approx((60, 100), rel=0.25)
    assert found.result.sent == early + late


def test_recorded_arrivals_are_sent_when_they_were_recorded(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("\n".join(map(str, (10, 10.1, 10.1, 10.1, 10.9, 11.5, 11.8))))
    load = Load(RECORDED, trace=str(trace), speed=2)
    found = at(FIXED, load, 0.9, warmup_seconds=0.0)
    offsets = (found.scheduled_ns - found.scheduled_ns[0]).tolist()
    assert offsets == [0, 50_000_000, 50_000_000, 50_000_000, 450_000_000, 750_000_000]
    assert (found.sent_ns >= found.scheduled_ns).all()
    assert found.result.sent == 6


def test_a_server_that_slows_down_by_a_third_is_not_steady() -> None:
    growing = Law(floor_seconds=0.08, mean_seconds=0.005, growth_per_second=0.16)
    found = at(growing, Load(POISSON, rate=500), 2.1)
    (text,) = [one.text for one in found.point.verdicts if one.code == "drift"]
    assert text.startswith("the median latency rose by ")
    assert 20 <= float(text.split()[-5]) <= 45
    assert found.point.figures is None


def test_a_server_that_stays_as_it_is_has_no_drift(run: Run) -> None:
    assert run.result.slices is not None
    assert "drift" not in run.verdicts
