"""The tables of what was found: results in, rows of text out. It knows no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.plan.load import Arm, Load
from wattserve_loadgen.report.comparison import METRICS
from wattserve_loadgen.report.scene import point_of, seen_of, twin_of_baseline
from wattserve_loadgen.results.schema import Accuracy, Figures, Point, Results


@dataclass(frozen=True)
class Entry:
    """A table entry: a figure, and below it, smaller, what belongs to it. `span` columns wide."""

    text: str
    below: str = ""
    span: int = 1


@dataclass(frozen=True)
class Table:
    """The first column names what a row is about; figures stand in the columns from `numbers_from` on, except
    the last `texts_at_end`.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    numbers_from: int = 1
    texts_at_end: int = 0


_FIGURES = ("answers/s", "latency p50", "p95", "p99", "energy per request")
_SUMMARY_COLUMNS = ("precision", "device", *_FIGURES, "accuracy", "model size")
_ENERGY_COLUMNS = (
    "variant",
    "load",
    "active",
    "idle share",
    "total by receipts",
    "by the meter",
    "difference",
    "active per token",
    "per padded token",
)
_TOKEN_COLUMNS = 2  # the last of them
_ACCURACY_COLUMNS = (
    "variant",
    "right",
    "accuracy",
    "difference",
    "gained",
    "lost",
    "p (McNemar)",
    "unstable rows",
)


def summary_table(results: Results, load: Load) -> Table:
    """The arms side by side under one load. A spoiled point has its verdict in place of its figures.

    Under a schedule the rate is what was offered: speed is then told by the median latency.
    """
    rows = []
    for arm in results.main_arms:
        point = point_of(results, arm.name, load)
        if point is not None:
            rows.append(_summary_row(results, arm, load, point))
    speed = "p50 ratio" if load.scheduled else "speed-up"
    return Table((*_SUMMARY_COLUMNS, speed, "energy ratio"), rows, numbers_from=2)


def _summary_row(results: Results, arm: Arm, load: Load, point: Point) -> Sequence[Entry]:
    about = about_arm(results, arm)
    fixed = [Entry(arm.name), Entry(str(about.get("device") or words.ABSENT))]
    quality = [_accuracy_entry(results, arm.name), Entry(words.bytes_size(about.get("parameter_bytes")))]
    if point.figures is None:
        return [
            *fixed,
            Entry(verdict_text(point), span=len(_FIGURES)),
            *quality,
            Entry(words.ABSENT),
            Entry(words.ABSENT),
        ]
    figures, is_baseline = point.figures, arm.name == results.baseline
    if point.hollow:
        fixed[0] = Entry(arm.name, ", ".join(one.code for one in point.verdicts))
    return [
        *fixed,
        *_figure_entries(figures, point),
        *quality,
        _ratio_entry(figures.ratios.p50 if load.scheduled else figures.ratios.rate, is_baseline),
        _ratio_entry(figures.ratios.active_energy, is_baseline and figures.active_uj is not None),
    ]


def _figure_entries(figures: Figures, point: Point) -> Sequence[Entry]:
    rate, latency = figures.rate_per_second, figures.latency
    if figures.active_uj is None:
        spoiled = [one.code for one in point.verdicts if one.spoils == "energy"]
        energy = Entry(words.ABSENT, ", ".join(spoiled))
    else:
        idle = f"+ {words.mean_energy(figures.idle_uj)} idle" if figures.idle_uj else ""
        energy = Entry(words.mean_energy(figures.active_uj), idle)
    return [
        Entry(words.significant(rate.mean) if rate else words.ABSENT, words.bounds(rate)),
        Entry(words.milliseconds(latency.p50_ns), words.at_most(latency.p50_bound_ns)),
        Entry(words.milliseconds(latency.p95_ns), words.at_most(latency.p95_bound_ns)),
        Entry(words.milliseconds(latency.p99_ns), words.at_most(latency.p99_bound_ns)),
        energy,
    ]


def about_arm(results: Results, arm: Arm) -> dict[str, Any]:
    """What its server says of the variant; {} when it says nothing."""
    variants = results.target_of(arm).server.get("variants", [])
    return next((one for one in variants if one.get("name") == arm.variant), {})


def verdict_text(point: Point) -> str:
    return "; ".join(verdict.text for verdict in point.verdicts) or "no figures"


def _ratio_entry(interval: Interval | None, is_baseline: bool) -> Entry:
    if is_baseline:
        return Entry("1", "baseline")
    return Entry(words.times(interval), words.bounds(interval))


def _accuracy_entry(results: Results, arm: str) -> Entry:
    if results.accuracy_reason:
        return Entry("not applicable")
    found = results.accuracy.get(arm)
    if found is None:
        return Entry(words.ABSENT)
    return Entry(words.percent(found.share), f"{found.low * 100:.1f}–{found.high * 100:.1f}")


