"""What a meter says of its own sensor: MeterInfo as plain JSON values, of which an older server states less.

Knows no measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sensor_period_seconds(meter: Mapping[str, Any]) -> float | None:
    """How often a reading can bring something new: the sensor's own period or the poll's, the longer. None
    without a meter.
    """
    known = [meter.get(name) for name in ("update_period_seconds", "poll_period_seconds")]
    return max((float(one) for one in known if one), default=None)


def cross_checks(meter: Mapping[str, Any]) -> str:
    """The sensor's counter against its own power, integrated over the same time, as the server's probe found
    them when it started; "" where it did not look.
    """
    return "; ".join(map(_cross_check, (meter.get("probe") or {}).get("cross_checks") or []))


def _cross_check(check: Mapping[str, Any]) -> str:
    counter, power = check["counter_joules"], check["power_joules"]
    difference = f" ({(counter / power - 1) * 100:+.1f} %)" if power > 0 else ""
    return f"{counter:.2f} J against {power:.2f} J over {check['window_seconds']:.2f} s{difference}"
