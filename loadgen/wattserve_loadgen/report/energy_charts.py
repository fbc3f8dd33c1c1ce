"""Charts of joules: points and records in, SVG out. Each returns None when there is nothing to draw.

A point whose joules have a verdict is drawn hollow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wattserve_loadgen import words
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.marks import (
    Looks,
    arm_names_above,
    arms_of,
    bounds,
    fill_of,
    load_axis,
    mean,
    whisker,
)
from wattserve_loadgen.report.scene import Seen
from wattserve_loadgen.report.tail_charts import Records
from wattserve_loadgen.results.folder import Columns

_BINS, _FEWEST_IN_BIN = 8, 12
_Bin = tuple[float, float, float, float]


def energy_against_load(points: Sequence[Seen], loads: Sequence[Load], looks: Looks, name: str) -> str | None:
    """Grouped bars: active energy per request, the idle draw on top, the meter's own count as a diamond."""
    drawn = [point for point in points if point.load in loads and point.energy.active_uj]
    if not drawn:
        return None
    scale, unit = words.energy_unit(max(_height(point) for point in drawn))

    def plot(axes: Any) -> None:
        arms = arms_of(drawn)
        places = load_axis(axes, [load for load in loads if any(one.load == load for one in drawn)])
        width = 0.82 / len(arms)
        for point in drawn:
            x = places[point.load] + (arms.index(point.arm) - (len(arms) - 1) / 2) * width
            _bar(axes, point, x, width * 0.86, scale, looks[point.arm])
        axes.set_ylabel(f"{unit} per request")
        axes.set_ylim(bottom=0)
        axes.grid(axis="x", visible=False)
        arm_names_above(axes, arms, looks)

    return ink.draw(plot, name)


def _bar(axes: Any, point: Seen, x: float, width: float, scale: float, look: ink.Look) -> None:
    figures, hollow = point.energy, point.energy_hollow
    active, idle = mean(figures.active_uj) / scale, mean(figures.idle_uj) / scale
    fill = ink.tint(look.colour, 0.30) if hollow else look.colour
    pale = ink.PAPER if hollow else ink.tint(look.colour, 0.22)
    edge = {"edgecolor": look.colour, "linewidth": 1.0}
    axes.bar(x, active, width, color=fill, **edge)
    axes.bar(x, idle, width, bottom=active, color=pale, hatch="////", **edge)
    whisker(axes, x, *bounds(figures.active_uj, scale), ink.TEXT)
    if figures.meter_uj is not None:
        y = figures.meter_uj.mean / scale
        axes.plot([x - width / 2, x + width / 2], [y, y], color=ink.TEXT, linewidth=1.1, zorder=4)
        style = {"color": fill_of(hollow, look), "edgecolors": ink.TEXT, "linewidths": 1.1, "zorder": 5}
        axes.scatter([x], [y], s=26, marker="D", **style)


def _height(point: Seen) -> float:
    figures = point.energy
    return max(mean(figures.active_uj) + mean(figures.idle_uj), mean(figures.meter_uj))


def energy_against_tokens(records: Records, points: Sequence[Seen], looks: Looks, load: Load) -> str | None:
    """Mean energy of requests of similar length, with the middle half of them as a band.

    Above by the tokens that were sent, below by the positions that were computed, padding included.
    """
    hollow = {point.arm for point in points if point.load == load and point.energy_hollow}
    found = {name: records.get((name, load.name)) for name in looks}
    rows = [
        {
            name: bins
            for name, one in found.items()
            if one is not None and (bins := _binned(one, lengths(one)))
        }
        for lengths in (_tokens, _padded)
    ]
    drawn = [
        (row, label)
        for row, label in zip(
            rows, ("tokens in the request", "computed positions, padding included"), strict=True
        )
        if row
    ]
    if not drawn:
        return None
    scale, unit = words.energy_unit(max(one[3] for row, _ in drawn for bins in row.values() for one in bins))
    right = max(one[0] for row, _ in drawn for bins in row.values() for one in bins)

    def plot(panels: list[Any]) -> None:
        for axes, (row, label) in zip(panels, drawn, strict=True):
            ends = []
            for name, bins in row.items():
                _draw_bins(axes, bins, scale, looks[name], name in hollow)
                ends.append((bins[-1][0], bins[-1][1] / scale, name, looks[name].text_colour))
            axes.set_xlim(0, right)
            axes.set_ylim(bottom=0)
            axes.set_xlabel(label)
            axes.set_ylabel(f"{unit} per request (active)")
            ink.label_ends(axes, ends, shift_points=8)

    return ink.draw(plot, "tokens", height=2.9 * len(drawn) + 0.4, panels=[1] * len(drawn))


def _tokens(columns: Columns) -> npt.NDArray[np.float64]:
    return columns.tokens


def _padded(columns: Columns) -> npt.NDArray[np.float64]:
    return columns.padded_tokens


def _draw_bins(axes: Any, bins: Sequence[_Bin], scale: float, look: ink.Look, hollow: bool) -> None:
    tokens, means, low, high = (np.array(column) for column in zip(*bins, strict=True))
    axes.fill_between(tokens, low / scale, high / scale, color=ink.tint(look.colour, 0.14), linewidth=0)
    style = {"color": look.colour, "markerfacecolor": fill_of(hollow, look), "markersize": 5}
    axes.plot(tokens, means / scale, look.marker + "-", **style)


def _binned(columns: Columns, lengths: npt.NDArray[np.float64]) -> list[_Bin]:
    """(mean length, mean energy, its quartiles) of equal groups by length; [] when too few."""
    known = ~(np.isnan(columns.energy_uj) | np.isnan(lengths))
    tokens, energy = lengths[known], columns.energy_uj[known]
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
