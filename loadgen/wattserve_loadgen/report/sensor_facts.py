"""What a report says of the sensor: the server's probe of it, in words. It knows no HTML.

Reads the meter as the server stated it, a MeterInfo as plain JSON values; an older server states less.
"""

from __future__ import annotations

from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.results.sensor import cross_checks


def sensor_facts(meter: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Names and texts; None where there is nothing to say."""
    probe = meter.get("probe") or {}
    neighbours = meter.get("neighbours")
    return [
        ("Sensor at start-up", _sensor(probe)),
        ("Counter against power", cross_checks(meter) or None),
        ("Not shown by the sensor", _unsupported(probe)),
        ("Counting lag and ramp", _lag_and_ramp(meter)),
        ("Other processes on the device", None if neighbours is None else str(neighbours)),
        ("Meter is the sum of", _parts(meter)),
    ]


def _sensor(probe: dict[str, Any]) -> str | None:
    if not probe or probe.get("read_cost_p50_seconds") is None:
        return None
    texts = [f"{probe['reads']:,} reads in {probe['duration_seconds']:.3g} s"]
    update, jitter = probe.get("update_period_seconds"), probe.get("edge_jitter_seconds")
    if update is None:
        texts.append("no steps to be seen")
    else:
        deviation = "" if jitter is None else f" (deviation {_milliseconds(jitter)})"
        texts.append(f"steps every {_milliseconds(update)}{deviation}")
    texts.append(
        f"a read takes {_milliseconds(probe['read_cost_p50_seconds'])},"
        f" p99 {_milliseconds(probe.get('read_cost_p99_seconds'))}"
    )
    if probe.get("resolution_uj"):
        texts.append(f"changes are multiples of {words.energy(probe['resolution_uj'])}")
    if probe.get("watts") is not None:
        texts.append(f"{words.significant(probe['watts'])} W drawn meanwhile")
    return ", ".join(texts)


def _unsupported(probe: dict[str, Any]) -> str | None:
    return "; ".join(f"{what}: {why}" for what, why in (probe.get("unsupported") or {}).items()) or None


def _lag_and_ramp(meter: dict[str, Any]) -> str | None:
    known = [
        f"{name} {_milliseconds(meter[field])}"
        for name, field in (("lag", "lag_seconds"), ("ramp", "ramp_seconds"))
        if meter.get(field) is not None
    ]
    return f"{', '.join(known)}, as the server estimated them when the sweep began" if known else None


def _parts(meter: dict[str, Any]) -> str | None:
    parts = meter.get("parts") or []
    return "; ".join(f"{one['source']['name']} ({one.get('boundary')})" for one in parts) or None


def _milliseconds(seconds: float | None) -> str:
    return words.milliseconds(None if seconds is None else seconds * 1e9)
