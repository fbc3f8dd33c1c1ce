"""Charts of joules: points and records in, SVG out. Each returns None when there is nothing to draw.

A point with a verdict is drawn hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wattserve_loadgen import words
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.marks import Looks, axis_unit, bounds, by_variant, mean, names_above, whisker
from wattserve_loadgen.results.folder import Columns
from wattserve_loadgen.results.schema import Accuracy, Point

_BINS, _FEWEST_IN_BIN = 8, 12
_ROOM_ABOVE = 340  # points: labels above discs beyond it go to the side


def energy_against_concurrency(points: Sequence[Point], looks: Looks) -> str | None:
    """Grouped bars: active energy per request, the idle draw on top."""
    drawn = [point for point in points if point.active_uj]
    if not drawn:
        return None
    scale, unit = axis_unit(drawn)

    def plot(axes: Any) -> None:
        lines = by_variant(drawn)
        concurrencies = sorted({point.concurrency for point in drawn})
        width = 0.82 / len(lines)
        for place, (name, line) in enumerate(lines.items()):
            look = looks[name]
            for point in line:
                x = concurrencies.index(point.concurrency) + (place - (len(lines) - 1) / 2) * width
                active, idle = mean(point.active_uj) / scale, mean(point.idle_uj) / scale
                fill = ink.tint(look.colour, 0.30) if point.verdicts else look.colour
                pale = ink.PAPER if point.verdicts else ink.tint(look.colour, 0.22)
                edge = {"edgecolor": look.colour, "linewidth": 1.0}
                axes.bar(x, active, width * 0.86, color=fill, **edge)
                axes.bar(x, idle, width * 0.86, bottom=active, color=pale, hatch="////", **edge)
                whisker(axes, x, *bounds(point.active_uj, scale), ink.TEXT)
        axes.set_xticks(range(len(concurrencies)), [str(value) for value in concurrencies])
        axes.set_xlabel("concurrency (requests in flight)")
        axes.set_ylabel(f"{unit} per request")
        axes.set_ylim(bottom=0)
        names_above(axes, [(name, looks[name].text_colour) for name in lines])

    return ink.draw(plot, "energy")


def accuracy_against_energy(
    points: Sequence[Point], accuracy: Mapping[str, Accuracy], looks: Looks, concurrency: int
) -> str | None:
    """One disc per variant at one concurrency; its area grows with p95 latency."""
    drawn = [
        point
        for point in points
        if point.concurrency == concurrency and point.active_uj and point.variant in accuracy
    ]
    if not drawn:
        return None
    scale, unit = axis_unit(drawn)
    areas = _disc_areas(drawn)
    right = max(bounds(point.active_uj, scale)[1] for point in drawn) * 1.12
    shares = [
        bound for point in drawn for bound in (accuracy[point.variant].low, accuracy[point.variant].high)
    ]
    room = max(0.5, (max(shares) - min(shares)) * 14)

    def plot(axes: Any) -> None:
        axes.set_xlim(0, right)
        axes.set_ylim(max(0.0, min(shares) * 100 - room), min(100.0, max(shares) * 100 + room))
        for point in sorted(drawn, key=lambda one: -areas[one.variant]):  # the smallest disc on top
            look, found = looks[point.variant], accuracy[point.variant]
            x, y = mean(point.active_uj) / scale, found.share * 100
            line = {"color": look.colour, "linewidth": 1.3, "alpha": 0.7, "zorder": 2, "clip_on": False}
            axes.plot([x, x], [found.low * 100, found.high * 100], **line)
            axes.plot(bounds(point.active_uj, scale), [y, y], **line)
            fill = ink.PAPER if point.verdicts else ink.tint(look.colour, 0.75)
            style = {
                "color": fill,
                "edgecolors": look.colour,
                "linewidths": 1.8,
                "zorder": 3,
                "clip_on": False,
            }
            axes.scatter([x], [y], s=areas[point.variant], **style)
        axes.set_xlabel(f"{unit} per request (active)")
        axes.set_ylabel("accuracy, %")
        if sum(_width(one) for one in drawn) <= _ROOM_ABOVE:
            tops = [(mean(one.active_uj) / scale, accuracy[one.variant].high * 100) for one in drawn]
            texts = [(*_name_and_detail(one), looks[one.variant].text_colour) for one in drawn]
            ink.label_above(axes, tops, texts, max(_width(one) for one in drawn))
        else:
            ends = [
                (right, accuracy[one.variant].share * 100, one.variant, looks[one.variant].text_colour)
                for one in drawn
            ]
            ink.label_ends(axes, ends, shift_points=4)

    return ink.draw(plot, "accuracy")


def _disc_areas(points: Sequence[Point]) -> dict[str, float]:
    """Marker areas in points², by variant; all the same unless every point has a p95."""
    known = {point.variant: point.p95_ns for point in points if point.p95_ns}
    if len(known) < len(points):
        return dict.fromkeys((point.variant for point in points), 120.0)
    slowest = max(known.values())
    return {variant: 50 + 350 * value / slowest for variant, value in known.items()}


def _name_and_detail(point: Point) -> tuple[str, str]:
    """A mark such as `(proxy)` goes below the name, where there is room for it."""
    name, has_mark, mark = point.variant.partition(" (")
    details = [f"({mark}"] if has_mark else []
    details += [f"p95 {words.milliseconds(point.p95_ns)}"] if point.p95_ns else []
    return name, " ".join(details)


def _width(point: Point) -> float:
    """Of a label above its disc, in points, with the space beside it."""
    name, detail = _name_and_detail(point)
    return max(66.0, 6.6 * len(name), 5.2 * len(detail)) + 4


def energy_against_tokens(
    columns: Mapping[tuple[str, int], Columns], points: Sequence[Point], looks: Looks, concurrency: int
) -> str | None:
    """Mean energy of requests of similar length, with the middle half of them as a band."""
    found = {name: _binned(columns.get((name, concurrency))) for name in looks}
    hollow = {point.variant for point in points if point.concurrency == concurrency and point.verdicts}
    drawn = {name: bins for name, bins in found.items() if bins}
    if not drawn:
        return None
    scale, unit = words.energy_unit(max(one[3] for bins in drawn.values() for one in bins))

    def plot(axes: Any) -> None:
        ends = []
        for name, bins in drawn.items():
            look = looks[name]
            tokens, means, low, high = (np.array(column) for column in zip(*bins, strict=True))
            axes.fill_between(
                tokens, low / scale, high / scale, color=ink.tint(look.colour, 0.14), linewidth=0
            )
            fill = ink.PAPER if name in hollow else look.colour
            axes.plot(
                tokens,
                means / scale,
                look.marker + "-",
                color=look.colour,
                markerfacecolor=fill,
                markersize=5,
            )
            ends.append((float(tokens[-1]), float(means[-1]) / scale, name, look.text_colour))
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens in the request")
        axes.set_ylabel(f"{unit} per request (active)")
        ink.label_ends(axes, ends, shift_points=8)

    return ink.draw(plot, "tokens")


def _binned(columns: Columns | None) -> list[tuple[float, float, float, float]]:
    """(mean tokens, mean energy, its quartiles) of equal groups by length; [] when too few."""
    if columns is None:
        return []
    known = ~(np.isnan(columns.energy_uj) | np.isnan(columns.tokens))
    tokens, energy = columns.tokens[known], columns.energy_uj[known]
    bins = min(_BINS, len(tokens) // _FEWEST_IN_BIN)
    if bins < 2:
        return []
    groups = np.array_split(np.argsort(tokens, kind="stable"), bins)
    return [
        (
            float(tokens[group].mean()),
            float(energy[group].mean()),
            float(np.percentile(energy[group], 25)),
            float(np.percentile(energy[group], 75)),
        )
        for group in groups
    ]
