"""Where a sweep's joules come from, meter by meter: what every caption carries. It knows no HTML."""

from __future__ import annotations

from typing import Any

from wattserve_loadgen.plan.load import Arm
from wattserve_loadgen.results.schema import Results, TargetSummary

QUALITIES = {"simulated": 0, "estimated": 1, "measured": 2}
_READ_HERE = "read by loadgen"


def meters_of(results: Results) -> list[dict[str, Any]]:
    """A MeterInfo for each meter that an arm's joules come from, each once."""
    found: list[dict[str, Any]] = []
    for target in results.targets:
        arms = [arm for arm in results.plan.arms if arm.target == target.name]
        found += [meter for meter in _of_target(target, arms) if meter not in found]
    return found


def energy_sources(results: Results) -> list[dict[str, Any]]:
    """An EnergySource for each of `meters_of`, the least trustworthy first; [{}] when none is stated."""
    sources: list[dict[str, Any]] = []
    for meter in meters_of(results):
        source = meter.get("source") or {}
        if source not in sources:
            sources.append(source)
    return sorted(
        sources or [{}], key=lambda source: QUALITIES.get(source.get("quality", ""), len(QUALITIES))
    )


def energy_source(results: Results) -> dict[str, Any]:
    """The least trustworthy of `energy_sources`."""
    return energy_sources(results)[0]


def source_line(results: Results) -> str:
    """`estimate · apportioned estimate · ESTIMATED`: what every caption carries."""
    own = [
        (target.meter.get("source") or {}).get("name")
        for target in results.targets
        if target.meter_origin == "loadgen"
    ]
    lines = [
        " · ".join(
            [
                str(source["name"]),
                str(source["method"]),
                str(source["quality"]).upper(),
                *([_READ_HERE] if source["name"] in own else []),
            ]
        )
        for source in energy_sources(results)
        if source.get("quality") in QUALITIES
    ]
    return " and ".join(lines) or "no meter: no joules"


def _of_target(target: TargetSummary, arms: list[Arm]) -> list[dict[str, Any]]:
    """Of the devices on which the swept variants run, where the server has several meters."""
    if target.meter_origin == "none":
        return []
    server = target.server
    others = server.get("other_meters") or []
    if target.meter_origin != "server" or not others:
        return [target.meter] if target.meter else []
    meters = [server.get("meter") or {}, *others]
    swept = {arm.variant for arm in arms}
    devices = {one.get("device") for one in server.get("variants", []) if one["name"] in swept}
    return [meter for meter in meters if meter.get("device") in devices] or meters[:1]
