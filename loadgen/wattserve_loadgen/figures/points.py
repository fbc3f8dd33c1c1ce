"""From cells to points: what is published about a variant at a concurrency, and whether it may be.

Pure. A point pools the latencies of its blocks; its intervals are over blocks, which are the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.figures import stats
from wattserve_loadgen.plan.schedule import Plan
from wattserve_loadgen.results.schema import Accuracy, CellResult, Point, Verdict

CLIENT_CPU_LIMIT = 0.90  # of a core
FAILED_LIMIT = 0.01  # of the requests of a point
UNKNOWN_LIMIT = 0.01  # of the receipts of a point
FEWEST_BLOCKS = 3
_SENSOR_PERIODS = 100
_LATENCY_MULTIPLES = 5

Latencies = Mapping[
    int, npt.NDArray[np.int64]
]  # by the cell's position: nanoseconds, in the order of sending


def make_points(
    plan: Plan, cells: Sequence[CellResult], latencies: Latencies, sensor_period_seconds: float
) -> list[Point]:
    """A point for each variant and concurrency of which a cell has run, in the plan's order."""
    points = []
    for variant in plan.variants:
        for concurrency in plan.concurrencies:
            own = _cells_of(cells, variant, concurrency)
            if own:
                baseline = _cells_of(cells, plan.variants[0], concurrency)
                points.append(_point(plan, own, baseline, latencies, sensor_period_seconds))
    return points


def duration_floor_seconds(plan: Plan, slowest_ns: int, sensor_period_seconds: float) -> float:
    """The window that a point needs: 5 x its p99, 100 sensor periods, and the preset's own floor."""
    return max(
        _LATENCY_MULTIPLES * slowest_ns / 1e9,
        _SENSOR_PERIODS * sensor_period_seconds,
        plan.publish_seconds,
    )


def measure_accuracy(
    predictions: Mapping[str, Mapping[int, Sequence[int | None]]], labels: npt.NDArray[np.int64]
) -> tuple[int, dict[str, Accuracy]]:
    """Accuracy per variant on the rows that every variant answered, each row counted once by its first
    answer.

    `predictions[variant][row]` are the label indices predicted for a row, in order. Returns the number of
    rows too.
    """
    if not predictions:
        return 0, {}
    common = set.intersection(*(set(rows) for rows in predictions.values()))
    if not common:
        return 0, {}
    found = {}
    for variant, rows in predictions.items():
        correct = sum(rows[row][0] == int(labels[row]) for row in common)
        low, high = stats.wilson_interval(correct, len(common))
        unstable = sum(len(set(rows[row])) > 1 for row in common)
        found[variant] = Accuracy(correct, len(common), low, high, unstable)
    return len(common), found


def _cells_of(cells: Sequence[CellResult], variant: str, concurrency: int) -> list[CellResult]:
    return [cell for cell in cells if cell.variant == variant and cell.concurrency == concurrency]


def _point(
    plan: Plan,
    own: Sequence[CellResult],
    baseline: Sequence[CellResult],
    latencies: Latencies,
    sensor_period_seconds: float,
) -> Point:
    pooled = np.concatenate([latencies[cell.position] for cell in own])
    p99 = stats.percentile(pooled, 99.0)
    slowest = p99 if p99 is not None else int(pooled.max(initial=0))
    effective = [cell.effective_samples for cell in own if cell.effective_samples is not None]
    return Point(
        variant=own[0].variant,
        concurrency=own[0].concurrency,
        blocks=len(own),
        window_seconds=sum(cell.window_seconds for cell in own),
        answered=sum(cell.answered for cell in own),
        failed=sum(cell.failed for cell in own),
        rate_per_second=_interval(own, lambda cell: cell.rate_per_second),
        p50_ns=stats.percentile(pooled, 50.0),
        p90_ns=stats.percentile(pooled, 90.0),
        p95_ns=stats.percentile(pooled, 95.0),
        p99_ns=p99,
        p999_ns=stats.percentile(pooled, 99.9),
        p50_blocks_ns=_interval(own, lambda cell: cell.p50_ns),
        p95_blocks_ns=_interval(own, lambda cell: cell.p95_ns),
        effective_samples=sum(effective) if effective else None,
        active_uj=_interval(own, lambda cell: cell.energy.active_uj_per_request),
        idle_uj=_interval(own, lambda cell: cell.energy.idle_uj_per_request),
        active_uj_per_token=_interval(own, lambda cell: cell.energy.active_uj_per_token),
        mean_batch_size=_mean(own, lambda cell: cell.mean_batch_size),
        padding_share=_mean(own, lambda cell: cell.padding_share),
        mean_queue_ns=_mean(own, lambda cell: cell.mean_queue_ns),
        mean_compute_ns=_mean(own, lambda cell: cell.mean_compute_ns),
        mean_latency_ns=_mean(own, lambda cell: cell.mean_latency_ns),
        client_cpu_share=max(
            (cell.client_cpu_share for cell in own if cell.client_cpu_share is not None), default=None
        ),
        speed_ratio=_ratio(own, baseline, lambda cell: cell.rate_per_second),
        energy_ratio=_ratio(own, baseline, lambda cell: cell.energy.active_uj_per_request),
        verdicts=_verdicts(plan, own, slowest, sensor_period_seconds),
        proxy=own[-1].proxy,
        verified=own[-1].verified,
    )


