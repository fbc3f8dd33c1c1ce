"""What repeats a sweep, as names and texts: meters, machines, dataset, plan. It knows no HTML.

A meter is a MeterInfo as plain JSON values, as its server stated it; an older server states less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wattserve_common.words import origin
from wattserve_loadgen import words
from wattserve_loadgen.model.results import Ceiling, Results, TargetSummary
from wattserve_loadgen.model.server_info import charged_by, cross_checks
from wattserve_loadgen.plan.load import Arm

QUALITIES = {"simulated": 0, "estimated": 1, "measured": 2}  # of an energy source, the best last
_ORIGINS = {"server": "read by the server", "loadgen": "read by loadgen itself", "none": "none"}


def facts(results: Results) -> list[tuple[str, str]]:
    """What is not known is left out."""
    client, plan, data = results.client, results.plan, results.dataset
    pairs: list[tuple[str, Any]] = [
        ("Energy source", source_line(results)),
        ("Boundary", results.boundary),
        ("Note of the meter", energy_sources(results)[0].get("note")),
    ]
    meters = meters_of(results)
    for meter in meters:
        name = f" ({(meter.get('source') or {}).get('name')})" if len(meters) > 1 else ""
        pairs += [(label + name, value) for label, value in _meter_facts(meter)]
    for target in results.targets:
        name = f" of {target.name}" if len(results.targets) > 1 else ""
        pairs += [(label + name, value) for label, value in _target_facts(target)]
    cpus, governor = client.get("usable_cpus"), client.get("governor") or "unknown"
    blocks = f"{plan.blocks} blocks, {plan.seconds:g} s a cell"
    objective = f", objective {plan.objective}" if plan.objective else ""
    lengths = "" if data.pixel_shape else f" of {data.min_tokens}–{data.max_tokens} tokens"
    pairs += [
        ("Client", f"loadgen {results.loadgen_version}, {client.get('cpu_model')}, {cpus} CPUs"),
        ("Client platform", f"{client.get('platform')}, Python {client.get('python')}, governor {governor}"),
        ("Client versions", _listed(client.get("packages"))),
        ("Client's ceiling", "; ".join(map(_ceiling, results.ceilings))),
        ("Git revision", client.get("git_revision")),
        ("Dataset", f"{data.folder}: {row_count(results)}{lengths}"),
        ("Mean length", "" if data.pixel_shape else f"{data.mean_tokens:.1f} tokens"),
        ("Dataset made from", _listed(data.description)),
        ("Dataset SHA-256", data.sha256),
        ("Plan", f"preset {plan.preset}, {blocks}, seed {plan.seed}{objective}"),
        ("Loads", ", ".join(load.name for load in plan.loads)),
        ("Warm-up", f"{plan.warmup_seconds:g} s before each window, and one heat-up block"),
        ("Command", " ".join(results.command)),
        ("Started", results.created),
    ]
    return [(name, str(value)) for name, value in pairs if value]


def row_count(results: Results) -> str:
    """`100 rows`, or `100 images of 3 × 224 × 224`."""
    data = results.dataset
    if not data.pixel_shape:
        return f"{data.rows} rows"
    return f"{data.rows} images of {' × '.join(map(str, data.pixel_shape))}"


def meters_of(results: Results) -> list[dict[str, Any]]:
    """Each meter that an arm's joules come from, once."""
    meters: list[dict[str, Any]] = []
    for target in results.targets:
        arms = [arm for arm in results.plan.arms if arm.target == target.name]
        meters += [meter for meter in _target_meters(target, arms) if meter not in meters]
    return meters


