"""The tables of a report: results in, rows of text out. It knows no HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattserve_common.stats import Interval
from wattserve_loadgen import words
from wattserve_loadgen.model.cells import CellEnergy
from wattserve_loadgen.model.results import OUTCOMES, Accuracy, Figures, Point, Results
from wattserve_loadgen.plan.load import Arm, Load
from wattserve_loadgen.report.scene import METRICS, accuracy_difference, point_of, twin_of_baseline


@dataclass(frozen=True)
class Box:
    """What stands where a row and a column meet."""

    text: str
    below: str = ""  # smaller: what belongs to the text
    span: int = 1  # columns


@dataclass(frozen=True)
class Table:
    """The first column names what a row is about."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Box]]
    numbers_from: int = 1  # the first column of figures
    texts_at_end: int = 0  # the last columns, that have none


def _table(rows: Sequence[Mapping[str, str | Box]], numbers_from: int = 1, texts_at_end: int = 0) -> Table:
    """Of rows that name their columns, all the same."""
    boxes = [[box if isinstance(box, Box) else Box(box) for box in row.values()] for row in rows]
    return Table(tuple(rows[0]) if rows else (), boxes, numbers_from, texts_at_end)


_SUMMARY = ("answers/s", "latency p50", "p95", "p99", "energy per request")


def summary_table(results: Results, load: Load) -> Table:
    """The arms side by side under one load. A spoiled point has its verdict in place of its figures.

    Under a schedule the rate is what was offered: speed is then told by the median latency.
    """
    speed = "p50 ratio" if load.scheduled else "speed-up"
    rows = [
        _summary_row(results, arm, load, point)
        for arm in results.main_arms
        if (point := point_of(results, arm.name, load)) is not None
    ]
    columns = ("precision", "device", *_SUMMARY, "accuracy", "model size", speed, "energy ratio")
    return Table(columns, rows, numbers_from=2)


def _summary_row(results: Results, arm: Arm, load: Load, point: Point) -> Sequence[Box]:
    about, figures = about_arm(results, arm), point.figures
    codes = ", ".join(verdict.code for verdict in point.verdicts)
    boxes, ratios = [Box(verdict_text(point), span=len(_SUMMARY))], [Box(words.ABSENT), Box(words.ABSENT)]
    if figures is not None:
        boxes = [
            _box(figures.rate_per_second, words.significant),
            *(_latency_box(figures, percentile) for percentile in ("p50", "p95", "p99")),
            _summary_energy(point, figures),
        ]
        speed = figures.ratios.p50 if load.scheduled else figures.ratios.rate
        ratios = [_times_box(speed), _times_box(figures.ratios.active_energy)]
        if arm.name == results.baseline:
            ratios = [Box("1", "baseline"), Box("1", "baseline") if figures.active_uj else ratios[1]]
    return [
        Box(arm.name, codes if figures is not None and point.hollow else ""),
        Box(str(about.get("device") or words.ABSENT)),
        *boxes,
        Box("not applicable") if results.accuracy_reason else _share_box(results.accuracy.get(arm.name)),
        Box(words.bytes_size(about.get("parameter_bytes"))),
        *ratios,
    ]


def _summary_energy(point: Point, figures: Figures) -> Box:
    if figures.active_uj is None:
        spoiled = [verdict.code for verdict in point.verdicts if verdict.spoils == "energy"]
        return Box(words.ABSENT, ", ".join(spoiled))
    idle = f"+ {words.mean_energy(figures.idle_uj)} idle" if figures.idle_uj else ""
    return Box(words.mean_energy(figures.active_uj), idle)


def about_arm(results: Results, arm: Arm) -> dict[str, Any]:
    """What its server says of the variant; {} when it says nothing."""
    variants = results.target_of(arm).server.get("variants", [])
    return next((about for about in variants if about.get("name") == arm.variant), {})


def verdict_text(point: Point, otherwise: str = "no figures") -> str:
    return "; ".join(verdict.text for verdict in point.verdicts) or otherwise


