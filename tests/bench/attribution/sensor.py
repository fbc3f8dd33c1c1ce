"""What the device's sensors publish of its energy: its counter, and its power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.trace import Trace
from tests.bench.attribution.world import CounterModel, Floats

POWER_PERIOD_S = 0.1
POWER_OVER_S = 0.025
"""The power sensor publishes every POWER_PERIOD_S the mean power of the last POWER_OVER_S."""

AVERAGED_IN = 100
"""A trailing average is taken over so many steps of its width."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the sensors show: from each of `at_s` on the counter's value, from each of `power_at_s` on the
    power. `as_of_s`: the instants whose energy the counter shows (truth: for the evaluation only; about the
    middle of a trailing average)."""

    at_s: Floats
    millijoules: np.ndarray
    as_of_s: Floats
    power_at_s: Floats
    power_watts: Floats


def publish(trace: Trace, model: CounterModel, end_s: float, rng: np.random.Generator) -> Published:
    origin_mj = int(rng.integers(1, 10**9))
    count = int(end_s / model.period_s) + 2
    phase_s = rng.random() * model.period_s
    jitter = np.clip(rng.standard_normal(count), -3, 3) * model.jitter_s
    at_s = np.sort(phase_s + model.period_s * np.arange(count) + jitter)
    as_of_s = np.maximum(at_s - model.lag_s, 0.0)
    millijoules = origin_mj + np.floor(1000 * counted(trace, model, as_of_s)).astype(np.int64)
    power_at_s = POWER_PERIOD_S * (np.arange(1, int(end_s / POWER_PERIOD_S), dtype=float) + rng.random())
    until_s = np.maximum(power_at_s - model.lag_s, POWER_OVER_S)
    watts = (trace.total(until_s) - trace.total(until_s - POWER_OVER_S)) / POWER_OVER_S
    return Published(
        np.concatenate([[-np.inf], at_s]),
        np.concatenate([[origin_mj], millijoules]),
        np.concatenate([[0.0], np.maximum(as_of_s - model.box_s / 2, 0.0)]),
        power_at_s,
        watts,
    )


def counted(trace: Trace, model: CounterModel, times: Floats) -> Floats:
    """Joules that the counter holds at each of `times`, which ascend, its lag apart."""
    if model.sampled_s:
        since = np.concatenate([[0.0], times[:-1]])
        looked_from = np.maximum(times - model.sampled_s, 0.0)
        watts = (trace.total(times) - trace.total(looked_from)) / model.sampled_s
        taken: Floats = np.cumsum(watts * (times - since))
        return taken
    if not model.box_s:
        return trace.total(times)
    # The integral of a trailing average of the power is the trailing average of the energy.
    step_s = model.box_s / AVERAGED_IN
    grid = np.arange(0.0, times[-1] + step_s, step_s)
    joules = trace.total(grid)
    integral = np.concatenate([[0.0], np.cumsum((joules[1:] + joules[:-1]) * step_s / 2)])
    begun = np.interp(np.maximum(times - model.box_s, 0.0), grid, integral)
    averaged: Floats = (np.interp(times, grid, integral) - begun) / model.box_s
    return averaged
