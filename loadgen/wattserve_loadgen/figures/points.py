"""From cells to points: what is published about an arm under a load, and what is withheld.

Pure. A point pools the latencies of its blocks; its intervals are over blocks, which are the sample. The
gates are in `verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wattserve_common import stats
from wattserve_common.stats import Interval
from wattserve_loadgen.figures import verdicts
from wattserve_loadgen.figures.measure import CellSamples
from wattserve_loadgen.figures.percentiles import percentiles_of
from wattserve_loadgen.model.cells import CellResult, Percentiles
from wattserve_loadgen.model.ratios import COMPARED, Compared, Ratios
from wattserve_loadgen.model.results import Ceiling, Figures, GeneratedFigures, Point, Verdict
from wattserve_loadgen.plan.load import Arm
from wattserve_loadgen.plan.schedule import Plan

# Of a language model's figures.
_JOULES_OF_TOKENS = (
    "active_uj_per_output_token", "prompt_uj", "output_uj", "overhead_uj", "energy_delay_uj_seconds",
)  # fmt: skip
Figure = Callable[[CellResult], float | int | None]


@dataclass(frozen=True)
class _Measured:
    """A point before it is known what may be shown."""

    arm: Arm
    evidence: verdicts.Evidence
    figures: Figures
    verdicts: list[Verdict]

    def spoilt(self, what: str) -> str:
        """The texts of the verdicts that spoil it."""
        return "; ".join(verdict.text for verdict in self.verdicts if verdict.spoils == what)


def make_points(
    plan: Plan,
    cells: Sequence[CellResult],
    samples: Mapping[int, CellSamples],
    sensor_period_seconds: Mapping[str, float | None],
    ceilings: Mapping[str, Ceiling | None],
) -> list[Point]:
    """A point for each arm and load of which a cell has run, in the plan's order.

    `samples` are by the cell's position; the other two by the arm's name, where nothing is known absent: the
    period of its energy sensor, and this client's ceiling against such a server.
    """
    grouped: dict[tuple[str, str], list[CellResult]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.block, cell.position)):
        grouped.setdefault((cell.arm, cell.load), []).append(cell)
    measured: dict[tuple[str, str], _Measured] = {}
    for arm, load in plan.pairs():
        own = grouped.get((arm.name, load.name))
        if own is None:
            continue
        figures = _figures(plan, own, [samples[cell.position] for cell in own])
        evidence = verdicts.Evidence(
            plan=plan,
            load=load,
            cells=own,
            latency=figures.latency,
            service=figures.service,
            lag=figures.lag,
            sensor_period_seconds=sensor_period_seconds.get(arm.name),
            ceiling=ceilings.get(arm.name),
        )
        measured[arm.name, load.name] = _Measured(arm, evidence, figures, verdicts.verdicts_of(evidence))
    baseline = plan.baseline.name
    return [_point(plan, own, measured.get((baseline, load))) for (_, load), own in measured.items()]


def _point(plan: Plan, own: _Measured, baseline: _Measured | None) -> Point:
    figures, cells = own.figures, own.evidence.cells
    if own.arm != plan.baseline:
        figures = replace(figures, ratios=_ratios(own, baseline, plan.withholds))
    energy_reason = own.spoilt(verdicts.ENERGY)
    if plan.withholds and energy_reason:
        figures = _without_energy(figures, energy_reason)
    withheld = plan.withholds and bool(own.spoilt(verdicts.POINT))
    return Point(
        arm=own.arm.name,
        load=own.evidence.load.name,
        blocks=len(cells),
        window_seconds=own.evidence.window_seconds,
        offered_per_second=own.evidence.offered_per_second,
        answered=sum(cell.answered for cell in cells),
        failed=sum(cell.failed for cell in cells),
        figures=None if withheld else figures,
        withheld=figures if withheld else None,
        verdicts=own.verdicts,
        proxy=cells[-1].proxy,
        verified=cells[-1].verified,
    )


def _figures(plan: Plan, own: Sequence[CellResult], samples: Sequence[CellSamples]) -> Figures:
    """Without ratios, and whatever the verdicts."""

    services = [cell.service for cell in own if cell.service is not None]
    lags = [cell.lag for cell in own if cell.lag is not None]
    service_ns = [one.service_ns for one in samples if one.service_ns is not None]
    lag_ns = [one.lag_ns for one in samples if one.lag_ns is not None]
    active = _interval(own, lambda cell: cell.energy.active_uj_per_request)
    sent = sum(cell.sent for cell in own)
    return Figures(
        rate_per_second=_interval(own, lambda cell: cell.rate_per_second),
        latency=_pooled(plan, [one.latency_ns for one in samples], [cell.latency for cell in own]),
        service=_pooled(plan, service_ns, services) if service_ns else None,
        lag=_pooled(plan, lag_ns, lags) if lag_ns else None,
        p50_blocks_ns=_interval_of_all(own, lambda cell: cell.latency.p50_ns),
        p95_blocks_ns=_interval_of_all(own, lambda cell: cell.latency.p95_ns),
        goodput_share=_goodput(own, sent),
        active_uj=active,
        idle_uj=_interval(own, lambda cell: cell.energy.idle_uj_per_request),
        total_uj=_interval(own, lambda cell: cell.energy.total_uj_per_request),
        meter_uj=_interval(own, lambda cell: cell.energy.meter_uj_per_request),
        meter_difference=_interval(own, lambda cell: cell.energy.meter_difference),
        active_uj_per_token=_interval(own, lambda cell: cell.energy.active_uj_per_token),
        active_uj_per_padded_token=_interval(own, lambda cell: cell.energy.active_uj_per_padded_token),
        energy_reason="" if active is not None else own[0].energy.reason,
        mean_batch_size=_mean(own, lambda cell: cell.mean_batch_size),
        padding_share=_mean(own, lambda cell: cell.padding_share),
        mean_queue_ns=_mean(own, lambda cell: cell.mean_queue_ns),
        mean_compute_ns=_mean(own, lambda cell: cell.mean_compute_ns),
        client_cpu_share=max(_known(own, lambda cell: cell.client_cpu_share), default=None),
        client_cpu_us_per_request=sum(cell.client_cpu_seconds for cell in own) * 1e6 / sent if sent else None,
        ratios=Ratios(),
        generated=_generated(plan, own, samples),
    )


def _generated(
    plan: Plan, own: Sequence[CellResult], samples: Sequence[CellSamples]
) -> GeneratedFigures | None:
    told = [(cell.generated, one.generated) for cell, one in zip(own, samples, strict=True)]
    known = [(cell, sample) for cell, sample in told if cell is not None and sample is not None]
    if not known:
        return None

    def pooled(name: str) -> Percentiles:
        values = [getattr(sample, f"{name}_ns") for _, sample in known]
        return _pooled(plan, values, [getattr(cell, name) for cell, _ in known])

    def interval(name: str) -> Interval | None:
        values = [getattr(cell, name) for cell, _ in known]
        return stats.mean_interval([float(value) for value in values if value is not None])

    prompt_tokens, output_tokens = interval("mean_prompt_tokens"), interval("mean_output_tokens")
    return GeneratedFigures(
        output_tokens_per_second=interval("output_tokens_per_second"),
        ttft=pooled("ttft"),
        tpot=pooled("tpot"),
        itl=pooled("itl"),
        mean_prompt_tokens=None if prompt_tokens is None else prompt_tokens.mean,
        mean_output_tokens=None if output_tokens is None else output_tokens.mean,
        active_uj_per_output_token=interval("active_uj_per_output_token"),
        prompt_uj=interval("prompt_uj_per_request"),
        output_uj=interval("output_uj_per_request"),
        overhead_uj=interval("overhead_uj_per_request"),
        energy_delay_uj_seconds=interval("energy_delay_uj_seconds"),
    )


def _pooled(
    plan: Plan, values: Sequence[npt.NDArray[np.int64]], blocks: Sequence[Percentiles]
) -> Percentiles:
    """Of the blocks' values together."""
    known = [one.effective_samples for one in blocks if one.effective_samples is not None]
    return percentiles_of(
        np.concatenate(values), sum(known) if known else None, floors_by_effective=plan.withholds
    )