Figure = Callable[[CellResult], float | int | None]


def _interval(cells: Sequence[CellResult], figure: Figure) -> stats.Interval | None:
    return stats.mean_interval([value for cell in cells if (value := figure(cell)) is not None])


def _mean(cells: Sequence[CellResult], figure: Figure) -> float | None:
    found = _interval(cells, figure)
    return None if found is None else found.mean


def _ratio(
    own: Sequence[CellResult], baseline: Sequence[CellResult], figure: Figure
) -> stats.Interval | None:
    base = {cell.block: figure(cell) for cell in baseline}
    pairs = [(figure(cell), base.get(cell.block)) for cell in own]
    return stats.ratio_interval(
        [(value, other) for value, other in pairs if value is not None and other is not None]
    )


def _verdicts(
    plan: Plan, own: Sequence[CellResult], slowest_ns: int, sensor_period_seconds: float
) -> list[Verdict]:
    found = []
    seconds = sum(cell.window_seconds for cell in own)
    floor = duration_floor_seconds(plan, slowest_ns, sensor_period_seconds)
    if seconds < floor:
        found.append(Verdict("too short", f"too short to publish: {seconds:.1f} s of {floor:.0f} s"))
    if len(own) < FEWEST_BLOCKS:
        found.append(Verdict("few blocks", f"{len(own)} of at least {FEWEST_BLOCKS} blocks"))
    stopped = [cell.stopped for cell in own if cell.stopped]
    if stopped:
        found.append(Verdict("cut short", f"{len(stopped)} of its cells ended early: {stopped[0]}"))
    busiest = max((cell.client_cpu_share or 0.0 for cell in own), default=0.0)
    if busiest > CLIENT_CPU_LIMIT:
        found.append(
            Verdict("client busy", f"the client used {busiest * 100:.0f} % of a core: it may be what limits")
        )
    sent, failed = sum(cell.sent for cell in own), sum(cell.failed for cell in own)
    if failed > FAILED_LIMIT * sent:
        found.append(Verdict("failures", f"{failed} of {sent} requests failed"))
    return found + _energy_verdicts(own)


def _energy_verdicts(own: Sequence[CellResult]) -> list[Verdict]:
    found = []
    gaps = sum(cell.energy.gap_count for cell in own)
    gap_seconds = sum(cell.energy.gap_seconds for cell in own)
    if gaps or gap_seconds > 0:
        count = f"{gaps} meter gaps" if gaps > 1 else f"{gaps or 'a'} meter gap"
        found.append(Verdict("meter gap", f"{count} of {gap_seconds:.2f} s fell in its cells"))
    metered = any(not cell.energy.reason for cell in own)
    unknown, answered = sum(cell.energy.unknown for cell in own), sum(cell.answered for cell in own)
    if metered and unknown > UNKNOWN_LIMIT * answered:
        found.append(Verdict("energy unknown", f"{unknown} of {answered} answers have no settled energy"))
    foreign = sum(cell.energy.foreign_sequences for cell in own)
    if foreign:
        found.append(Verdict("shared server", f"{foreign} sequences of other clients ran meanwhile"))
    return found
