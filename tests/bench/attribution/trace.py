"""The device's energy over time, in parts and in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.device import History
from tests.bench.attribution.world import Floats, ForeignLoad, IdleModel, World

WALK_STEP_S = 0.1
"""The idle draw's random walk is linear between multiples of this."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A power that is constant (watts) from each start (seconds) to the next; the first start is 0."""

    starts: Floats
    watts: Floats

    def joules(self, times: Floats, ramp_s: float) -> Floats:
        """Energy until each of `times`, if power follows with the time constant `ramp_s`."""
        before = np.concatenate([[0.0], np.cumsum(self.watts[:-1] * np.diff(self.starts))])
        index = np.searchsorted(self.starts, times, side="right") - 1
        since = times - self.starts[index]
        raw = before[index] + self.watts[index] * since
        if ramp_s == 0:
            return raw
        # The smeared power y follows ramp_s x y' = power - y, so that its integral lags behind the
        # power's own by ramp_s x y.
        levels = np.zeros(len(self.starts))
        decays = np.exp(-np.diff(self.starts) / ramp_s)
        level = 0.0
        for i, (watts, decay) in enumerate(zip(self.watts[:-1].tolist(), decays.tolist(), strict=True)):
            level = watts + (level - watts) * decay
            levels[i + 1] = level
        target = self.watts[index]
        return raw - ramp_s * (target + (levels[index] - target) * np.exp(-since / ramp_s))


class IdleTrace:
    """The draw without work, for one history."""

    def __init__(self, model: IdleModel, history: History, rng: np.random.Generator) -> None:
        self._model = model
        knots = int(history.end_s / WALK_STEP_S) + 2
        walk = model.watts + np.cumsum(model.walk * WALK_STEP_S**0.5 * rng.standard_normal(knots))
        self._watts: Floats = np.maximum(walk, 0.2 * model.watts)
        pairs = (self._watts[1:] + self._watts[:-1]) / 2
        self._joules: Floats = np.concatenate([[0.0], np.cumsum(pairs * WALK_STEP_S)])
        self._find_pauses(history)

    def _find_pauses(self, history: History) -> None:
        """Busy and idle stretches by turns; the first is idle and has seen no work before it."""
        starts, is_busy = [0.0], [False]
        for at_s, watts in history.steps:
            if (watts > 0) != is_busy[-1]:
                starts.append(at_s)
                is_busy.append(watts > 0)
        self._starts = np.array(starts)
        self._is_busy = np.array(is_busy)
        whole = self._offset(np.arange(len(starts) - 1), np.diff(self._starts))
        self._offsets: Floats = np.concatenate([[0.0], np.cumsum(whole)])

    def _offset(self, index: np.ndarray, since_s: Floats) -> Floats:
        """Energy of the offset in a stretch, `since_s` after it began."""
        model = self._model
        held = np.minimum(since_s, model.hold_s)
        after = np.maximum(since_s - model.hold_s, 0.0)
        if model.decay_s:
            held = held + model.decay_s * -np.expm1(-after / model.decay_s)
        seconds = np.where(self._is_busy[index], since_s, held)
        joules: Floats = np.where(index == 0, 0.0, model.offset_watts * seconds)
        if model.asleep_watts is None:
            return joules
        awake_s = np.where(index == 0, 0.0, np.where(self._is_busy[index], np.inf, model.sleeps_after_s))
        return joules + (model.asleep_watts - model.watts) * np.maximum(since_s - awake_s, 0.0)

    def joules(self, times: Floats) -> Floats:
        knot = np.minimum((times / WALK_STEP_S).astype(int), len(self._watts) - 2)
        since: Floats = times - knot * WALK_STEP_S
        slope = (self._watts[knot + 1] - self._watts[knot]) / WALK_STEP_S
        walk: Floats = self._joules[knot] + self._watts[knot] * since + slope * since**2 / 2
        index = np.searchsorted(self._starts, times, side="right") - 1
        return walk + self._offsets[index] + self._offset(index, times - self._starts[index])


def foreign_steps(load: ForeignLoad | None, history: History, rng: np.random.Generator) -> Steps:
    starts, watts = [0.0], [0.0]
    if load is not None and load.is_regular:
        episodes = np.arange(history.measured_from_s + load.off_s, history.end_s, load.on_s + load.off_s)
        for at_s in episodes.tolist():
            starts += [at_s, at_s + load.on_s]
            watts += [load.watts, 0.0]
    elif load is not None:
        at_s = history.measured_from_s + load.off_s * rng.exponential()
        while at_s < history.end_s:
            starts += [at_s, at_s + load.on_s * rng.uniform(0.3, 1.7)]
            watts += [load.watts * rng.uniform(0.6, 1.4), 0.0]
            at_s = starts[-1] + load.off_s * rng.uniform(0.3, 1.7)
    return Steps(np.array(starts), np.array(watts))


class Trace:
    """The ground truth of the whole device: energy until an instant, by what drew it."""

    def __init__(self, world: World, history: History, rng: np.random.Generator) -> None:
        steps = np.array(history.steps)
        self._work = Steps(steps[:, 0], steps[:, 1])
        self._ramp_s = world.ramp_s
        self._idle = IdleTrace(world.idle, history, rng)
        self.foreign = foreign_steps(world.foreign, history, rng)

    def work(self, times: Floats) -> Floats:
        return self._work.joules(times, self._ramp_s)

    def idle(self, times: Floats) -> Floats:
        return self._idle.joules(times)

    def total(self, times: Floats) -> Floats:
        return self.work(times) + self.idle(times) + self.foreign.joules(times, self._ramp_s)