def _ratios(own: _Measured, baseline: _Measured | None, withholds: bool) -> Ratios:
    if baseline is None:
        return Ratios(reason="the baseline has not run under this load")
    cells, base_cells = own.evidence.cells, baseline.evidence.cells
    if not {cell.block for cell in cells} & {cell.block for cell in base_cells}:
        return Ratios(reason="no block has run both this arm and the baseline")
    spoilt = baseline.spoilt(verdicts.POINT) if withholds else ""
    if spoilt:
        return Ratios(reason=f"the baseline's own point is not valid: {spoilt}")
    unmetered = baseline.spoilt(verdicts.ENERGY) if withholds else ""
    ratios: dict[str, Any] = {
        name: None if unmetered and figure.of_energy else _ratio(cells, base_cells, figure)
        for name, figure in COMPARED.items()
    }
    return Ratios(**ratios, reason=f"the baseline has no valid joules: {unmetered}" if unmetered else "")


def _without_energy(figures: Figures, reason: str) -> Figures:
    no_ratios: dict[str, Any] = {name: None for name, figure in COMPARED.items() if figure.of_energy}
    no_joules_of_tokens: dict[str, Any] = dict.fromkeys(_JOULES_OF_TOKENS)
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
        ratios=replace(figures.ratios, **no_ratios),
        generated=figures.generated and replace(figures.generated, **no_joules_of_tokens),
    )


def _known(cells: Sequence[CellResult], figure: Figure) -> list[float]:
    return [float(value) for cell in cells if (value := figure(cell)) is not None]


def _interval(cells: Sequence[CellResult], figure: Figure) -> Interval | None:
    return stats.mean_interval(_known(cells, figure))


def _interval_of_all(cells: Sequence[CellResult], figure: Figure) -> Interval | None:
    """None when a block lacks the figure: a percentile is missing where answers were few, so where they were
    slow.
    """
    known = _known(cells, figure)
    return stats.mean_interval(known) if len(known) == len(cells) else None


def _mean(cells: Sequence[CellResult], figure: Figure) -> float | None:
    interval = _interval(cells, figure)
    return None if interval is None else interval.mean


def _ratio(own: Sequence[CellResult], baseline: Sequence[CellResult], figure: Compared) -> Interval | None:
    base = {cell.block: figure.of_cell(cell) for cell in baseline}
    pairs = [(figure.of_cell(cell), base[cell.block]) for cell in own if cell.block in base]
    known = [(value, other) for value, other in pairs if value is not None and other is not None]
    return stats.ratio_interval(known) if len(known) == len(pairs) or not figure.of_all_blocks else None


def _goodput(cells: Sequence[CellResult], sent: int) -> float | None:
    within = [cell.within_objective for cell in cells if cell.within_objective is not None]
    return sum(within) / sent if sent and len(within) == len(cells) else None
