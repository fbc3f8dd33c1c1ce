"""The filter: how the estimate of a device's energy learns from each edge of its counter.

A Kalman filter. At an edge, what the counter holds and nobody has been given (the pool) must equal what the
estimate says of it: carry + idle x time + the counted part of every open batch, give or take the edge's
instant. Because the equation is about the pool and not about the last interval, errors of the edges'
instants do not add up.

Knows nothing of windows, counters and clocks, and books nothing: the accountant does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattserve_server.energy.calibration import Fit
from wattserve_server.energy.costlaw import CLASSES, CPU_TIME, SIZE, SMOOTH, Array, of_cpu_time
from wattserve_server.energy.device import ForeignLoad
from wattserve_server.energy.estimate import (
    AFTER_REST,
    CARRY,
    FOREIGN,
    IDLE,
    LAWS,
    PACE,
    REST_SPREAD,
    RESTED,
    ROUNDING,
    Estimate,
)

# Relative random walk per square root of a second: of all laws together, and of each alone.
GAIN_WALK, GAIN_WALK_ALONE = 0.003, 0.005
# Relative random walk of the idle draw per square root of a second: of all classes of rest together, and of
# each alone.
IDLE_WALK, IDLE_WALK_ALONE = 0.002, 0.003
IDLE_WALKS = IDLE_WALK**2 + IDLE_WALK_ALONE**2 * np.eye(CLASSES)
# The same of what batches cost more after a rest, relative to how far that was known at first.
REST_WALK = 0.03
DRIFT_STEP_S = 0.1  # all of this drifts in steps of so much time
DRIFTS_S = 20.0  # and for so long after it was last heard: a night does not make it less known than a minute

# Deviations are told this much wider than the filter believes them: no law has quite this form. Chosen so
# that in random simulated worlds nine of ten cover 90 %, and all together no more than 98 %
# (`make bench-attribution`).
INFLATION = 1.15

TWO_SIDED = 1.96  # standard deviations on either side hold 95 %
OUTLIER = 4.0  # an edge further off than this many standard deviations is a surprise
TREND = 0.2  # weight of the newest surprise in their running mean
TREND_LIMIT = 1.4  # a running mean beyond this, in standard deviations, says that the laws have changed
# Relative deviation of laws that have changed from what they were: of all together, and of each alone.
CHANGE, CHANGE_ALONE = 0.1, 0.03

# At another pace a device takes other joules for the same work: relatively by about as much, or half as much
# again, all variants together, and each alone by a tenth of that.
GAIN_PER_PACE, ALONE_OF_GAIN, MOST_GAIN = 1.5, 0.1, 0.4

FOREIGN_WALK = 0.3  # random walk of a foreign load per square root of a second, relative to the idle draw
FOREIGN_JUMP = 3.0  # an edge this many standard deviations off means that the foreign load has changed
AWAKE = 3  # so many classes of rest are too short for a device to go to sleep

LEAST_SPAN_S = 1e-3  # power is not told from edges closer than this

LEAST_AFTER_REST = -0.5  # no batch costs less than half because the device had rested


@dataclass(frozen=True, slots=True)
class _Learned:
    """What was learned by an instant: values and covariance of all but the open batches."""

    names: tuple[str, ...]
    x: Array
    p: Array
    scatter: float
    trend: float


class EnergyFilter:
    """Teaches `estimate`. `declared_idle_w` is the idle draw where it is known and not learned, and so is
    `declared_cpu_w`, which a second of CPU time costs."""

    def __init__(
        self,
        declared_idle_w: float | None = None,
        foreign: ForeignLoad | None = None,
        declared_cpu_w: float | None = None,
    ) -> None:
        self.estimate = Estimate()
        self.foreign = foreign or ForeignLoad()  # what else may draw on the device
        self.idle_is_known = declared_idle_w is not None
        self._declared_idle_w = declared_idle_w
        if declared_idle_w is not None:
            self.estimate.x[IDLE] = declared_idle_w
        self._declared_cpu_w = declared_cpu_w
        self._declare()
        self.edges = self.covered_edges = (
            0  # that taught it; of these, off by no more than their 95 % interval
        )
        self._scatter = 1.0
        self._trend = 0.0
        self._drifted_s = 0.0
        self._undisturbed: _Learned | None = None  # as of the last word that others do not use the device
        self._beside_s: Array = np.zeros(CLASSES)  # seconds of each class of rest beside a foreign load
        self._unheard_s: Array = np.zeros(CLASSES)  # since each class of rest was last heard
        self.has_fallen = False  # at the last edge: a device that rests draws less at once (`device.Sleep`)
        self._least: Array = np.zeros(0)  # that each value but those of batches may be
        self._low_j = 0.0  # by how much the last edge was too low for one that rests; it waits for the next

    @property
    def consistency(self) -> float | None:
        """How far edges with batches were off lately: mean square over the one that it expected, so that 1 is
        where it knows what it does not know. None before the first of them."""
        return self._scatter if self.edges else None

    @property
    def deviations_j(self) -> Array:
        """Standard deviations of one batch of each open entry, in joules."""
        estimate = self.estimate
        whole = np.maximum(estimate.variances(slice(estimate.size, None)), 0.0)
        variances = whole / estimate.counts**2 + estimate.scatter_alone
        return INFLATION * np.sqrt(variances * max(self._scatter, 1.0))

    def hear_idle(self, watts: float) -> None:
        """The first idea of the idle draw."""
        self.estimate.set_idle(watts)
        self.idle_is_known = True

    def hear_before_work(self, watts: float) -> None:
        """An edge before the first batch: a device that wakes is no sign of somebody else."""
        if abs(watts - self.estimate.idle_w[-1]) > REST_SPREAD * self.estimate.idle_w[-1]:
            self.hear_idle(watts)

    def hear_others(self, at_work: float | None) -> None:
        """How much of the device other processes used lately. The word of it comes late: what was learned
        since they were last told to use none of it may be of what they drew, and is taken back."""
        self.foreign.at_work = at_work
        if self.foreign.is_told and self._undisturbed is not None:
            self._take_back(self._undisturbed)
            self._undisturbed = None
        elif at_work is not None and not self.foreign.is_told and not self.foreign.is_open:
            estimate, size = self.estimate, self.estimate.size
            self._undisturbed = _Learned(
                tuple(estimate.names), estimate.x[:size].copy(), estimate.p[:size, :size].copy(),
                self._scatter, self._trend,
            )  # fmt: skip

    def _take_back(self, learned: _Learned) -> None:
        """All but the carry, which is what has been booked since; nothing where variants have come since."""
        estimate = self.estimate
        if learned.names != tuple(estimate.names):
            return
        at = np.r_[IDLE, RESTED.start : estimate.size]
        estimate.pin(at, learned.x[at])
        estimate.p[np.ix_(at, at)] = learned.p[np.ix_(at, at)]
        self._scatter, self._trend = learned.scatter, learned.trend

    def start_from(self, fit: Fit) -> None:
        """Idle draw and laws as a calibration found them. Only while no batch is open."""
        estimate = self.estimate
        for name, base in zip(fit.laws, fit.bases, strict=True):
            estimate.put_variant(name, base, np.zeros((SMOOTH, SMOOTH)))
            estimate.known.add(name)
        at = np.r_[(IDLE, *(estimate.block(estimate.names.index(name)) for name in fit.laws))]
        estimate.pin(at, fit.values)
        estimate.p[np.ix_(at, at)] = fit.covariance
        if self._declared_idle_w is not None:
            estimate.pin(IDLE, self._declared_idle_w)
        self._declare()
        self._scatter = 1.0

    def _declare(self) -> None:
        if self._declared_cpu_w is not None:
            self.estimate.declare(CPU_TIME, self._declared_cpu_w * np.array(of_cpu_time(1.0)))

    def pass_time(self, rest_s: Array) -> None:
        """Laws and idle draw drift, for a while after they were last heard. Followed in steps, because it is
        slow. rest_s: seconds of each class of rest."""
        estimate = self.estimate
        passed_s = float(rest_s.sum())
        self._unheard_s += passed_s
        self._unheard_s[rest_s > 0] = 0.0
        self._drifted_s += passed_s
        if self._drifted_s < DRIFT_STEP_S:
            return
        dt_s, self._drifted_s = self._drifted_s, 0.0
        estimate.unheard_s += dt_s
        drifting = estimate.learned & (estimate.unheard_s < DRIFTS_S)
        estimate.doubt_laws(drifting, GAIN_WALK**2 * dt_s, GAIN_WALK_ALONE**2 * dt_s)
        is_known = estimate.variances(RESTED) < AFTER_REST**2
        estimate.doubt(RESTED, np.diag(is_known * (REST_WALK * AFTER_REST) ** 2 * dt_s))
        if self._declared_idle_w is None and self.idle_is_known:
            variance_w2 = (float(estimate.x[IDLE].sum()) / CLASSES) ** 2 * dt_s
            drifts = self._unheard_s < DRIFTS_S
            estimate.doubt(IDLE, variance_w2 * (drifts[:, None] & drifts) * IDLE_WALKS)

    def hear_pace(self, change: float) -> None:
        """The device works at another pace than before, by so much relatively: the gain common to all laws is
        doubted, and with it that of the batches that are open."""
        gain = min(GAIN_PER_PACE * abs(change), MOST_GAIN)
        alone = ALONE_OF_GAIN * gain
        estimate = self.estimate
        estimate.doubt_laws(estimate.learned, gain**2, alone**2, with_open=True)

    def update(
        self,
        pool_j: float,  # metered and given to nobody
        counted: Array,  # which part of each open batch is in the counter
        rest_s: Array,  # seconds of each class of rest that are not booked
        timing_j: float,  # standard deviation of the pool for not knowing the edge's instant
        expected_j: float,  # what batches deposited since the last edge
    ) -> float:
        """One edge; returns the joules of the pool that nothing known can explain."""
        estimate = self.estimate
        row = np.zeros(len(estimate.x))
        row[CARRY] = 1.0
        row[IDLE] = rest_s
        row[estimate.size :] = counted
        dt_s, is_busy = float(rest_s.sum()), bool(counted.any())
        off_j = pool_j - float(row @ estimate.x) - estimate.foreign_w * dt_s
        spread = estimate.spread(row)
        variance = self._variance(row, spread, pool_j, timing_j)
        deviation_j = float((variance * max(self._scatter, 1.0)) ** 0.5)
        if self._declared_idle_w is None:
            may_sleep = not is_busy and not rest_s[:AWAKE].any()
            waited_j, self._low_j, self.has_fallen = self._low_j, 0.0, False
            if may_sleep:
                self._watch_for_sleep(off_j + estimate.foreign_w * dt_s, waited_j, deviation_j, rest_s)
            if self._low_j:
                return 0.0
            if waited_j:
                estimate.doubt_carry(waited_j + (off_j if self.has_fallen else 0.0))
                spread = estimate.spread(row)
                variance = self._variance(row, spread, pool_j, timing_j)
                deviation_j = float((variance * max(self._scatter, 1.0)) ** 0.5)
        may_be_anything = estimate.has_first_runs
        is_watched = not self.foreign.is_open and not may_be_anything
        if is_watched and self.foreign.is_suspected(off_j, deviation_j, expected_j):
            self.foreign.begin()
            self._beside_s = np.zeros(CLASSES)
        if self.foreign.is_open:
            self._beside_s += rest_s
            self._update_beside_foreign(row, off_j, pool_j, timing_j, dt_s)
            return 0.0
        excess_j = 0.0 if may_be_anything else float(max(off_j - OUTLIER * deviation_j, 0.0))
        estimate.x += spread * ((off_j - excess_j) / variance)
        estimate.learn(spread / variance**0.5)
        self._keep_positive()
        if is_busy and not may_be_anything and estimate.learned.any():
            self.edges += 1
            self.covered_edges += bool(abs(off_j) <= TWO_SIDED * INFLATION * deviation_j)
            surprise = min(max(off_j / variance**0.5, -OUTLIER), OUTLIER)
            self._scatter += 0.05 * (surprise * surprise - self._scatter)
            self._notice(surprise / max(self._scatter, 1.0) ** 0.5)
        return excess_j

    def _watch_for_sleep(self, off_j: float, waited_j: float, deviation_j: float, rest_s: Array) -> None:
        """Whether an edge of a device that rests is too low to be its idle draw. One alone may be out of its
        place, and waits for the next; two in a row say that the device has gone to sleep: what is known of it
        awake stays as it was. off_j: without what something else draws. waited_j: by how much the last edge
        was off, where it waits."""
        estimate = self.estimate
        own_j, rest_j = off_j - waited_j, float(rest_s @ estimate.idle_w)
        if own_j > -max(OUTLIER * deviation_j, REST_SPREAD * rest_j):
            return
        if not waited_j:
            self._low_j = off_j
            return
        self.has_fallen = True
        apart_w = (rest_j + own_j) / float(rest_s.sum()) - float(estimate.idle_w[-1])
        estimate.p[IDLE.stop - 1, IDLE.stop - 1] += apart_w**2

    def _variance(self, row: Array, spread: Array, pool_j: float, timing_j: float) -> float:
        """Of an edge; rounding must not make it vanish."""
        return max(float(row @ spread), 0.0) + timing_j**2 + (ROUNDING * pool_j) ** 2 + 1e-6

    def _update_beside_foreign(
        self, row: Array, off_j: float, pool_j: float, timing_j: float, dt_s: float
    ) -> None:
        """An edge while something else draws on the device: its draw is followed, no law learns."""
        estimate = self.estimate
        idle_w = float(estimate.x[IDLE].mean())
        estimate.p[FOREIGN, FOREIGN] += (FOREIGN_WALK * idle_w) ** 2 * dt_s
        row[FOREIGN] = dt_s
        spread = estimate.spread(row)
        variance = self._variance(row, spread, pool_j, timing_j)
        if abs(off_j) > FOREIGN_JUMP * variance**0.5:
            estimate.p[FOREIGN, FOREIGN] += (off_j / max(dt_s, LEAST_SPAN_S)) ** 2
            spread = estimate.spread(row)
            variance = self._variance(row, spread, pool_j, timing_j)
        gain = spread / variance
        gain[RESTED.start : estimate.size] = 0.0
        estimate.x += gain * off_j
        estimate.p[:] += np.outer(gain, gain) * variance - np.outer(gain, spread) - np.outer(spread, gain)
        self._keep_positive()
        deviation_w = max(float(estimate.p[FOREIGN, FOREIGN]), 0.0) ** 0.5
        if self.foreign.has_ended(estimate.foreign_w, deviation_w, idle_w, dt_s):
            self._close_foreign()
        elif self.foreign.has_settled():
            heard = self._beside_s > 0
            estimate.x[IDLE] += estimate.foreign_w * heard
            estimate.p[IDLE, IDLE] += estimate.p[FOREIGN, FOREIGN]
            estimate.p[IDLE, IDLE] += estimate.foreign_w**2 * np.outer(~heard, ~heard)
            self._close_foreign()

    def _close_foreign(self) -> None:
        self.foreign.is_open = False
        self.estimate.pin(FOREIGN, 0.0)

    def _keep_positive(self) -> None:
        """No draw and no coefficient is negative. What one is raised by, those take back that the counter
        cannot tell from it: else every edge would add energy that nothing has used."""
        estimate = self.estimate
        if len(self._least) != estimate.size:
            self._least = np.full(estimate.size, -np.inf)
            self._least[IDLE] = self._least[FOREIGN] = self._least[PACE] = 0.0
            self._least[RESTED] = LEAST_AFTER_REST
            self._least[LAWS:].reshape(-1, SIZE)[:, :SMOOTH] = 0.0
        least = self._least
        for at in np.flatnonzero(estimate.x[: estimate.size] < least).tolist():
            short = float(least[at] - estimate.x[at])
            column = estimate.column(at)
            if short > 0 and column[at] > 0:
                estimate.x += column * (short / column[at])
        np.maximum(estimate.x[: estimate.size], least, out=estimate.x[: estimate.size])

    def _notice(self, surprise: float) -> None:
        """Surprises that keep their sign mean that the laws have changed: they are doubted."""
        self._trend += TREND * (surprise - self._trend)
        if abs(self._trend) < TREND_LIMIT:
            return
        self._trend = 0.0
        self.estimate.doubt_laws(self.estimate.learned, CHANGE**2, CHANGE_ALONE**2)
