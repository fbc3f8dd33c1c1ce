"""From cells to points: what is published about an arm under a load, and what is withheld.

Pure. A point pools the latencies of its blocks; its intervals are over blocks, which are the sample. The
gates are in `verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.figures import stats, verdicts
from wattserve_loadgen.figures.measure import CellSamples
from wattserve_loadgen.figures.percentiles import Percentiles, percentiles_of
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.plan.load import Arm, Load
from wattserve_loadgen.plan.schedule import Plan
from wattserve_loadgen.results.schema import Ceiling, CellResult, Figures, Point, Ratios, Verdict

Figure = Callable[[CellResult], float | int | None]


@dataclass(frozen=True)
class _Measured:
    """A point before it is known what may be shown."""

    arm: Arm
    load: Load
    cells: Sequence[CellResult]
    figures: Figures
    verdicts: list[Verdict]

    def spoilt(self, what: str) -> str:
        """The texts of the verdicts that spoil it."""
        return "; ".join(one.text for one in self.verdicts if one.spoils == what)


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
        measured[arm.name, load.name] = _Measured(arm, load, own, figures, verdicts.verdicts_of(evidence))
    return [_point(plan, one, measured.get((plan.baseline.name, one.load.name))) for one in measured.values()]


def _point(plan: Plan, one: _Measured, baseline: _Measured | None) -> Point:
    figures = one.figures
    if one.arm != plan.baseline:
        figures = replace(figures, ratios=_ratios(one, baseline, plan.withholds))
    energy_reason = one.spoilt(verdicts.ENERGY)
    if plan.withholds and energy_reason:
        figures = _without_energy(figures, energy_reason)
    withheld = plan.withholds and bool(one.spoilt(verdicts.POINT))
    seconds = sum(cell.window_seconds for cell in one.cells)
    return Point(
        arm=one.arm.name,
        load=one.load.name,
        blocks=len(one.cells),
        window_seconds=seconds,
        offered_per_second=_offered(one.cells, seconds),
        answered=sum(cell.answered for cell in one.cells),
        failed=sum(cell.failed for cell in one.cells),
        figures=None if withheld else figures,
        withheld=figures if withheld else None,
        verdicts=one.verdicts,
        proxy=one.cells[-1].proxy,
        verified=one.cells[-1].verified,
    )


def _figures(plan: Plan, own: Sequence[CellResult], samples: Sequence[CellSamples]) -> Figures:
    """Without ratios, and whatever the verdicts."""

    def pooled(values: Sequence[npt.NDArray[np.int64]], found: Sequence[Percentiles]) -> Percentiles:
        known = [one.effective_samples for one in found if one.effective_samples is not None]
        return percentiles_of(
            np.concatenate(values), sum(known) if known else None, floors_by_effective=plan.withholds
        )

    services = [cell.service for cell in own if cell.service is not None]
    lags = [cell.lag for cell in own if cell.lag is not None]
    service_ns = [one.service_ns for one in samples if one.service_ns is not None]
    lag_ns = [one.lag_ns for one in samples if one.lag_ns is not None]
    active = _interval(own, lambda cell: cell.energy.active_uj_per_request)
    sent = sum(cell.sent for cell in own)
    return Figures(
        rate_per_second=_interval(own, lambda cell: cell.rate_per_second),
        latency=pooled([one.latency_ns for one in samples], [cell.latency for cell in own]),
        service=pooled(service_ns, services) if service_ns else None,
        lag=pooled(lag_ns, lags) if lag_ns else None,
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
    )


def _ratios(own: _Measured, baseline: _Measured | None, withholds: bool) -> Ratios:
    if baseline is None:
        return Ratios(reason="the baseline has not run under this load")
    if not {cell.block for cell in own.cells} & {cell.block for cell in baseline.cells}:
        return Ratios(reason="no block has run both this arm and the baseline")
    spoilt = baseline.spoilt(verdicts.POINT) if withholds else ""
    if spoilt:
        return Ratios(reason=f"the baseline's own point is not valid: {spoilt}")
    unmetered = baseline.spoilt(verdicts.ENERGY) if withholds else ""

    def ratio(figure: Figure, of_all: bool = False) -> Interval | None:
        return _ratio(own.cells, baseline.cells, figure, of_all)

    return Ratios(
        rate=ratio(lambda cell: cell.rate_per_second),
        p50=ratio(lambda cell: cell.latency.p50_ns, of_all=True),
        p95=ratio(lambda cell: cell.latency.p95_ns, of_all=True),
        active_energy=None if unmetered else ratio(lambda cell: cell.energy.active_uj_per_request),
        total_energy=None if unmetered else ratio(lambda cell: cell.energy.total_uj_per_request),
        reason=f"the baseline has no valid joules: {unmetered}" if unmetered else "",
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
    found = _interval(cells, figure)
    return None if found is None else found.mean


def _ratio(
    own: Sequence[CellResult], baseline: Sequence[CellResult], figure: Figure, of_all: bool
) -> Interval | None:
    """`of_all`: as in `_interval_of_all`."""
    base = {cell.block: figure(cell) for cell in baseline}
    pairs = [(figure(cell), base[cell.block]) for cell in own if cell.block in base]
    known = [(value, other) for value, other in pairs if value is not None and other is not None]
    return stats.ratio_interval(known) if len(known) == len(pairs) or not of_all else None


def _offered(cells: Sequence[CellResult], seconds: float) -> float | None:
    known = [
        cell.offered_per_second * cell.window_seconds for cell in cells if cell.offered_per_second is not None
    ]
    return sum(known) / seconds if known and len(known) == len(cells) and seconds else None


def _goodput(cells: Sequence[CellResult], sent: int) -> float | None:
    within = [cell.within_objective for cell in cells if cell.within_objective is not None]
    return sum(within) / sent if sent and len(within) == len(cells) else None