def ratio_table(results: Results, load: Load) -> Table:
    """Paired ratios to the baseline under one load; last, the baseline's twin: what equal arms differ by."""
    twin = twin_of_baseline(results)
    names = [arm.name for arm in results.main_arms if arm.name != results.baseline] + ([twin] if twin else [])
    rows = []
    for name in names:
        point = point_of(results, name, load)
        if point is None:
            continue
        label = Entry(name, "the baseline again" if name == twin else "")
        if point.figures is None:
            rows.append([label, Entry(verdict_text(point), span=len(METRICS))])
            continue
        found = [metric.of(point.figures.ratios) for metric in METRICS]
        if not any(found):
            rows.append([label, Entry(point.figures.ratios.reason or words.ABSENT, span=len(METRICS))])
            continue
        rows.append([label, *(Entry(words.times(one), words.bounds(one)) for one in found)])
    return Table((f"against {results.baseline}", *(metric.name for metric in METRICS)), rows)


def energy_table(results: Results, loads: Sequence[Load]) -> Table:
    """Per request, by receipts and by the meter's own count, with intervals over blocks."""
    rows = []
    for arm in results.main_arms:
        for load in loads:
            seen = seen_of(results, arm.name, load)
            if seen is None or (seen.point.figures is None and seen.figures.active_uj is None):
                continue
            label = [Entry(arm.name), Entry(load.name)]
            figures = seen.point.figures
            if figures is None:
                rows.append([*label, Entry(verdict_text(seen.point), span=len(_ENERGY_COLUMNS) - 2)])
            elif figures.active_uj is None and figures.meter_uj is None:
                if figures.energy_reason != results.energy_reason:
                    rows.append([*label, Entry(figures.energy_reason, span=len(_ENERGY_COLUMNS) - 2)])
            else:
                rows.append([*label, *_energy_entries(figures)])
    if results.dataset.pixel_shape:
        return Table(
            _ENERGY_COLUMNS[:-_TOKEN_COLUMNS], [_without_tokens(row) for row in rows], numbers_from=2
        )
    return Table(_ENERGY_COLUMNS, rows, numbers_from=2)


def _without_tokens(row: Sequence[Entry]) -> Sequence[Entry]:
    """Images have none."""
    *kept, last = row
    if last.span > 1:
        return [*kept, Entry(last.text, last.below, last.span - _TOKEN_COLUMNS)]
    return row[:-_TOKEN_COLUMNS]


def _energy_entries(figures: Figures) -> Sequence[Entry]:
    difference = figures.meter_difference
    return [
        *(
            Entry(words.mean_energy(one), words.energy_bounds(one))
            for one in (figures.active_uj, figures.idle_uj, figures.total_uj, figures.meter_uj)
        ),
        Entry(words.change(None if difference is None else difference.mean), _change_bounds(difference)),
        *(
            Entry(words.mean_energy(one), words.energy_bounds(one))
            for one in (figures.active_uj_per_token, figures.active_uj_per_padded_token)
        ),
    ]


def _change_bounds(interval: Interval | None) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"{words.signed(interval.low * 100, 1)} to {words.signed(interval.high * 100, 1)}"


def accuracy_table(results: Results) -> Table:
    """Each arm on the same rows, and paired with the baseline."""
    rows = [
        _accuracy_row(arm.name, results.accuracy[arm.name])
        for arm in results.plan.arms
        if arm.name in results.accuracy and not (arm.twin_of and arm.twin_of != results.baseline)
    ]
    return Table(_ACCURACY_COLUMNS, rows)


def _accuracy_row(arm: str, found: Accuracy) -> Sequence[Entry]:
    difference = Entry(words.ABSENT)
    if found.difference is not None:
        below = ""
        if found.difference_low is not None and found.difference_high is not None:
            low, high = found.difference_low * 100, found.difference_high * 100
            below = f"{words.signed(low, 1)} to {words.signed(high, 1)}"
        difference = Entry(f"{words.signed(found.difference * 100, 1)} points", below)
    return [
        Entry(arm),
        Entry(f"{found.correct:,} of {found.rows:,}"),
        Entry(words.percent(found.share), f"{found.low * 100:.1f}–{found.high * 100:.1f}"),
        difference,
        Entry(_count(found.gained_rows)),
        Entry(_count(found.lost_rows)),
        Entry(words.ABSENT if found.p_value is None else f"{found.p_value:.3g}"),
        Entry(_count(found.unstable_rows)),
    ]


def _count(value: int | None) -> str:
    return words.ABSENT if value is None else f"{value:,}"
