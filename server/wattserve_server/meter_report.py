"""A meter's probe in words, and as plain JSON values. Knows no sensor and prints nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from wattserve_server.energy.probe import CrossCheck, SensorProbe, poll_period_s
from wattserve_server.energy.reading import Source
from wattserve_server.meters.choose import ChosenMeter
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.port import Meter
from wattserve_server.meters.probe import ProbedMeter

_UNKNOWN = "not known"


def as_text(chosen: ChosenMeter, probed: ProbedMeter) -> str:
    """For people: a heading and a line per finding; the parts of a composite follow."""
    meter = chosen.meter
    period_s = poll_period_s(probed.probe, meter.poll_period_s)
    lines = [chosen.notice, *_probe_lines(probed.probe)]
    lines.append(_line("declared idle", _watts(meter.idle_watts, "none: the server measures it")))
    lines.append(_line("neighbours", _neighbours(meter.neighbours())))
    lines.append(_line("the server reads", f"every {_time(period_s)}"))
    if isinstance(meter, CompositeMeter):
        for part, probe in zip(meter.meters, probed.parts, strict=False):
            lines += ["", f"part {part.source.name}: {part.source.boundary}", *_probe_lines(probe)]
    return "\n".join(lines)


def as_plain(meter: Meter, probed: ProbedMeter) -> dict[str, Any]:
    """For programs: units in the names, null where nothing is known."""
    found = _meter_plain(meter, probed.probe)
    found["poll_period_s"] = poll_period_s(probed.probe, meter.poll_period_s)
    found["parts"] = []
    if isinstance(meter, CompositeMeter):
        pairs = zip(meter.meters, probed.parts, strict=False)
        found["parts"] = [_meter_plain(part, probe) for part, probe in pairs]
    return found


def _meter_plain(meter: Meter, probe: SensorProbe) -> dict[str, Any]:
    plain = asdict(probe)
    for check, values in zip(probe.cross_checks, plain["cross_checks"], strict=True):
        values["difference_ratio"] = check.difference_ratio
    return {
        "source": _source_plain(meter.source),
        "idle_watts": meter.idle_watts,
        "neighbours": meter.neighbours(),
        "wraps_at_uj": None if meter.wraps_at is None else meter.wraps_at.uj,
        "probe": plain,
    }


def _source_plain(source: Source) -> dict[str, str]:
    return asdict(source) | {"quality": source.quality.value}


def _probe_lines(probe: SensorProbe) -> list[str]:
    lines = [_line("probed", f"{probe.duration_s:.3g} s, {probe.reads} reads")]
    if probe.read_cost_p50_s is not None and probe.read_cost_p99_s is not None:
        lines.append(_line("updates", _updates(probe)))
        cost = f"{_time(probe.read_cost_p50_s)} median, {_time(probe.read_cost_p99_s)} p99"
        lines.append(_line("a read takes", cost))
        uj = probe.resolution_uj
        lines.append(
            _line("resolution", _UNKNOWN if uj is None else f"all changes are multiples of {uj:,} uJ")
        )
        lines.append(_line("drawn meanwhile", _watts(probe.watts, _UNKNOWN)))
    lines += [_line("against power", _check(check)) for check in probe.cross_checks]
    lines += [_line("not available", f"{what}: {why}") for what, why in probe.unsupported.items()]
    return lines


def _updates(probe: SensorProbe) -> str:
    if probe.resolution_uj is None:
        return "none seen"
    if probe.update_period_s is None or probe.edge_jitter_s is None:
        return "in steps" if probe.stepped else "not seen as steps"
    return f"in steps every {_time(probe.update_period_s)}, deviating by {_time(probe.edge_jitter_s)}"


def _check(check: CrossCheck) -> str:
    ratio = check.difference_ratio
    difference = "" if ratio is None else f": {ratio * 100:+.1f} %"
    return (
        f"over {check.window_s:.2f} s the counter says {check.counter_joules:.2f} J, "
        f"integrated power {check.power_joules:.2f} J{difference}"
    )


def _neighbours(count: int | None) -> str:
    return _UNKNOWN if count is None else f"{count} other processes on the device"


def _watts(watts: float | None, otherwise: str) -> str:
    return otherwise if watts is None else f"{watts:.3g} W"


def _time(seconds: float) -> str:
    if seconds >= 0.001:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def _line(name: str, text: str) -> str:
    return f"  {name:<18}{text}"
