"""Figures per scenario and algorithm, from what was said and what was true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.baselines import baselines
from tests.bench.attribution.drive import Outcome
from tests.bench.attribution.newcomer import Newcomer, look_at_newcomer
from tests.bench.attribution.realise import START_NS, Realisation
from tests.bench.attribution.receipts import Receipts, Span, errors, percent, read, worst_bias
from tests.bench.attribution.world import Floats

OURS = "ours"
FLOOR = "noise floor"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors per request relative to the truth, in %. bias: the worst variant's sum against its true
    sum. idle: the idle account's error as a part of the bill; None where there is no such account."""

    median: float
    p95: float
    bias: float
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class Conduct:
    """How the sampler behaved. Errors and shares in %, times in seconds.

    latency_ratio: p95 and worst latency over lag + 3.5 ramp + 1.5 periods. provisional: medians of
    the provisional figure against the settled and against the true one. unattributed: part of the
    bill. uncharged: requests that were never settled. violations: of conservation, sign or bookkeeping;
    `broken` has the first in words.
    """

    residual_uj: int
    violations: int
    broken: str
    latency_p50: float
    latency_p95: float
    latency_max: float
    latency_ratio_p95: float
    latency_ratio_max: float
    provisional_settled: float
    provisional_true: float
    uncharged: float
    unattributed: float
    cpu_us_per_batch: float
    lag_s: float | None
    ramp_s: float | None
    idle_watts: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """rule: how far the split rule's own shares are from exact Shapley values, median in %. receipts: of
    the whole workload under "", and of each of its spans under that one's name. cpu_s: of the simulation
    and everything after it."""

    scenario: str
    batches: int
    requests: int
    rule: float
    accuracy: dict[str, Accuracy]
    receipts: dict[str, Receipts]
    conduct: Conduct
    newcomer: Newcomer | None
    seed: int = 0
    cpu_s: float = 0.0


def evaluate(case: Realisation, outcome: Outcome, spans: Sequence[Span] = ()) -> Result:
    requests = case.requests
    true_uj = requests.true_uj
    idle = _idle_error(case, outcome, outcome.idle_uj, outcome.booked_uj)
    accuracy = {FLOOR: _accuracy(requests.expected_uj, true_uj, requests.variant)}
    sizes = np.bincount(requests.batch)
    for name, estimate in baselines(case, outcome.poll_ns, outcome.poll_uj).items():
        got = (estimate.batch_uj / sizes)[requests.batch]
        error = None
        if estimate.idle_uj is not None:
            error = _idle_error(case, outcome, estimate.idle_uj, outcome.measured_uj)
        accuracy[name] = _accuracy(got, true_uj, requests.variant, error)
    receipts = {"": read(case, outcome), **{span.name: read(case, outcome, span) for span in spans}}
    whole = receipts[""]
    accuracy[OURS] = Accuracy(whole.median, whole.p95, whole.bias, idle)
    rule = _median_error(true_uj, requests.exact_uj)
    batches, conduct = len(case.batches), _conduct(case, outcome)
    newcomer = look_at_newcomer(case, outcome)
    return Result(case.name, batches, len(true_uj), rule, accuracy, receipts, conduct, newcomer)


def _accuracy(got: Floats, true: Floats, variant: np.ndarray, idle: float | None = None) -> Accuracy:
    """Of a method that has a figure for every request, and no interval."""
    error = errors(got, np.zeros(len(got)), true)
    bias = worst_bias(got, true, variant)
    return Accuracy(float(np.median(error)), float(np.quantile(error, 0.95)), bias, idle)


def _idle_error(case: Realisation, outcome: Outcome, idle_uj: float, booked_uj: int) -> float:
    """In % of what was booked; what is measured but still pending is left out on both sides."""
    true_uj = _true_idle_until(case, outcome, booked_uj)
    return 100 * abs(idle_uj - true_uj) / max(booked_uj, 1)


def _true_idle_until(case: Realisation, outcome: Outcome, counted_uj: int) -> float:
    """True idle energy in the first `counted_uj` that the sampler saw, in microjoules."""
    published = case.published
    first_s = (outcome.poll_ns[0] - START_NS) / 1e9
    first = np.searchsorted(published.at_s, first_s, side="right") - 1
    counter_uj = 1000.0 * (published.millijoules - published.millijoules[first])
    until_s = np.interp(counted_uj, counter_uj, published.as_of_s)
    idle = case.trace.idle(np.array([published.as_of_s[first], until_s]))
    return 1e6 * float(idle[1] - idle[0])


def _conduct(case: Realisation, outcome: Outcome) -> Conduct:
    true, got = case.requests.true_uj, outcome.got_uj
    known = ~np.isnan(got)
    world, status = case.world, outcome.status
    lag_s = world.counter.lag_s if status.lag_s is None else status.lag_s
    ramp_s = world.ramp_s if status.ramp_s is None else status.ramp_s
    period_s = status.update_period_s or world.counter.period_s
    limit_s = lag_s + 3.5 * ramp_s + 1.5 * period_s
    latency = outcome.latency_s[outcome.is_charged]
    if not len(latency):
        latency = np.array([np.nan])
    p50, p95, worst = (float(v) for v in np.quantile(latency, [0.5, 0.95, 1.0]))
    settled = known & ~np.isnan(outcome.provisional_uj) & (got > 0)
    provisional = outcome.provisional_uj[settled]
    return Conduct(
        residual_uj=outcome.checks.worst_residual_uj,
        violations=outcome.checks.violations,
        broken=outcome.checks.first,
        latency_p50=p50,
        latency_p95=p95,
        latency_max=worst,
        latency_ratio_p95=p95 / limit_s,
        latency_ratio_max=worst / limit_s,
        provisional_settled=_median_error(provisional, got[settled]),
        provisional_true=_median_error(provisional, true[settled]),
        uncharged=percent(~outcome.is_charged),
        unattributed=100 * outcome.unattributed_uj / max(outcome.measured_uj, 1),
        cpu_us_per_batch=1e6 * outcome.cpu_s / len(case.windows),
        lag_s=status.lag_s,
        ramp_s=status.ramp_s,
        idle_watts=status.idle_watts,
    )


def _median_error(said: Floats, reference: Floats) -> float:
    return 100 * float(np.median(np.abs(said / reference - 1))) if len(said) else np.nan
