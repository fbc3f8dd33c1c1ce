"""Charts that weigh arms against each other: accuracy against joules, and paired ratios. Points in, SVG out.

Each returns None when there is nothing to draw. A hollow point never stands on the Pareto line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.comparison import METRICS, Metric
from wattserve_loadgen.report.marks import Looks, bounds, fill_of, mean
from wattserve_loadgen.report.scene import Seen
from wattserve_loadgen.results.schema import Accuracy

_LEGEND_LETTERS = 64  # in a row
_ROOM_ABOVE = 340  # points: labels above discs beyond it go to the side
_RATIO_TICKS = (0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20)


def accuracy_against_energy(
    points: Sequence[Seen], accuracy: Mapping[str, Accuracy], looks: Looks
) -> str | None:
    """One disc per arm under one load, its area growing with p95 latency, and the line of the best."""
    drawn = [point for point in points if point.energy.active_uj and point.arm in accuracy]
    if not drawn:
        return None
    scale, unit = words.energy_unit(max(mean(point.energy.active_uj) for point in drawn))
    areas = _disc_areas(drawn)
    right = max(bounds(point.energy.active_uj, scale)[1] for point in drawn) * 1.12
    shares = [bound for point in drawn for bound in (accuracy[point.arm].low, accuracy[point.arm].high)]
    room = max(0.5, (max(shares) - min(shares)) * 14)

    def plot(axes: Any) -> None:
        axes.set_xlim(0, right)
        top = min(100.0, max(shares) * 100 + room)
        axes.set_ylim(max(0.0, min(shares) * 100 - room), top)
        best = pareto_line(drawn, accuracy)
        if len(best) > 1:
            xs = [mean(point.energy.active_uj) / scale for point in best]
            ys = [accuracy[point.arm].share * 100 for point in best]
            axes.step(xs, ys, where="post", color=ink.FAINT, linewidth=1.1, linestyle=":", zorder=1)
        for point in sorted(drawn, key=lambda one: -areas[one.arm]):  # the smallest disc on top
            look, found = looks[point.arm], accuracy[point.arm]
            x, y = mean(point.energy.active_uj) / scale, found.share * 100
            line = {"color": look.colour, "linewidth": 1.3, "alpha": 0.7, "zorder": 2, "clip_on": False}
            axes.plot([x, x], [found.low * 100, found.high * 100], **line)
            axes.plot(bounds(point.energy.active_uj, scale), [y, y], **line)
            fill = ink.PAPER if point.energy_hollow else ink.tint(look.colour, 0.75)
            style = {"color": fill, "edgecolors": look.colour, "linewidths": 1.8, "zorder": 3}
            axes.scatter([x], [y], s=areas[point.arm], clip_on=False, **style)
        axes.set_xlabel(f"{unit} per request (active)")
        axes.set_ylabel("accuracy, %")
        if sum(_width(one) for one in drawn) <= _ROOM_ABOVE:
            tops = [(mean(one.energy.active_uj) / scale, accuracy[one.arm].high * 100) for one in drawn]
            texts = [(*_name_and_detail(one), looks[one.arm].text_colour) for one in drawn]
            ink.label_above(axes, tops, texts, max(_width(one) for one in drawn))
        else:
            ends = [
                (right, accuracy[one.arm].share * 100, one.arm, looks[one.arm].text_colour) for one in drawn
            ]
            ink.label_ends(axes, ends, shift_points=4)

    return ink.draw(plot, f"accuracy-{'open' if drawn[0].load.scheduled else 'closed'}")


def pareto_line(points: Sequence[Seen], accuracy: Mapping[str, Accuracy]) -> list[Seen]:
    """By rising energy, the points that no other beats in both; never one that is drawn hollow."""
    found: list[Seen] = []
    sound = [point for point in points if not point.energy_hollow]
    order = sorted(sound, key=lambda one: (mean(one.energy.active_uj), -accuracy[one.arm].share))
    for point in order:
        if not found or accuracy[point.arm].share > accuracy[found[-1].arm].share:
            found.append(point)
    return found


def _disc_areas(points: Sequence[Seen]) -> dict[str, float]:
    """Marker areas in points², by arm; all the same unless every point has a p95."""
    known = {point.arm: point.figures.latency.p95_ns for point in points if point.figures.latency.p95_ns}
    if len(known) < len(points):
        return dict.fromkeys((point.arm for point in points), 120.0)
    slowest = max(known.values())
    return {arm: 50 + 350 * value / slowest for arm, value in known.items()}


def _name_and_detail(point: Seen) -> tuple[str, str]:
    """A mark such as `(proxy)` goes below the name, where there is room for it."""
    name, has_mark, mark = point.arm.partition(" (")
    details = [f"({mark}"] if has_mark else []
    p95 = point.figures.latency.p95_ns
    details += [f"p95 {words.milliseconds(p95)}"] if p95 and point.told else []
    details += [] if point.told else ["verdict"]
    return name, " ".join(details)


def _width(point: Seen) -> float:
    """Of a label above its disc, in points, with the space beside it."""
    name, detail = _name_and_detail(point)
    return max(66.0, 6.6 * len(name), 5.2 * len(detail)) + 4


def paired_ratios(
    rivals: Sequence[Seen],
    twin: Seen | None,
    accuracy: Mapping[str, Accuracy],
    twin_accuracy: Accuracy | None,
    looks: Looks,
) -> str | None:
    """A forest of ratios to the baseline under one load; the band is what two equal arms differ by."""
    metrics = [one for one in METRICS if any(one.of(rival.figures.ratios) for rival in rivals)]
    if not metrics:
        return None
    compared = [
        rival for rival in rivals if (found := accuracy.get(rival.arm)) and found.difference is not None
    ]
    rows = len(metrics) * len(rivals)

    def plot(panels: list[Any]) -> None:
        _ratio_rows(panels[0], metrics, rivals, twin, looks)
        for rival in rivals:
            look = looks[rival.arm]
            panels[0].scatter([], [], s=36, marker=look.marker, color=look.colour, label=rival.arm)
        widths = [len(rival.arm) + 6 for rival in rivals]
        columns = len(rivals) if sum(widths) <= _LEGEND_LETTERS else _LEGEND_LETTERS // max(widths)
        columns = max(1, columns)
        panels[0].figure.legend(
            loc="outside upper left", ncols=columns, frameon=False, handletextpad=0.2, columnspacing=1
        )
        if compared:
            _accuracy_rows(panels[1], compared, accuracy, twin_accuracy, looks)

    heights = [rows + 1.0, *([len(compared) + 1.0] if compared else [])]
    height = max(2.9, 1.0 + 0.2 * sum(heights) + (0.6 if compared else 0))
    kind = "open" if rivals[0].load.scheduled else "closed"
    return ink.draw(plot, f"ratios-{kind}", height=height, panels=heights)


def _ratio_rows(
    axes: Any, metrics: Sequence[Metric], rivals: Sequence[Seen], twin: Seen | None, looks: Looks
) -> None:
    edges = [1.0]
    for place, metric in enumerate(metrics):
        band = metric.of(twin.figures.ratios) if twin is not None else None
        if band is not None:
            edges += _band(axes, band, place)
        for step, rival in enumerate(rivals):
            found = metric.of(rival.figures.ratios)
            if found is None:
                continue
            y = place + (step + 1) / (len(rivals) + 1) - 0.5
            hollow = rival.energy_hollow if metric.of_energy else rival.hollow
            _interval_mark(axes, found, y, looks[rival.arm], hollow)
            text = f"{words.times(found)}  {words.bounds(found)}" if rival.told else "verdict"
            _value_at_right(axes, y, text, looks[rival.arm])
            edges += [one for one in (found.mean, found.low, found.high) if one]
    axes.set_xscale("log")
    low, high = min(edges) / 1.04, max(edges) * 1.04
    axes.set_xlim(low, high)
    ink.fixed_ticks(
        axes.xaxis, _thinned([tick for tick in _RATIO_TICKS if low <= tick <= high], low, high), "{:g}×"
    )
    axes.axvline(1, color=ink.FAINT, linewidth=0.9, zorder=1)
    axes.set_yticks(range(len(metrics)), [f"{one.name} {one.arrow}" for one in metrics])
    axes.set_ylim(len(metrics) - 0.5, -0.5)
    axes.tick_params(axis="y", labelcolor=ink.TEXT)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("times the baseline (log scale)")


def _thinned(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """Ticks that do not crowd: 1 first, the others where there is room."""
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda one: abs(math.log(one))):
        if all(abs(math.log(tick / other)) > 0.135 * math.log(high / low) for other in kept):
            kept.append(tick)
    return sorted(kept)


def _accuracy_rows(
    axes: Any,
    rivals: Sequence[Seen],
    accuracy: Mapping[str, Accuracy],
    twin_accuracy: Accuracy | None,
    looks: Looks,
) -> None:
    if twin_accuracy is not None and (band := _difference(twin_accuracy)) is not None:
        _band(axes, band, 0, height=len(rivals))
    for place, rival in enumerate(rivals):
        found = _difference(accuracy[rival.arm])
        if found is None:
            continue
        y = (place + 1) / (len(rivals) + 1) * len(rivals) - len(rivals) / 2
        _interval_mark(axes, found, y, looks[rival.arm], hollow=False)
        low, high = words.signed(found.low, 1), words.signed(found.high, 1)
        _value_at_right(axes, y, f"{words.signed(found.mean, 1)}  {low} to {high}", looks[rival.arm])
    axes.axvline(0, color=ink.FAINT, linewidth=0.9, zorder=1)
    axes.set_yticks([0], ["accuracy ↑"])
    axes.set_ylim(len(rivals) / 2, -len(rivals) / 2)
    axes.tick_params(axis="y", labelcolor=ink.TEXT)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.08)
    axes.set_xlabel("percentage points more than the baseline")


def _difference(accuracy: Accuracy) -> Interval | None:
    """In percentage points."""
    if accuracy.difference is None:
        return None
    low, high = (
        None if bound is None else bound * 100
        for bound in (accuracy.difference_low, accuracy.difference_high)
    )
    return Interval(accuracy.difference * 100, low, high, accuracy.rows)


def _band(axes: Any, band: Interval, place: float, height: float = 1.0) -> list[float]:
    low, high = (band.mean if edge is None else edge for edge in (band.low, band.high))
    low, high = min(low, band.mean), max(high, band.mean)
    axes.fill_between(
        [low, high], place - 0.44 * height, place + 0.44 * height, color=ink.BAND, linewidth=0, zorder=0
    )
    return [low, high]


def _interval_mark(axes: Any, found: Interval, y: float, look: ink.Look, hollow: bool) -> None:
    if found.low is not None and found.high is not None:
        axes.plot([found.low, found.high], [y, y], color=look.colour, linewidth=1.5, zorder=2)
    style = {"color": fill_of(hollow, look), "edgecolors": look.colour, "linewidths": 1.5, "zorder": 3}
    axes.scatter([found.mean], [y], s=36, marker=look.marker, **style)


def _value_at_right(axes: Any, y: float, text: str, look: ink.Look) -> None:
    axes.annotate(
        text,
        (1, y),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=look.text_colour,
        annotation_clip=False,
    )