def _target_meters(target: TargetSummary, arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Where the server has several meters, those of the devices on which the arms ran."""
    if target.meter_origin == "none":
        return []
    server = target.server
    others = server.get("other_meters") or []
    if target.meter_origin != "server" or not others:
        return [target.meter] if target.meter else []
    meters = [server.get("meter") or {}, *others]
    swept = {arm.variant for arm in arms}
    devices = {about.get("device") for about in server.get("variants", []) if about["name"] in swept}
    return [meter for meter in meters if charged_by(meter) & devices] or meters[:1]


def energy_sources(results: Results) -> list[dict[str, Any]]:
    """The EnergySource of each of `meters_of`, the least trustworthy first; [{}] when none is stated."""
    sources: list[dict[str, Any]] = []
    for meter in meters_of(results):
        source = meter.get("source") or {}
        if source not in sources:
            sources.append(source)
    return sorted(
        sources or [{}], key=lambda source: QUALITIES.get(source.get("quality", ""), len(QUALITIES))
    )


def origin_of(source: Mapping[str, Any]) -> str:
    """What the sum is, and how it became a request's: `measured by rapl:package-0 (apportioned counter)`."""
    return f"{origin(source['quality'], source['name'])} ({source['method']})"


def source_line(results: Results) -> str:
    """`MEASURED by rapl:package-0 (apportioned counter)`, `ESTIMATED from CPU time (apportioned estimate)`:
    what every caption carries.
    """
    own = [
        (target.meter.get("source") or {}).get("name")
        for target in results.targets
        if target.meter_origin == "loadgen"
    ]
    lines = [
        origin_of(source).replace(source["quality"], source["quality"].upper(), 1)
        + (", read by loadgen" if source["name"] in own else "")
        for source in energy_sources(results)
        if source.get("quality") in QUALITIES
    ]
    return " and ".join(lines) or "no meter: no joules"


def _meter_facts(meter: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The sensor as the server's probe found it, and what it drew."""
    probe, neighbours = meter.get("probe") or {}, meter.get("neighbours")
    poll, update = meter.get("poll_period_seconds"), meter.get("update_period_seconds")
    changes = f", its value changes every {update * 1000:.3g} ms" if update else ""
    times = {name: meter.get(f"{name}_seconds") for name in ("lag", "ramp")}
    lags = ", ".join(f"{name} {_milliseconds(time)}" for name, time in times.items() if time is not None)
    lags += ", as the server estimated them when the sweep began" if lags else ""
    watts, origin = meter.get("idle_watts"), meter.get("idle_origin") or "origin unknown"
    parts = [f"{part['source']['name']} ({part.get('boundary')})" for part in meter.get("parts") or []]
    unsupported = (probe.get("unsupported") or {}).items()
    return [
        ("Meter period", f"polled every {poll * 1000:g} ms{changes}" if poll else ""),
        ("Sensor at start-up", _probe_text(probe)),
        ("Counter against power", cross_checks(meter)),
        ("Not shown by the sensor", "; ".join(f"{what}: {why}" for what, why in unsupported)),
        ("Counting lag and ramp", lags),
        ("Other processes on the device", "" if neighbours is None else str(neighbours)),
        ("Meter is the sum of", "; ".join(parts)),
        ("Idle power", "" if watts is None else f"{words.significant(watts)} W ({origin})"),
    ]


def _probe_text(probe: Mapping[str, Any]) -> str:
    cost, update, jitter = (
        probe.get(f"{name}_seconds") for name in ("read_cost_p50", "update_period", "edge_jitter")
    )
    if cost is None or not probe.get("reads"):
        return ""
    steps = "no steps seen" if update is None else f"steps every {_milliseconds(update)}"
    deviation = "" if update is None or jitter is None else f" (deviation {_milliseconds(jitter)})"
    texts = [
        f"{probe['reads']:,} reads in {probe.get('duration_seconds', 0):.3g} s",
        steps + deviation,
        f"a read takes {_milliseconds(cost)}, p99 {_milliseconds(probe.get('read_cost_p99_seconds'))}",
    ]
    if probe.get("resolution_uj"):
        texts.append(f"changes are multiples of {words.energy(probe['resolution_uj'])}")
    if probe.get("watts") is not None:
        texts.append(f"{words.significant(probe['watts'])} W drawn meanwhile")
    return ", ".join(texts)


def _target_facts(target: TargetSummary) -> list[tuple[str, Any]]:
    server = target.server
    source, version = server.get("model_source"), server.get("server_version")
    kind = f"Wattserve {version}" if version else target.protocol
    hardware = server.get("hardware")
    return [
        ("Model", f"{server.get('model_name')}{f' ({source})' if source else ''}"),
        ("Server", f"{kind} at {target.address}{f', on {hardware}' if hardware else ''}"),
        ("Protocol", target.protocol),
        ("Meter", _ORIGINS.get(target.meter_origin, target.meter_origin)),
        ("Server versions", _listed(server.get("versions"))),
    ]


def _ceiling(ceiling: Ceiling) -> str:
    """`4,000/s by unary requests of 600 bytes with 1 process, at 200 µs of CPU each (measured 2026-11-20)`"""
    return (
        f"{words.rate(ceiling.requests_per_second)} by {ceiling.kind} requests of"
        f" {ceiling.request_bytes:,} bytes with {words.counted(ceiling.processes, 'process', 'processes')},"
        f" at {words.significant(ceiling.client_cpu_us_per_request)} µs of CPU each"
        f" (measured {ceiling.measured[:10]})"
    )


def _listed(values: Mapping[str, Any] | None) -> str:
    stated = ((name, value) for name, value in (values or {}).items() if value not in (None, [], ""))
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in stated)


def _milliseconds(seconds: float | None) -> str:
    return words.milliseconds(None if seconds is None else seconds * 1e9)
