"""How a device behaves beside and around its batches.

Its idle draw, by the time since the last batch. Its response: when the counter shows what a batch has used.
Foreign load: when to believe that something else draws on it. Pure; `filter` learns the figures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from wattserve_server.energy.costlaw import CLASSES, REST_S, Array

# -- idle draw
# A board idles differently just after work than after a long rest: idle power has one level for each class
# of that time (`costlaw.rest_class`).


def rest_times(
    since_s: float,
    until_s: float,
    busy: Sequence[tuple[float, float]],
    last_end_s: float,
    asleep_after_s: float = REST_S[-1],
) -> Array:
    """Seconds of [since_s, until_s] in each class of rest; they sum to its length.

    busy: windows (start, end) that touch the span, by their start. last_end_s: when work had ended
    before them; -inf if there was none. asleep_after_s: the rest from which on all is of the last class.
    """
    times = np.zeros(CLASSES)
    at = since_s
    for start, end in busy:
        if start > at:
            _rest(times, at, min(start, until_s), last_end_s, asleep_after_s)
        last_end_s = max(last_end_s, end)
        reached = min(max(end, at), until_s)
        times[0] += reached - max(at, min(start, until_s))
        at = max(at, reached)
        if at >= until_s:
            return times
    _rest(times, at, until_s, last_end_s, asleep_after_s)
    return times


def _rest(times: Array, since_s: float, until_s: float, last_end_s: float, asleep_after_s: float) -> None:
    low, high = since_s - last_end_s, until_s - last_end_s
    if high <= REST_S[0]:
        times[0] += until_s - since_s
    elif low >= asleep_after_s:
        times[-1] += until_s - since_s
    else:
        bounds = np.array([0.0, *REST_S[:-1], asleep_after_s, np.inf])
        np.minimum(bounds[:-1], asleep_after_s, out=bounds[:-1])
        times += np.maximum(np.minimum(high, bounds[1:]) - np.maximum(low, bounds[:-1]), 0.0)


@dataclass(slots=True)
class Sleep:
    """When a device that rests draws less at once: boards do so in their lowest state of performance. From
    then on until it works again it draws what it does after the longest rest."""

    usually_after_s: float = REST_S[-1]  # the longest rest in which it was seen awake, where it then fell
    after_s: float = REST_S[-1]  # in this rest

    def fall(self, after_s: float) -> None:
        """It has, after so long a rest."""
        self.after_s = after_s
        self.usually_after_s = max(self.usually_after_s, after_s)

    def wake(self) -> None:
        self.after_s = self.usually_after_s


# -- response
# A batch's energy is drawn evenly over its window, smeared by the device's rise and decay (a first-order time
# constant) and by the sensor's trailing average, and counted a lag later.

DECAYS = 3.5  # after this many time constants 97 % of a batch's energy has been drawn
LEAST_S = 1e-6  # a batch is taken to last at least this long

MOST_LAG_S, MOST_RAMP_S = 0.3, 0.15  # longer ones are not looked for
MOST_AT_RANDOM = 0.1  # of uneven draw; more of it, and the counter is not explained

AT_ITS_BOUNDS = "its lag or ramp is longer than any that is looked for ({lag_s:g} and {ramp_s:g} s)"
COUNTED_AT_RANDOM = (
    "{part:.0%} of what the device draws unevenly is counted at random: the sensor may look for part of the"
    " time only"
)
NOT_RESOLVED = "the response of the counter is not resolved: {why}"


def uneven_j(batches_j: Array | float, busy: Array | float) -> Array:
    """How unevenly an interval's joules of batches were drawn that ran for a part (busy) of its time: the
    standard deviation of what so long a time would show of them, looked at anywhere in the interval."""
    part = np.clip(busy, 1e-3, 1.0)
    spread: Array = batches_j * np.sqrt((1.0 - part) / part)
    return spread


@dataclass(frozen=True, slots=True)
class Response:
    lag_s: float = 0.0  # from drawing to being counted
    ramp_s: float = 0.0  # time constant of rise and decay
    average_s: float = 0.0  # over which the sensor counts the mean of the power; 0: the power itself
    # Standard deviation of what an interval counts from all of this, in parts of its `uneven_j`.
    at_random: float = 0.0

    @property
    def reach_s(self) -> float:
        """How long after its window's end nearly all of a batch's energy has been counted."""
        return self.lag_s + DECAYS * self.ramp_s + self.average_s

    @property
    def delay_s(self) -> float:
        """How late energy is counted in the mean: this is told closely where lag and ramp apart are not."""
        return self.sensor_delay_s + self.ramp_s

    @property
    def sensor_delay_s(self) -> float:
        """What of that is not the time in which power rises."""
        return self.lag_s + self.average_s / 2

    @property
    def is_at_its_bounds(self) -> bool:
        """Whether the search ended at a bound: what the counter says may then be of any batches."""
        return self.lag_s >= MOST_LAG_S or self.ramp_s >= MOST_RAMP_S

    @property
    def unresolved(self) -> str:
        """Why this is not how the counter answers; empty where it is."""
        why = ""
        if self.is_at_its_bounds:
            why = AT_ITS_BOUNDS.format(lag_s=MOST_LAG_S, ramp_s=MOST_RAMP_S)
        elif self.at_random > MOST_AT_RANDOM:
            why = COUNTED_AT_RANDOM.format(part=self.at_random)
        return why and NOT_RESOLVED.format(why=why)

    def counted(self, at_s: Array | float, start_s: Array, end_s: Array) -> Array:
        """Which fraction of a window's energy the counter holds at an instant; broadcasts."""
        end_s = np.maximum(end_s, start_s + LEAST_S)
        duration = end_s - start_s
        drawn_s = at_s - self.lag_s
        fraction = (self._drawn(drawn_s - start_s) - self._drawn(drawn_s - end_s)) / duration
        return np.clip(fraction, 0.0, 1.0)

    def _drawn(self, for_s: Array) -> Array:
        """The integral of the answer to a unit step, this long after it."""
        if not self.average_s:
            return self._risen(np.maximum(for_s, 0.0))
        # The integral of `_risen` over the average's width, without the difference of two large squares.
        until_s, since_s = np.maximum(for_s, 0.0), np.maximum(for_s - self.average_s, 0.0)
        evenly = (until_s - since_s) * (until_s + since_s) / 2
        drawn: Array = evenly - self.ramp_s * (self._risen(until_s) - self._risen(since_s))
        return drawn / self.average_s

    def _risen(self, for_s: Array) -> Array:
        """The same before any average is taken, from the step on."""
        if self.ramp_s <= 0.0:
            return for_s
        return for_s + self.ramp_s * np.expm1(-for_s / self.ramp_s)


