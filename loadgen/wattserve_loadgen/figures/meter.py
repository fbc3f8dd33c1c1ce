"""What a meter's own count says about a cell.

Of a peer that writes no receipts it is all there is: what loadgen's own meter counts above the power at rest
is the peer's active energy, and its cells say so in their `method`. Pure; knows nothing of requests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.figures.account import ABOVE_REST, LedgerGrowth, unknown_growth
from wattserve_loadgen.figures.energy_window import NoEnergy, delta_between, power_deviation
from wattserve_loadgen.results.schema import MeterWindow

_REASONS = {
    NoEnergy.NO_READINGS: "the meter gave no reading",
    NoEnergy.NO_READING_BEFORE: "no reading before the window began",
    NoEnergy.NO_READING_AFTER: "no reading after the window ended",
    NoEnergy.GAP_AT_START: "more than {limit:g} s between the readings around the window's start",
    NoEnergy.GAP_AT_END: "more than {limit:g} s between the readings around the window's end",
    NoEnergy.GAP_INSIDE: "more than {limit:g} s between two readings in the window",
    NoEnergy.COUNTER_WENT_BACK: "the meter's counter went back",
}


def meter_window(
    readings_seconds: npt.NDArray[np.float64],
    readings_joules: npt.NDArray[np.float64],
    start: float,
    end: float,
    limit_seconds: float,
) -> MeterWindow:
    """The meter over a cell's window.

    Readings are of a cumulative counter, in order, and on the clock of `start` and `end`; one that is not
    finite counts as missing. An interval above `limit_seconds` leaves the window without a figure.
    """
    if not start < end:
        return MeterWindow(None, 0.0, 0, None, None, None, "no_window: it has no length")
    known = np.isfinite(readings_seconds) & np.isfinite(readings_joules)
    at, joules = readings_seconds[known], readings_joules[known]
    inside = (at >= start) & (at <= end)
    around = at[max(0, int(np.searchsorted(at, start, "right")) - 1) : int(np.searchsorted(at, end)) + 1]
    found = delta_between(at, joules, start, end, limit_seconds)
    reason = ""
    if isinstance(found, NoEnergy):
        reason = f"{found.value}: {_REASONS[found].format(limit=limit_seconds)}"
    measured = None if isinstance(found, NoEnergy) else found
    return MeterWindow(
        measured_uj=None if measured is None else round(measured * 1e6),
        seconds=end - start,
        readings=int(inside.sum()),
        longest_gap_seconds=float(np.diff(around).max()) if len(around) > 1 else None,
        watts=None if measured is None else measured / (end - start),
        watts_deviation=power_deviation(at[inside], joules[inside]),
        reason=reason,
    )


def growth_above_rest(
    meter: MeterWindow,
    rest_watts: float | None,
    rest_reason: str = "the power at rest was not measured before the sweep",
) -> LedgerGrowth:
    """The growth of a peer that keeps no ledger: what the meter counted over the window above the power at
    rest is active, the rest is idle. `rest_reason`: why the power at rest is unknown, where it is.
    """
    if meter.measured_uj is None:
        return unknown_growth(meter.reason, ABOVE_REST)
    if rest_watts is None:
        return unknown_growth(rest_reason, ABOVE_REST)
    idle_uj = round(rest_watts * meter.seconds * 1e6)
    if idle_uj > meter.measured_uj:
        return unknown_growth("the meter counted less than the power at rest before the sweep", ABOVE_REST)
    return LedgerGrowth(
        seconds=meter.seconds,
        measured_uj=meter.measured_uj,
        active_uj=meter.measured_uj - idle_uj,
        other_active_uj=None,
        idle_uj=idle_uj,
        unattributed_uj=None,
        gap_uj=None,
        pending_uj=None,
        sequences=0,
        gap_count=0,
        gap_seconds=0.0,
        reason="",
        method=ABOVE_REST,
    )
