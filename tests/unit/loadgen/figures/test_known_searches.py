"""`--find-max` against queues whose highest rate within an objective is known, simulated: no clock runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.fixtures.law_runs import ARM, arrivals_ns, plan_of
from tests.fixtures.law_search import (
    SimulatedQueue,
    departures,
    find_max,
    fixed_service_rate,
    random_service_rate,
)
from wattserve_loadgen.model.results import Search
from wattserve_loadgen.plan.load import POISSON, Load
from wattserve_loadgen.plan.schedule import HEAT_UP_BLOCK, Cell

pytestmark = pytest.mark.long

SERVICE_SECONDS = 0.004
QUEUES = {
    "M/D/1": (fixed_service_rate(SERVICE_SECONDS, 95.0, 0.02), "p95<20ms", False),
    "M/M/1": (random_service_rate(SERVICE_SECONDS, 95.0, 0.03), "p95<30ms", True),
}


def find(queue: str, trial_seconds: float, seed: int) -> Search:
    _, objective, random = QUEUES[queue]
    source = np.random.default_rng(seed)

    def services(count: int) -> npt.NDArray[np.float64]:
        return source.exponential(SERVICE_SECONDS, count) if random else np.full(count, SERVICE_SECONDS)

    return find_max(lambda plan: SimulatedQueue(plan, services), objective, trial_seconds, seed)


def search(queue: str, trial_seconds: float, seed: int) -> tuple[float, float]:
    """The highest rate that was met, and the lowest above it that was not."""
    found = find(queue, trial_seconds, seed)
    upper = found.undecided_per_second or found.broken_per_second
    assert found.rate_per_second
    assert upper
    return found.rate_per_second, upper


def test_the_rates_that_theory_gives() -> None:
    assert QUEUES["M/D/1"][0] == pytest.approx(173.443, abs=0.001)
    assert QUEUES["M/M/1"][0] == pytest.approx(150.142, abs=0.001)


@pytest.mark.parametrize("queue", QUEUES)
def test_a_simulated_queue_has_that_percentile_at_that_rate(queue: str) -> None:
    exact, _, random = QUEUES[queue]
    source = np.random.default_rng(5)
    arrivals = np.cumsum(source.exponential(1 / exact, 400_000))
    services = source.exponential(SERVICE_SECONDS, 400_000) if random else np.full(400_000, SERVICE_SECONDS)
    p95 = np.percentile(departures(arrivals, services) - arrivals, 95)
    assert p95 == pytest.approx(0.03 if random else 0.02, rel=0.03)


@pytest.mark.parametrize("queue", QUEUES)
def test_find_max_brackets_the_rate_that_theory_gives(queue: str) -> None:
    exact = QUEUES[queue][0]
    brackets = [search(queue, trial_seconds=600, seed=seed) for seed in range(6)]
    for low, high in brackets:
        assert 0.94 * exact <= low <= exact
        assert high <= 1.06 * exact
    assert sum(low <= exact <= high for low, high in brackets) >= 4


@pytest.mark.parametrize("queue", QUEUES)
def test_find_max_by_short_trials_errs_on_the_safe_side(queue: str) -> None:
    exact = QUEUES[queue][0]
    found = [search(queue, trial_seconds=10, seed=seed)[0] for seed in range(20)]
    assert sum(low <= exact for low in found) >= 19
    assert min(found) >= 0.7 * exact


def test_a_search_calls_broken_only_what_was_seen_to_break() -> None:
    """Trials of 5 s decide too little: the rate that they end at is below the highest one."""
    for seed in range(5):
        assert "lies between" in find("M/D/1", trial_seconds=600, seed=seed).ended
        short = find("M/M/1", trial_seconds=5, seed=seed)
        assert (short.undecided_per_second or 0) < QUEUES["M/M/1"][0]
        assert f"{short.undecided_per_second:.4g}/s could not be decided" in short.ended
        broken = {trial.rate_per_second for trial in short.trials if trial.judgement == "broken"}
        assert short.broken_per_second is None or short.broken_per_second in broken


def test_a_rate_that_is_tried_again_meets_other_arrivals() -> None:
    """Else the second trial would repeat the luck of the first."""
    load = Load(POISSON, rate=100)
    first = Cell(1, HEAT_UP_BLOCK, ARM, load, 0.0, 5.0)
    once, again = (arrivals_ns(plan_of(load, 5.0), replace(first, position=at)) for at in (1, 2))
    assert len(np.intersect1d(once, again)) == 0