# -- foreign load
# Seen by what the driver or the system tells of other processes' work, or only by a floor that neither idle
# draw nor batches explain. That somebody is listed says little: who only holds the device draws nothing.

UNEXPLAINED = 4.0  # an edge this many standard deviations above everything known is unexplained
BEYOND_LAWS = 0.4  # no law is off by more than this part of what it predicts: what is, is something else
# Where somebody is listed of whose work nothing is told, edges are unexplained together: once by so many
# standard deviations beyond so many at each (a cumulative sum).
TOGETHER, EACH = 6.0, 0.5
QUIET_WORK = 0.05  # others that use so little of the device, or of a core, are taken to draw nothing
QUIET_EDGES = 10  # after so many edges without a sign of it, foreign load is taken to have ended
SETTLES_AFTER_S = 60.0  # an unexplained floor that stays so long, with nobody seen, has become the idle draw

# What receipts say.
_TAKEN_OFF = "about {watts:.3g} W, estimated and taken off"
SEEN_LOAD = f"other processes ({{count}}) used the device meanwhile: {_TAKEN_OFF}"
UNSEEN_LOAD = f"the device drew more than its idle draw and its batches explain: {_TAKEN_OFF}"


@dataclass(slots=True)
class ForeignLoad:
    """Decides whether something else draws on the device; `filter` estimates how much."""

    # Whether an unexplained floor speaks of foreign load: not where the server's own work makes one.
    watches_floor: bool = True
    neighbours: int | None = None  # other processes on the device; None where nobody can tell
    at_work: float | None = None  # how much of the device they used lately; None where nobody can tell
    is_open: bool = False  # something else draws now
    for_s: float = 0.0
    _lately_w: deque[float] = field(default_factory=lambda: deque(maxlen=QUIET_EDGES))  # with nobody told of
    _sum: float = 0.0

    @property
    def is_told(self) -> bool:
        """Whether somebody is known to compute on the device."""
        return self.at_work is not None and self.at_work > QUIET_WORK

    def warning(self, watts: float) -> str:
        """What the receipts of batches say beside a load that draws so much."""
        words = SEEN_LOAD if self.neighbours else UNSEEN_LOAD
        return words.format(count=self.neighbours, watts=watts)

    def is_suspected(self, off_j: float, deviation_j: float, expected_j: float) -> bool:
        """Whether an edge this far above what is known speaks of it. expected_j: of batches."""
        if self.is_told:
            return True
        is_beyond = self.watches_floor and off_j > BEYOND_LAWS * expected_j
        if self.neighbours and self.at_work is None:
            self._sum = max(self._sum + off_j / deviation_j - EACH, 0.0)
            return is_beyond and self._sum > TOGETHER
        return is_beyond and off_j > UNEXPLAINED * deviation_j

    def begin(self) -> None:
        self.is_open, self.for_s, self._sum = True, 0.0, 0.0
        self._lately_w.clear()

    def has_ended(self, watts: float, deviation_w: float, idle_w: float, dt_s: float) -> bool:
        """After an edge at which it seemed to draw `watts`, give or take."""
        self.for_s += dt_s
        if self.is_told:
            self._lately_w.clear()
            return False
        self._lately_w.append(watts)
        if len(self._lately_w) < QUIET_EDGES:
            return False
        # By the mean: of edges that each give or take, one in ten alone looks like somebody.
        is_low = max(watts, fmean(self._lately_w)) < max(2 * deviation_w, 0.05 * idle_w)
        # Where the floor is no sign of somebody, it is none of somebody who has not gone.
        return is_low or not self.watches_floor

    def has_settled(self) -> bool:
        """Whether what it draws is the device's idle draw by now."""
        return self.for_s > SETTLES_AFTER_S and not self.is_told and not self.neighbours
