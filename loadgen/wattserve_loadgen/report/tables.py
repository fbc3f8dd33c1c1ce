"""The tables of a report: results in, rows of text out. It knows no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.report.sensor_facts import sensor_facts
from wattserve_loadgen.report.text import energy_source, row_count, source_line
from wattserve_loadgen.results.schema import CellResult, DatasetSummary, Point, Results


@dataclass(frozen=True)
class Entry:
    """A table entry: a figure, and below it, smaller, what belongs to it."""

    text: str
    below: str = ""


@dataclass(frozen=True)
class Table:
    """The first column names what a row is about; figures stand in the columns from `numbers_from` on, except
    the last `texts_at_end`.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    numbers_from: int = 1
    texts_at_end: int = 0


_SUMMARY_COLUMNS = (
    "precision",
    "device",
    "answers/s",
    "latency p50",
    "p95",
    "p99",
    "energy per request",
    "accuracy",
    "model size",
    "speed-up",
    "energy ratio",
)
_CLOSURE_COLUMNS = {
    "measured": "measured_uj",
    "active": "active_uj",
    "other variants, warm-up": "other_active_uj",
    "idle": "idle_uj",
    "unattributed": "unattributed_uj",
    "meter gaps": "gap_uj",
    "pending": "pending_uj",
    "measured − sum": "accounts_residual_uj",
    "receipts": "receipts_uj",
    "active − receipts": "receipts_residual_uj",
}
_VALIDITY_COLUMNS = (
    "variant",
    "concurrency",
    "blocks",
    "window",
    "answers",
    "failed",
    "independent samples",
    "unknown energy",
    "client CPU",
    "verdict",
)


def summary_table(results: Results, concurrency: int) -> Table:
    """The variants side by side at one concurrency."""
    about = {one["name"]: one for one in results.server.get("variants", [])}
    rows = [
        _summary_row(results, point, about.get(point.variant, {}))
        for point in results.points
        if point.concurrency == concurrency
    ]
    return Table(_SUMMARY_COLUMNS, rows, numbers_from=2)


def _summary_row(results: Results, point: Point, about: dict[str, Any]) -> Sequence[Entry]:
    rate, idle = point.rate_per_second, point.idle_uj
    is_baseline = point.variant == results.baseline
    return (
        Entry(point.variant),
        Entry(str(about.get("device") or words.ABSENT)),
        Entry(words.significant(rate.mean) if rate else words.ABSENT, words.bounds(rate)),
        Entry(words.milliseconds(point.p50_ns)),
        Entry(words.milliseconds(point.p95_ns)),
        Entry(words.milliseconds(point.p99_ns)),
        Entry(words.mean_energy(point.active_uj), f"+ {words.mean_energy(idle)} idle" if idle else ""),
        _accuracy_entry(results, point.variant),
        Entry(words.bytes_size(about.get("parameter_bytes"))),
        _ratio_entry(point.speed_ratio, is_baseline),
        _ratio_entry(point.energy_ratio, is_baseline),
    )


def _ratio_entry(interval: Interval | None, is_baseline: bool) -> Entry:
    if interval is None:
        return Entry(words.ABSENT)
    return Entry("1", "baseline") if is_baseline else Entry(words.times(interval), words.bounds(interval))


def _accuracy_entry(results: Results, variant: str) -> Entry:
    if results.accuracy_reason:
        return Entry("not applicable")
    found = results.accuracy.get(variant)
    if found is None:
        return Entry(words.ABSENT)
    return Entry(words.percent(found.share), f"{found.low * 100:.1f}–{found.high * 100:.1f}")


def closure_table(results: Results) -> Table:
    """The ledger's growth over the cells of each variant, and what the receipts say."""
    rows = []
    for variant in results.plan.variants:
        own = [cell for cell in results.cells if cell.variant == variant]
        metered = [cell for cell in own if cell.energy.measured_uj is not None]
        if metered:
            rows.append([Entry(variant), *(_summed(metered, name) for name in _CLOSURE_COLUMNS.values())])
    return Table(("cells of", *_CLOSURE_COLUMNS), rows)


def _summed(cells: Sequence[CellResult], account: str) -> Entry:
    known = [value for cell in cells if (value := getattr(cell.energy, account)) is not None]
    return Entry(words.energy(sum(known) if known else None))


def validity_table(results: Results) -> Table:
    """Every point with what its figures rest on."""
    rows = [[Entry(text) for text in _validity(results, point)] for point in results.points]
    return Table(_VALIDITY_COLUMNS, rows, texts_at_end=1)


def _validity(results: Results, point: Point) -> Sequence[str]:
    own = (point.variant, point.concurrency)
    unknown = sum(cell.energy.unknown for cell in results.cells if (cell.variant, cell.concurrency) == own)
    effective = point.effective_samples
    return (
        point.variant,
        str(point.concurrency),
        f"{point.blocks} of {results.plan.blocks}",
        f"{point.window_seconds:.1f} s",
        f"{point.answered:,}",
        f"{point.failed:,}",
        words.ABSENT if effective is None else f"≈ {effective:,.0f}",
        "all" if results.energy_reason else f"{unknown:,}",
        words.percent(point.client_cpu_share, 0),
        "; ".join(verdict.text for verdict in point.verdicts) or "valid",
    )


def facts(results: Results) -> list[tuple[str, str]]:
    """Meter, machines, dataset, plan: what repeats the sweep. What is not known is left out."""
    server, client = results.server, results.client
    meter = server.get("meter") or {}
    data, plan = results.dataset, results.plan
    version, loadgen = server.get("server_version"), results.loadgen_version
    governor = client.get("governor") or "unknown"
    pairs = (
        ("Energy source", source_line(results)),
        ("Boundary", meter.get("boundary")),
        ("Note of the meter", energy_source(results).get("note")),
        ("Meter period", _meter_period(meter)),
        *sensor_facts(meter),
        ("Idle power", _idle_power(meter)),
        ("Model", f"{server.get('model_name')} ({server.get('model_source')})"),
        ("Server", f"Wattserve {version} at {results.target}, on {server.get('hardware')}"),
        ("Server versions", _pairs(server.get("versions", {}))),
        ("Client", f"loadgen {loadgen}, {client.get('cpu_model')}, {client.get('usable_cpus')} CPUs"),
        ("Client platform", f"{client.get('platform')}, Python {client.get('python')}, governor {governor}"),
        ("Client versions", _pairs(client.get("packages", {}))),
        ("Git revision", client.get("git_revision")),
        ("Dataset", f"{data.folder}: {row_count(results)}{_lengths(data)}"),
        ("Mean length", None if data.pixel_shape else f"{data.mean_tokens:.1f} tokens"),
        ("Dataset made from", _pairs(data.description)),
        ("Dataset SHA-256", data.sha256),
        ("Plan", f"preset {plan.preset}, {plan.blocks} blocks, {plan.seconds:g} s a cell, seed {plan.seed}"),
        ("Warm-up", f"{plan.warmup_seconds:g} s before each window, and one heat-up block"),
        ("Command", " ".join(results.command)),
        ("Started", results.created),
    )
    return [(name, str(value)) for name, value in pairs if value]


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
