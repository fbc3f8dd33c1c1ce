"""Charts over the time of the sweep: power with its phases, and the cells in run order. SVG out.

Each returns None when there is nothing to draw. The baseline's twin is drawn too, in grey: it took its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from wattserve_loadgen.report import ink
from wattserve_loadgen.report.marks import Looks, arm_names_above
from wattserve_loadgen.report.readings import Meter, power_steps
from wattserve_loadgen.results.schema import CellResult

_MOST_STEPS = 900
_ZOOM_READINGS = 240  # more ticks than this run together
_MARGIN = 0.15  # of the window, beside it in the zoom


def power_over_time(meter: Meter, cells: Sequence[CellResult], looks: Looks, name: str) -> str | None:
    """The whole sweep, and below it one window with a tick for each reading. Windows are shaded by arm."""
    edges, watts = power_steps(meter, _MOST_STEPS)
    if not len(watts) or not np.isfinite(watts).any():
        return None
    windows = [
        (cell, cell.window_start_seconds, cell.window_start_seconds + cell.window_seconds)
        for cell in cells
        if cell.window_start_seconds is not None and cell.window_seconds > 0
    ]
    main = [one for one in windows if looks[one[0].arm] is not ink.TWIN_LOOK] or windows
    zoom = _zoom(meter, main[len(main) // 2][1:]) if main else None
    highest = float(np.nanmax(watts))

    def plot(panels: list[Any]) -> None:
        whole = panels[0]
        whole.stairs(watts, edges, color=ink.TEXT, linewidth=0.9, zorder=3)
        _shade(whole, windows, looks)
        _idle_line(whole, meter, float(edges[-1]))
        whole.set_xlim(float(edges[0]), float(edges[-1]))
        whole.set_ylim(0, highest * 1.1)
        whole.set_ylabel("watts")
        whole.set_xlabel("seconds since the sweep's start")
        ink.thousands(whole.xaxis)
        arm_names_above(whole, _arms(cells, looks), looks)
        if zoom is not None:
            _draw_zoom(panels[1], meter, windows, looks, zoom)

    return ink.draw(plot, name, height=4.9 if zoom else 2.9, panels=[1.15, 1] if zoom else [1])


def _arms(cells: Sequence[CellResult], looks: Looks) -> list[str]:
    """Those that ran, in the order of the looks."""
    ran = {cell.arm for cell in cells}
    return [name for name in looks if name in ran]


def _zoom(meter: Meter, window: tuple[float, float]) -> tuple[float, float] | None:
    """From when to when to look closely: a window and its edges, or its beginning with many readings."""
    margin = (window[1] - window[0]) * _MARGIN
    start, end = window[0] - margin, window[1] + margin
    within = meter.seconds[(meter.seconds >= start) & (meter.seconds <= end)]
    if len(within) < 3:
        return None
    return start, float(within[_ZOOM_READINGS - 1]) if len(within) > _ZOOM_READINGS else end


def _draw_zoom(
    axes: Any,
    meter: Meter,
    windows: Sequence[tuple[CellResult, float, float]],
    looks: Looks,
    zoom: tuple[float, float],
) -> None:
    start, end = zoom
    edges, watts = power_steps(meter, _ZOOM_READINGS, start, end)
    axes.stairs(watts, edges, color=ink.TEXT, linewidth=0.9, zorder=3)
    _shade(axes, [one for one in windows if one[2] > start and one[1] < end], looks)
    top = float(np.nanmax(watts)) * 1.1 or 1.0
    axes.vlines(edges, 0, top * 0.06, color=ink.FAINT, linewidth=0.6, zorder=4)
    _idle_line(axes, meter, end)
    axes.set_xlim(start, end)
    axes.set_ylim(0, top)
    axes.set_ylabel("watts")
    axes.set_xlabel("one window close up; each tick is a reading")
    ink.thousands(axes.xaxis)


def _shade(axes: Any, windows: Sequence[tuple[CellResult, float, float]], looks: Looks) -> None:
    for cell, start, end in windows:
        axes.axvspan(start, end, color=ink.tint(looks[cell.arm].colour, 0.22), linewidth=0, zorder=0)


def _idle_line(axes: Any, meter: Meter, right: float) -> None:
    if meter.idle_watts is None:
        return
    axes.axhline(meter.idle_watts, color=ink.FAINT, linewidth=0.9, linestyle="--", zorder=2)
    style = {"textcoords": "offset points", "ha": "right", "color": ink.FAINT, "fontsize": 8.5}
    axes.annotate("idle", (right, meter.idle_watts), xytext=(-3, 3), **style)


def run_order(cells: Sequence[CellResult], looks: Looks) -> str | None:
    """Each cell's rate against the mean of its point, in run order; below, what the client's machine said."""
    rates = _relative_rates(cells)
    if not rates:
        return None
    ordered = sorted(cells, key=lambda cell: cell.position)
    extras = [
        (values, label)
        for values, label in (
            (_conditions(ordered, lambda cell: _of(cell, "temperature_celsius")), "°C"),
            (_conditions(ordered, lambda cell: _of(cell, "cpu_mhz")), "CPU MHz"),
        )
        if any(not math.isnan(value) for value in values)
    ]

    def plot(panels: list[Any]) -> None:
        strip = panels[0]
        for place, cell in enumerate(ordered):
            if cell.position in rates:
                look = looks[cell.arm]
                marker = "X" if cell.stopped else "s"
                strip.scatter(
                    [place], [rates[cell.position] * 100], s=26, marker=marker, color=look.colour, zorder=3
                )
        strip.axhline(100, color=ink.FAINT, linewidth=0.9, zorder=1)
        far = max(2.0, *(abs(value - 1) * 100 for value in rates.values())) * 1.15
        strip.set_ylim(100 - far, 100 + far)
        strip.set_ylabel("% of its\npoint's mean")
        arm_names_above(strip, _arms(cells, looks), looks)
        for axes, (values, label) in zip(panels[1:], extras, strict=True):
            axes.plot(range(len(ordered)), values, color=ink.TEXT, linewidth=1.1, marker=".", markersize=4)
            axes.set_ylabel(label)
            axes.yaxis.set_major_locator(ink.few_ticks())
            ink.thousands(axes.yaxis)
        for axes in panels:
            axes.set_xlim(-0.7, len(ordered) - 0.3)
            axes.tick_params(labelbottom=False, bottom=False)
            for place, (before, after) in enumerate(pairwise(ordered)):
                if before.block != after.block:
                    axes.axvline(place + 0.5, color=ink.FAINT, linewidth=0.7, linestyle=":")
        _name_blocks(panels[-1], ordered)

    height = 2.6 + 0.95 * len(extras)
    return ink.draw(plot, "order", height=height, panels=[1.9, *[1.0] * len(extras)])


def _name_blocks(axes: Any, ordered: Sequence[CellResult]) -> None:
    blocks = list(dict.fromkeys(cell.block for cell in ordered))
    centres = [
        float(np.mean([place for place, cell in enumerate(ordered) if cell.block == block]))
        for block in blocks
    ]
    kept = slice(None, None, -(-len(blocks) // 12))
    axes.set_xticks(centres[kept], [str(block) for block in blocks[kept]])
    axes.tick_params(labelbottom=True)
    axes.set_xlabel("cells in run order, by block")


def _relative_rates(cells: Sequence[CellResult]) -> dict[int, float]:
    """A cell's rate over the mean of its point, by position."""
    points: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if cell.rate_per_second:
            points.setdefault((cell.arm, cell.load), []).append(cell.rate_per_second)
    return {
        cell.position: cell.rate_per_second / float(np.mean(points[cell.arm, cell.load]))
        for cell in cells
        if cell.rate_per_second
    }


def _conditions(cells: Sequence[CellResult], value: Callable[[CellResult], float | None]) -> list[float]:
    """NaN where it is not known."""
    return [math.nan if (found := value(cell)) is None else found for cell in cells]


def _of(cell: CellResult, name: str) -> float | None:
    return None if cell.conditions is None else getattr(cell.conditions, name)
