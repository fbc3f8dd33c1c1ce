"""Meters, machines, dataset, plan: what repeats a sweep, as names and texts. It knows no HTML."""

from __future__ import annotations

from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.report.evidence import ceiling_sentence
from wattserve_loadgen.report.sensor_facts import sensor_facts
from wattserve_loadgen.report.sources import energy_source, meters_of, source_line
from wattserve_loadgen.report.text import row_count
from wattserve_loadgen.results.schema import DatasetSummary, Results, TargetSummary

_ORIGINS = {"server": "read by the server", "loadgen": "read by loadgen itself", "none": "none"}


def facts(results: Results) -> list[tuple[str, str]]:
    """What is not known is left out."""
    client, plan, data = results.client, results.plan, results.dataset
    several = len(results.targets) > 1
    pairs: list[tuple[str, Any]] = [
        ("Energy source", source_line(results)),
        ("Boundary", results.boundary),
        ("Note of the meter", energy_source(results).get("note")),
    ]
    meters = meters_of(results)
    for meter in meters:
        name = f" ({(meter.get('source') or {}).get('name')})" if len(meters) > 1 else ""
        own = (
            ("Meter period", _meter_period(meter)),
            *sensor_facts(meter),
            ("Idle power", _idle_power(meter)),
        )
        pairs += [(label + name, value) for label, value in own]
    for target in results.targets:
        name = f" of {target.name}" if several else ""
        pairs += [(label + name, value) for label, value in _target_facts(target)]
    loadgen, governor = results.loadgen_version, client.get("governor") or "unknown"
    objective = f", objective {plan.objective}" if plan.objective else ""
    pairs += [
        ("Client", f"loadgen {loadgen}, {client.get('cpu_model')}, {client.get('usable_cpus')} CPUs"),
        ("Client platform", f"{client.get('platform')}, Python {client.get('python')}, governor {governor}"),
        ("Client versions", _pairs(client.get("packages", {}))),
        ("Client's ceiling", "; ".join(map(ceiling_sentence, results.ceilings))),
        ("Git revision", client.get("git_revision")),
        ("Dataset", f"{data.folder}: {row_count(results)}{_lengths(data)}"),
        ("Mean length", None if data.pixel_shape else f"{data.mean_tokens:.1f} tokens"),
        ("Dataset made from", _pairs(data.description)),
        ("Dataset SHA-256", data.sha256),
        (
            "Plan",
            f"preset {plan.preset}, {plan.blocks} blocks, {plan.seconds:g} s a cell, seed {plan.seed}"
            f"{objective}",
        ),
        ("Loads", ", ".join(load.name for load in plan.loads)),
        ("Warm-up", f"{plan.warmup_seconds:g} s before each window, and one heat-up block"),
        ("Command", " ".join(results.command)),
        ("Started", results.created),
    ]
    return [(name, str(value)) for name, value in pairs if value]


def _target_facts(target: TargetSummary) -> list[tuple[str, Any]]:
    server = target.server
    source = server.get("model_source")
    version = server.get("server_version")
    kind = f"Wattserve {version}" if version else target.protocol
    hardware = server.get("hardware")
    return [
        ("Model", f"{server.get('model_name')}{f' ({source})' if source else ''}"),
        ("Server", f"{kind} at {target.address}{f', on {hardware}' if hardware else ''}"),
        ("Protocol", target.protocol),
        ("Meter", _ORIGINS.get(target.meter_origin, target.meter_origin)),
        ("Server versions", _pairs(server.get("versions") or {})),
    ]


def _lengths(data: DatasetSummary) -> str:
    return "" if data.pixel_shape else f" of {data.min_tokens}–{data.max_tokens} tokens"


def _meter_period(meter: dict[str, Any]) -> str | None:
    poll, update = meter.get("poll_period_seconds"), meter.get("update_period_seconds")
    if not poll:
        return None
    changes = f", its value changes every {update * 1000:.3g} ms" if update else ""
    return f"polled every {poll * 1000:g} ms{changes}"


def _idle_power(meter: dict[str, Any]) -> str | None:
    watts = meter.get("idle_watts")
    if watts is None:
        return None
    return f"{words.significant(watts)} W ({meter.get('idle_origin') or 'origin unknown'})"


def _pairs(values: dict[str, Any]) -> str:
    known = ((name.replace("_", " "), value) for name, value in values.items() if value not in (None, [], ""))
    return ", ".join(f"{name} {value}" for name, value in known)
