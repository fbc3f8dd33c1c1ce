"""Energy between two instants, from the readings of a cumulative meter around them; or why there is none.

Readings seldom fall on a window's edges, so the counter is interpolated there, between readings that bracket
the edge and lie close enough together. Pure; knows nothing of clocks or requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.model.cells import MeterWindow

Floats = npt.NDArray[np.float64]


class NoEnergy(StrEnum):
    """Why a window has no energy."""

    NO_READINGS = "no_readings"
    NO_READING_BEFORE = "no_reading_before"
    NO_READING_AFTER = "no_reading_after"
    GAP_AT_START = "gap_at_start"
    GAP_AT_END = "gap_at_end"
    GAP_INSIDE = "gap_inside"
    COUNTER_WENT_BACK = "counter_went_back"


_REASONS = {
    NoEnergy.NO_READINGS: "the meter gave no reading",
    NoEnergy.NO_READING_BEFORE: "no reading before the window began",
    NoEnergy.NO_READING_AFTER: "no reading after the window ended",
    NoEnergy.GAP_AT_START: "more than {limit:g} s between the readings around the window's start",
    NoEnergy.GAP_AT_END: "more than {limit:g} s between the readings around the window's end",
    NoEnergy.GAP_INSIDE: "more than {limit:g} s between two readings in the window",
    NoEnergy.COUNTER_WENT_BACK: "the meter's counter went back",
}


def delta_between(
    seconds: Floats, joules_cumulative: Floats, start: float, end: float, limit_seconds: float
) -> float | NoEnergy:
    """Joules from `start` to `end`, the counter interpolated linearly at both.

    `seconds` must not decrease; a reading that is not finite counts as missing. An interval between
    readings that touches the window and is longer than `limit_seconds` leaves it without a figure.
    """
    if not start < end:
        raise ValueError(f"a window from {start} to {end} s is empty")
    at, joules = _readings(seconds, joules_cumulative)
    if len(at) == 0:
        return NoEnergy.NO_READINGS
    if at[0] > start:
        return NoEnergy.NO_READING_BEFORE
    if at[-1] < end:
        return NoEnergy.NO_READING_AFTER
    first = int(np.searchsorted(at, start, side="right")) - 1  # the last reading up to the start
    last = int(np.searchsorted(at, end, side="left"))  # the first one from the end on
    at, joules = at[first : last + 1], joules[first : last + 1]
    if np.any(np.diff(joules) < 0):
        return NoEnergy.COUNTER_WENT_BACK
    too_long = np.diff(at) > limit_seconds
    if too_long[0]:
        return NoEnergy.GAP_AT_START
    if too_long[-1]:
        return NoEnergy.GAP_AT_END
    if too_long.any():
        return NoEnergy.GAP_INSIDE
    return _line(at[-2:], joules[-2:], end) - _line(at[:2], joules[:2], start)


def meter_window(
    readings_seconds: Floats, readings_joules: Floats, start: float, end: float, limit_seconds: float
) -> MeterWindow:
    """The meter over a cell's window.

    Readings are of a cumulative counter, in order, and on the clock of `start` and `end`; one that is not
    finite counts as missing. An interval above `limit_seconds` leaves the window without a figure.
    """
    if not start < end:
        return MeterWindow(None, 0.0, 0, None, None, None, "no_window: it has no length")
    at, joules = _readings(readings_seconds, readings_joules)
    inside = (at >= start) & (at <= end)
    around = at[max(0, int(np.searchsorted(at, start, "right")) - 1) : int(np.searchsorted(at, end)) + 1]
    energy = delta_between(at, joules, start, end, limit_seconds)
    reason, measured = "", None
    if isinstance(energy, NoEnergy):
        reason = f"{energy.value}: {_REASONS[energy].format(limit=limit_seconds)}"
    else:
        measured = energy
    return MeterWindow(
        measured_uj=None if measured is None else round(measured * 1e6),
        seconds=end - start,
        readings=int(inside.sum()),
        longest_gap_seconds=float(np.diff(around).max()) if len(around) > 1 else None,
        watts=None if measured is None else measured / (end - start),
        watts_deviation=power_deviation(at[inside], joules[inside]),
        reason=reason,
    )


def added_up(windows: Sequence[MeterWindow]) -> MeterWindow:
    """Several meters over one window. Where one has no figure the sum has none, with that reason."""
    first, *others = windows
    if not others:
        return first
    reason = next((window.reason for window in windows if window.reason), "")
    if reason:
        return replace(first, measured_uj=None, watts=None, watts_deviation=None, reason=reason)
    deviations = [window.watts_deviation for window in windows]
    gaps = [window.longest_gap_seconds or 0.0 for window in windows]
    return replace(
        first,
        measured_uj=sum(window.measured_uj or 0 for window in windows),
        readings=min(window.readings for window in windows),
        longest_gap_seconds=max(gaps),
        watts=sum(window.watts or 0.0 for window in windows),
        watts_deviation=None if None in deviations else math.hypot(*(value or 0.0 for value in deviations)),
    )


def power_deviation(seconds: Floats, joules_cumulative: Floats) -> float | None:
    """The standard deviation, in watts, of the powers between readings, each weighing as much as it is long.

    `seconds` must not decrease. None with fewer than two instants, and when the counter went back.
    """
    at, joules = _readings(seconds, joules_cumulative)
    steps, grown = np.diff(at), np.diff(joules)
    total = float(np.sum(steps))
    if total <= 0 or np.any(grown < 0):
        return None
    watts, weights = grown[steps > 0] / steps[steps > 0], steps[steps > 0]
    mean = float(np.sum(grown)) / total
    return math.sqrt(float(np.sum(weights * (watts - mean) ** 2)) / total)


def _readings(seconds: Floats, joules: Floats) -> tuple[Floats, Floats]:
    if seconds.ndim != 1 or seconds.shape != joules.shape:
        raise ValueError(f"{seconds.shape} instants do not fit {joules.shape} readings")
    known = np.isfinite(seconds) & np.isfinite(joules)
    at = np.asarray(seconds[known], dtype=np.float64)
    if np.any(np.diff(at) < 0):
        raise ValueError("the instants of the readings must not decrease")
    return at, np.asarray(joules[known], dtype=np.float64)


def _line(at: Floats, joules: Floats, instant: float) -> float:
    """The counter at an instant between two readings."""
    (early, late), (least, most) = at, joules
    return float(least + (most - least) * (instant - early) / (late - early))