def ratio_table(results: Results, load: Load) -> Table:
    """Paired ratios to the baseline under one load; last, the baseline's twin: what equal arms differ by."""
    twin = twin_of_baseline(results)
    names = [arm.name for arm in results.main_arms if arm.name != results.baseline] + ([twin] if twin else [])
    rows = []
    for name in names:
        point = point_of(results, name, load)
        if point is None:
            continue
        boxes = []
        if point.figures is not None:
            boxes = [_times_box(metric.of(point.figures.ratios)) for metric in METRICS]
        if all(box.text == words.ABSENT for box in boxes):
            reason = verdict_text(point) if point.figures is None else point.figures.ratios.reason
            boxes = [Box(reason or words.ABSENT, span=len(METRICS))]
        rows.append([Box(name, "the baseline again" if name == twin else ""), *boxes])
    return Table((f"against {results.baseline}", *(metric.name for metric in METRICS)), rows)


_ENERGY = {
    "active": "active_uj",
    "idle share": "idle_uj",
    "total by receipts": "total_uj",
    "by the meter": "meter_uj",
    "difference": "meter_difference",
}
_ENERGY_OF_TOKENS = {
    "active per token": "active_uj_per_token",
    "per padded token": "active_uj_per_padded_token",
}


def energy_table(results: Results, loads: Sequence[Load]) -> Table:
    """Per request, by receipts and by the meter's own count, with intervals over blocks."""
    columns = _ENERGY if results.dataset.pixel_shape else _ENERGY | _ENERGY_OF_TOKENS
    rows = []
    for arm in results.main_arms:
        for load in loads:
            point = point_of(results, arm.name, load)
            if point is None or not (point.figures or (point.withheld and point.withheld.active_uj)):
                continue
            figures = point.figures
            boxes = [Box(verdict_text(point), span=len(columns))]
            if figures is not None:
                boxes = [_energy_column(figures, field) for field in columns.values()]
                if figures.active_uj is None and figures.meter_uj is None:
                    if figures.energy_reason == results.energy_reason:
                        continue
                    boxes = [Box(figures.energy_reason, span=len(columns))]
            rows.append([Box(arm.name), Box(load.name), *boxes])
    return Table(("variant", "load", *columns), rows, numbers_from=2)


def _energy_column(figures: Figures, field: str) -> Box:
    interval = getattr(figures, field)
    if field == "meter_difference":
        return _box(interval, words.change, lambda interval: _signed_bounds(interval, 100))
    return _box(interval, words.energy, words.energy_bounds)


def accuracy_table(results: Results) -> Table:
    """Each arm on the same rows, and paired with the baseline."""
    return _table(
        [
            _accuracy_row(arm.name, results.accuracy[arm.name])
            for arm in results.plan.arms
            if arm.name in results.accuracy and not (arm.twin_of and arm.twin_of != results.baseline)
        ]
    )


def _accuracy_row(arm: str, accuracy: Accuracy) -> dict[str, str | Box]:
    difference = accuracy_difference(accuracy)
    return {
        "variant": arm,
        "right": f"{accuracy.correct:,} of {accuracy.rows:,}",
        "accuracy": _share_box(accuracy),
        "difference": _box(difference, lambda points: f"{words.signed(points, 1)} points", _signed_bounds),
        "gained": _count(accuracy.gained_rows),
        "lost": _count(accuracy.lost_rows),
        "p (McNemar)": words.ABSENT if accuracy.p_value is None else f"{accuracy.p_value:.3g}",
        "unstable rows": _count(accuracy.unstable_rows),
    }


