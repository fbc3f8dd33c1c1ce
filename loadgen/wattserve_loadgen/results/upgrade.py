"""Older results as today's: version 1 becomes version 2. Pure; reads no file.

What version 1 did not measure is None (bounds of percentiles, the meter's own count, slices); what follows
from its cells is worked out (totals, and the ratios of medians).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from wattserve_loadgen.figures.percentiles import Percentiles
from wattserve_loadgen.figures.stats import Interval, mean_interval, ratio_interval
from wattserve_loadgen.plan.load import Arm, closed
from wattserve_loadgen.plan.schedule import Plan
from wattserve_loadgen.results import version_1 as old
from wattserve_loadgen.results.codec import ShapeError, build
from wattserve_loadgen.results.schema import (
    SCHEMA_VERSION,
    CellEnergy,
    CellResult,
    Figures,
    Point,
    Ratios,
    Results,
    TargetSummary,
    Verdict,
)

_ENERGY_VERDICTS = ("meter gap", "energy unknown")
_NOTE = "These results were written at schema version 1, and are shown with what it measured."
Figure = Callable[[old.CellResult], float | None]


def to_results(value: dict[str, Any]) -> Results:
    """results.json of any version up to ours, as JSON values; ShapeError when it does not have its
    version's shape, or the version is not one that we know.
    """
    version = value.get("schema_version")
    if version == SCHEMA_VERSION:
        return build(Results, value)
    if version == 1:
        return from_version_1(build(old.Results, value))
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ShapeError(
            f"version {version} was written by a newer loadgen ({value.get('loadgen_version', 'unknown')});"
            f" this one reads up to {SCHEMA_VERSION}: upgrade it",
            "schema_version",
        )
    raise ShapeError(f"{version!r} is no version of these results", "schema_version")


def record_of(value: dict[str, Any], cell: int) -> dict[str, Any]:
    """A line of records.jsonl of version 1 as one of today, in the cell of that position."""
    found = dict(value)
    variant, concurrency = found.pop("variant"), found.pop("concurrency")
    return {
        "cell": cell,
        "arm": variant,
        "load": closed(concurrency).name,
        "rows": [found.pop("row")],
        "scheduled_ns": None,
        "predicted": [found.pop("predicted")],
        "labels": [found.pop("label")],
        **found,
    }


def from_version_1(results: old.Results) -> Results:
    plan = _plan(results.plan, results.target)
    meter = results.server.get("meter") or {}
    return Results(
        schema=results.schema,
        schema_version=SCHEMA_VERSION,
        loadgen_version=results.loadgen_version,
        created=results.created,
        command=results.command,
        ended=results.ended,
        cells_planned=results.cells_planned,
        plan=plan,
        dataset=results.dataset,
        client=results.client,
        targets=[
            TargetSummary(
                name=results.target,
                address=results.target,
                protocol="native unary",
                server=results.server,
                meter=meter,
                meter_origin="server" if meter else "none",
            )
        ],
        boundary=str(meter.get("boundary") or ""),
        energy_reason=results.energy_reason,
        accuracy_reason=results.accuracy_reason,
        accuracy_rows=results.accuracy_rows,
        accuracy=results.accuracy,
        notes=[*results.notes, _NOTE],
        points=[_point(point, results.cells, plan) for point in results.points],
        cells=[_cell(cell) for cell in results.cells],
    )


def _plan(plan: old.Plan, target: str) -> Plan:
    return Plan(
        preset=plan.preset,
        arms=tuple(Arm(variant, variant, target) for variant in plan.variants),
        loads=tuple(closed(one) for one in plan.concurrencies),
        blocks=plan.blocks,
        seconds=plan.seconds,
        warmup_seconds=plan.warmup_seconds,
        heat_up_seconds=plan.heat_up_seconds,
        publish_seconds=plan.publish_seconds,
        seed=plan.seed,
    )


def _cell(cell: old.CellResult) -> CellResult:
    return CellResult(
        position=cell.position,
        block=cell.block,
        arm=cell.variant,
        load=closed(cell.concurrency).name,
        window_seconds=cell.window_seconds,
        offered_per_second=None,
        sent=cell.sent,
        answered=cell.answered,
        failed=cell.failed,
        failures=cell.failures,
        failure_example=cell.failure_example,
        rate_per_second=cell.rate_per_second,
        latency=_percentiles(cell, cell.answered, cell.max_ns, None),
        service=None,
        lag=None,
        late=None,
        within_objective=None,
        client_cpu_seconds=cell.client_cpu_seconds,
        client_cpu_share=cell.client_cpu_share,
        mean_tokens=cell.mean_tokens,
        mean_batch_size=cell.mean_batch_size,
        padding_share=cell.padding_share,
        mean_queue_ns=cell.mean_queue_ns,
        mean_compute_ns=cell.mean_compute_ns,
        energy=_energy(cell.energy),
        stopped=cell.stopped,
        proxy=cell.proxy,
        verified=cell.verified,
    )


def _energy(energy: old.CellEnergy) -> CellEnergy:
    return CellEnergy(**vars(energy), active_uj_per_padded_token=None)


def _percentiles(
    source: old.CellResult | old.Point, samples: int, max_ns: int | None, p999_ns: int | None
) -> Percentiles:
    return Percentiles(
        samples=samples,
        effective_samples=source.effective_samples,
        mean_ns=source.mean_latency_ns,
        p50_ns=source.p50_ns,
        p90_ns=source.p90_ns,
        p95_ns=source.p95_ns,
        p99_ns=source.p99_ns,
        p999_ns=p999_ns,
        p50_bound_ns=None,
        p90_bound_ns=None,
        p95_bound_ns=None,
        p99_bound_ns=None,
        p999_bound_ns=None,
        max_ns=max_ns,
    )


def _point(point: old.Point, cells: Sequence[old.CellResult], plan: Plan) -> Point:
    verdicts = [
        Verdict(one.code, one.text, "energy" if one.code in _ENERGY_VERDICTS else "point")
        for one in point.verdicts
    ]
    figures = _figures(point, cells, plan)
    spoilt = {one.spoils: one.text for one in verdicts} if plan.withholds else {}
    if "energy" in spoilt:
        figures = _without_energy(figures, spoilt["energy"])
    return Point(
        arm=point.variant,
        load=closed(point.concurrency).name,
        blocks=point.blocks,
        window_seconds=point.window_seconds,
        offered_per_second=None,
        answered=point.answered,
        failed=point.failed,
        figures=None if "point" in spoilt else figures,
        withheld=figures if "point" in spoilt else None,
        verdicts=verdicts,
        proxy=point.proxy,
        verified=point.verified,
    )


def _without_energy(figures: Figures, reason: str) -> Figures:
    return replace(
        figures,
        active_uj=None,
        idle_uj=None,
        total_uj=None,
        meter_uj=None,
        meter_difference=None,
        active_uj_per_token=None,
        active_uj_per_padded_token=None,
        energy_reason=reason,
        ratios=replace(figures.ratios, active_energy=None, total_energy=None),
    )


def _figures(point: old.Point, cells: Sequence[old.CellResult], plan: Plan) -> Figures:
    own = [one for one in cells if (one.variant, one.concurrency) == (point.variant, point.concurrency)]
    base = [one for one in cells if (one.variant, one.concurrency) == (plan.baseline.name, point.concurrency)]
    sent = sum(cell.sent for cell in own)
    longest = max((cell.max_ns for cell in own if cell.max_ns is not None), default=None)
    reasons = [cell.energy.reason for cell in own if cell.energy.reason]
    return Figures(
        rate_per_second=point.rate_per_second,
        latency=_percentiles(point, point.answered, longest, point.p999_ns),
        service=None,
        lag=None,
        p50_blocks_ns=point.p50_blocks_ns,
        p95_blocks_ns=point.p95_blocks_ns,
        goodput_share=None,
        active_uj=point.active_uj,
        idle_uj=point.idle_uj,
        total_uj=mean_interval([value for cell in own if (value := _total(cell)) is not None]),
        meter_uj=None,
        meter_difference=None,
        active_uj_per_token=point.active_uj_per_token,
        active_uj_per_padded_token=None,
        energy_reason=reasons[0] if reasons and point.active_uj is None else "",
        mean_batch_size=point.mean_batch_size,
        padding_share=point.padding_share,
        mean_queue_ns=point.mean_queue_ns,
        mean_compute_ns=point.mean_compute_ns,
        client_cpu_share=point.client_cpu_share,
        client_cpu_us_per_request=sum(cell.client_cpu_seconds for cell in own) * 1e6 / sent if sent else None,
        ratios=_ratios(point, own, base) if point.variant != plan.baseline.name else Ratios(),
    )


def _ratios(point: old.Point, own: Sequence[old.CellResult], base: Sequence[old.CellResult]) -> Ratios:
    return Ratios(
        rate=point.speed_ratio,
        p50=_ratio(own, base, lambda cell: cell.p50_ns),
        p95=_ratio(own, base, lambda cell: cell.p95_ns),
        active_energy=point.energy_ratio,
        total_energy=_ratio(own, base, _total),
    )


def _total(cell: old.CellResult) -> float | None:
    active, idle = cell.energy.active_uj_per_request, cell.energy.idle_uj_per_request
    return None if active is None or idle is None else active + idle


def _ratio(own: Sequence[old.CellResult], base: Sequence[old.CellResult], figure: Figure) -> Interval | None:
    of_block = {cell.block: figure(cell) for cell in base}
    pairs = [(figure(cell), of_block.get(cell.block)) for cell in own]
    return ratio_interval([(one, other) for one, other in pairs if one is not None and other is not None])
