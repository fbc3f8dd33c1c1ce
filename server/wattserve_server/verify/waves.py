"""Part-time sampling: square waves of work at periods near the sensor's own.

A counter that samples all the time counts as much of a wave as ran, whatever its phase. One that looks for
25 of every 100 ms counts all of it or nothing where the wave beats with it: its joules per second of work
scatter with the phase.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np

from wattserve_server.verify.rig import Rig, Shape, work
from wattserve_server.verify.verdicts import Verdict, not_measured, within

FACTORS = (0.25, 0.9, 1.0, 1.1, 2.5)  # of the sensor's period
DUTY = 0.25
PERIODS_A_RUN = 8  # of the sensor, at the least
REST_PERIODS = 5  # between runs: the counter then stands at what was drawn
LEAST_RUNS, MOST_RUNS = 4, 12  # of each factor
MOST_SCATTER = 10.0  # per cent that a counter of all time may show
NAME = "sampled all the time"


@dataclass(frozen=True)
class Scatter:
    """Of the watts of work, over runs of one kind with a phase of their own: relative to their mean."""

    runs: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Waves:
    by_factor: dict[str, Scatter] = field(default_factory=dict)  # by the wave's period over the sensor's
    skipped: dict[str, str] = field(default_factory=dict)  # and why
    reason: str = ""  # why nothing was measured


async def measure_waves(rig: Rig, period_s: float | None, seconds: float) -> Waves:
    """period_s: of the sensor's updates. Takes about `seconds`."""
    if period_s is None:
        return Waves(reason="the counter changes with every read: it has no period to beat with")
    shape = rig.shapes[0]
    batch_s = await _batch_seconds(rig, shape)
    factors = [factor for factor in FACTORS if factor * period_s * DUTY >= 2 * batch_s]
    skipped = {
        f"{factor:g}": f"its {factor * period_s * DUTY * 1e3:.3g} ms of work are less than two batches"
        for factor in FACTORS
        if factor not in factors
    }
    if 1.0 not in factors:
        return Waves(
            skipped=skipped,
            reason=f"the shortest batch takes {batch_s * 1e3:.3g} ms: too long a piece of work",
        )
    run_s = max(PERIODS_A_RUN * period_s, 0.3) + REST_PERIODS * period_s
    runs = int(min(max(seconds / (run_s * len(factors)), LEAST_RUNS), MOST_RUNS))
    chance = random.Random(0)
    watts: dict[float, list[float]] = {factor: [] for factor in factors}
    idle = _Idle(rig, REST_PERIODS * period_s)
    await idle.rest()
    for _ in range(runs):
        for factor in chance.sample(factors, len(factors)):
            added_w = await _run(
                rig, shape, factor * period_s, max(PERIODS_A_RUN * period_s, 0.3), idle, chance
            )
            if added_w is not None:
                watts[factor].append(added_w)
    usual_w = float(np.mean([each for values in watts.values() for each in values] or [0.0]))
    by_factor = {
        f"{factor:g}": _scatter(values, usual_w) for factor, values in watts.items() if len(values) > 1
    }
    if usual_w <= 0 or not by_factor:
        return Waves(skipped=skipped, reason="the counter did not show the work")
    return Waves(by_factor, skipped)


def verdict_of(waves: Waves, took_s: float) -> Verdict:
    if waves.reason:
        return not_measured(NAME, waves.reason)
    factor, worst = max(waves.by_factor.items(), key=lambda item: item[1].ratio)
    return within(
        f"{NAME}: scatter of waves at {factor} of its period",
        100 * worst.ratio, 100 * worst.low, 100 * worst.high, MOST_SCATTER, "%", took_s,
    )  # fmt: skip


class _Idle:
    """Rests, and what the counter stood at and drew in the last of them."""

    def __init__(self, rig: Rig, seconds: float) -> None:
        self._rig, self._seconds = rig, seconds
        self.mark: tuple[float, float] | None = None
        self._watts: list[float] = []

    async def rest(self) -> None:
        since_ns = self._rig.now_ns()
        await self._rig.rest(self._seconds)
        # The first half still shows work.
        spell = self._rig.readings.spell(since_ns + round(self._seconds * 0.5e9), self._rig.now_ns())
        self.mark = spell.last_edge()
        if (watts := spell.watts()) is not None:
            self._watts.append(watts)

    @property
    def watts(self) -> float:
        return float(np.median(self._watts)) if self._watts else 0.0


async def _run(
    rig: Rig, shape: Shape, wave_s: float, seconds: float, idle: _Idle, chance: random.Random
) -> float | None:
    """The watts that a second of work added, over one run of the wave."""
    before, since_ns = idle.mark, rig.now_ns()
    await rig.rest(chance.uniform(0.0, wave_s))
    begun_ns = rig.now_ns()
    for cycle in range(max(2, round(seconds / wave_s))):
        due_ns = begun_ns + round(cycle * wave_s * 1e9)
        if rig.now_ns() < due_ns:
            await rig.rest((due_ns - rig.now_ns()) / 1e9)
        await work(rig, rig.variants[0], shape, DUTY * wave_s)
    await idle.rest()
    busy_s = sum(window.duration_ns for window in rig.windows(since_ns, rig.now_ns())) / 1e9
    if before is None or idle.mark is None or not busy_s:
        return None
    return (idle.mark[1] - before[1] - idle.watts * (idle.mark[0] - before[0])) / busy_s


async def _batch_seconds(rig: Rig, shape: Shape) -> float:
    asked = [await rig.ask(rig.variants[0], shape) for _ in range(9)]
    return float(np.median([each.done_ns - each.sent_ns for each in asked])) / 1e9


def _scatter(values: list[float], usual: float) -> Scatter:
    ratio = float(np.std(values, ddof=1)) / abs(usual)
    wide = math.exp(1.96 / math.sqrt(2 * (len(values) - 1)))  # of a deviation, by its logarithm
    return Scatter(len(values), ratio, ratio / wide, ratio * wide)