_ACCOUNTS = {
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


def closure_table(results: Results) -> Table:
    """The ledger's growth over the cells of each arm, and what the receipts say."""
    rows: list[dict[str, str | Box]] = []
    metered = [cell for cell in results.cells if cell.energy.measured_uj is not None]
    for arm in results.plan.arms:
        energies = [cell.energy for cell in metered if cell.arm == arm.name]
        if energies:
            sums = {name: _sum(energies, account) for name, account in _ACCOUNTS.items()}
            rows.append({"cells of": arm.name, **sums})
    return _table(rows)


def _sum(energies: Sequence[CellEnergy], account: str) -> str:
    stated = [value for energy in energies if (value := getattr(energy, account)) is not None]
    return words.energy(sum(stated) if stated else None)


def validity_table(results: Results) -> Table:
    """Every point, the twin's too, with what its figures rest on and what the gates say."""
    rows = [_validity_row(results, point) for point in results.points]
    return _table(rows, numbers_from=2, texts_at_end=1)


def _validity_row(results: Results, point: Point) -> dict[str, str | Box]:
    cells = [cell for cell in results.cells if (cell.arm, cell.load) == (point.arm, point.load)]
    figures = point.figures or point.withheld
    effective = figures.latency.effective_samples if figures else None
    cost = figures.client_cpu_us_per_request if figures else None
    late = sum(cell.late or 0 for cell in cells)
    lag = words.milliseconds(figures.lag.p99_ns if figures and figures.lag else None)
    return {
        "variant": point.arm,
        "load": point.load,
        "blocks": f"{point.blocks} of {results.plan.blocks}",
        "window": f"{point.window_seconds:.1f} s",
        "answers": f"{point.answered:,}",
        "failed": f"{point.failed:,}",
        "independent samples": _samples(effective),
        "lag p99": f"{lag}, {late:,} late" if late else lag,
        "unknown energy": "all"
        if results.energy_reason
        else f"{sum(cell.energy.unknown for cell in cells):,}",
        "client CPU": words.percent(figures.client_cpu_share if figures else None, 0),
        "CPU per request": words.ABSENT if cost is None else f"{words.significant(cost)} µs",
        "verdict": verdict_text(point, otherwise="passed"),
    }


def gates_table(results: Results) -> Table:
    """Every gate that a point failed, with the points that did; what is not listed was passed by all."""
    failed: dict[tuple[str, str], list[Point]] = {}
    for point in results.points:
        for verdict in dict.fromkeys((verdict.code, verdict.spoils) for verdict in point.verdicts):
            failed.setdefault(verdict, []).append(point)
    rows = [
        {
            "gate": code,
            "points that failed": f"{len(points)} of {len(results.points)}",
            "spoils": "all its figures" if spoils == "point" else "its joules",
            "which": "; ".join(f"{point.arm}, {point.load}" for point in points),
        }
        for (code, spoils), points in failed.items()
    ]
    return _table(rows, numbers_from=9)


def checks_table(results: Results) -> Table:
    """The checklist of `loadgen validate`."""
    columns = ("check", "result", "what was seen")
    rows = [(Box(check.name), Box(check.outcome), Box(check.text)) for check in results.checks]
    return Table(columns, rows, numbers_from=9)


def trials_table(results: Results) -> Table:
    """Every rate that a search tried, in the order in which it did."""
    rows = [
        {
            "variant": search.arm,
            "objective": search.objective,
            "offered": words.rate(trial.rate_per_second),
            "achieved": words.rate(trial.achieved_per_second),
            "for": f"{trial.seconds:.1f} s",
            "answers": words.ABSENT if trial.answered is None else f"{trial.answered:,}",
            "independent samples": _samples(trial.effective_samples),
            "outcome": OUTCOMES[trial.judgement],
            "what decided": trial.text,
        }
        for search in results.searches
        for trial in search.trials
    ]
    return _table(rows, numbers_from=2, texts_at_end=2)


def _box(
    interval: Interval | None,
    figure: Callable[[float], str],
    bounds: Callable[[Interval], str] = words.bounds,
) -> Box:
    """A mean with its 95 % interval below it."""
    return Box(words.ABSENT) if interval is None else Box(figure(interval.mean), bounds(interval))


def _times_box(interval: Interval | None) -> Box:
    return Box(words.times(interval), words.bounds(interval))


def _latency_box(figures: Figures, percentile: str) -> Box:
    value, bound = (getattr(figures.latency, f"{percentile}{suffix}_ns") for suffix in ("", "_bound"))
    return Box(words.milliseconds(value), words.at_most(bound))


def _signed_bounds(interval: Interval, scale: float = 1) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f"{words.signed(interval.low * scale, 1)} to {words.signed(interval.high * scale, 1)}"


def _share_box(accuracy: Accuracy | None) -> Box:
    if accuracy is None:
        return Box(words.ABSENT)
    return Box(words.percent(accuracy.share), f"{accuracy.low * 100:.1f}–{accuracy.high * 100:.1f}")


def _samples(effective: float | None) -> str:
    return words.ABSENT if effective is None else f"≈ {effective:,.0f}"


def _count(value: int | None) -> str:
    return words.ABSENT if value is None else f"{value:,}"
