"""The one picture that `inspect` draws: a value per layer, a series per variant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattserve_server.errors import ConfigError

if TYPE_CHECKING:  # an extra that not everybody has
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
# Okabe and Ito's hues, told apart by every kind of colour blindness (their yellow is too pale on white), and
# markers that do it in print. Neither number divides the other, so that a pair comes again after 84 series;
# up to 12 series differ by their markers alone.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5539c", "#c78a00", "#56b4e9", "#222222")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<", ">", "p", "h")
_ROW_INCHES = 0.19
_LEGEND_COLUMNS = 4
_STRIP = 0.14  # of the width, at an edge, for what has no place on the axis
_SPREAD = 0.6  # of a row's height, over which its series are spread
EXACT = "left edge, hollow: exact (0)"
NOT_FINITE = "right edge, outlined: not finite"

_Mark = tuple[int, int]  # a series and a layer, by their indices


@dataclass(frozen=True)
class LayerChart:
    """What is not finite, and an exact 0 on a logarithmic axis, are drawn at the edges."""

    title: str
    unit: str
    names: Sequence[str]  # the layers, first on top
    series: Mapping[str, Sequence[float | None]]  # of each name, a value per layer; None is not drawn
    is_logarithmic: bool
    limit: float | None = None  # a line to hold the values against


def look(index: int) -> tuple[str, str]:
    """The colour and the marker of a series."""
    return _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]


def check_figure(path: str | None) -> None:
    """Before the work: raises ConfigError for a figure that could not be drawn."""
    if path is None:
        return
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--figure {path}: must end in .png or .svg")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigError("--figure needs matplotlib: pip install '.[loadgen]'") from None


def draw(chart: LayerChart, path: str) -> None:
    """Raises ConfigError when the file cannot be written."""
    try:
        picture(chart).savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"--figure {path}: cannot be written ({error.strerror})") from None


def picture(chart: LayerChart) -> Figure:
    from matplotlib.figure import Figure

    legend_rows = -(-(len(chart.series) + 2) // _LEGEND_COLUMNS)
    height = 1.4 + _ROW_INCHES * (len(chart.names) + legend_rows)
    drawing = Figure(figsize=(8.5, height), layout="constrained")
    axes = drawing.add_subplot()
    axes.set_xscale("log" if chart.is_logarithmic else "linear")
    exact: list[_Mark] = []
    not_finite: list[_Mark] = []
    has_points = False
    for index, (name, values) in enumerate(chart.series.items()):
        points: list[tuple[float, int]] = []
        for row, value in enumerate(values):
            if value is None:
                continue
            if not math.isfinite(value):
                not_finite.append((index, row))
            elif chart.is_logarithmic and value == 0:
                exact.append((index, row))
            else:
                points.append((value, row))
        has_points = has_points or bool(points)
        colour, marker = look(index)
        aside = _SPREAD * ((index + 0.5) / len(chart.series) - 0.5)  # equal values must not hide each other
        axes.plot(
            [value for value, _ in points], [row + aside for _, row in points],
            marker, color=colour, markersize=4.5, label=name, alpha=0.85,
        )  # fmt: skip
    if exact or not_finite:
        if not has_points:  # nothing to take limits from
            axes.set_xlim(1e-6, 1)
        axes.margins(x=1.6 * _STRIP)
    if exact:
        _edge(axes, exact, len(chart.series), is_left=True)
    if not_finite:
        _edge(axes, not_finite, len(chart.series), is_left=False)
    if chart.limit is not None:
        axes.axvline(chart.limit, color="#66736e", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(chart.names)), chart.names, fontsize=7)
    axes.set_ylim(len(chart.names) - 0.5, -0.5)
    axes.set_xlabel(chart.unit)
    axes.set_title(chart.title, loc="left", fontsize=10)
    axes.grid(color="#e4e7e2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        drawing.legend(
            handles=handles, loc="outside upper right", frameon=False, fontsize=8,
            ncols=min(len(handles), _LEGEND_COLUMNS),
        )  # fmt: skip
    return drawing


def _edge(axes: Any, marks: Sequence[_Mark], series: int, is_left: bool) -> None:
    """Draw what has no place on the axis in a strip at its edge: each series in a column of its own, so that
    none hides another, in its own colour and shape, hollow on the left and outlined on the right."""
    from matplotlib.patches import Rectangle

    start = 0.0 if is_left else 1.0 - _STRIP
    strip = Rectangle((start, 0), _STRIP, 1, transform=axes.transAxes, color="#eef0ec", zorder=0.5)
    axes.add_artist(strip)  # as a patch it would count for the limits
    for index in dict.fromkeys(index for index, _ in marks):
        colour, marker = look(index)
        rows = [row for own, row in marks if own == index]
        across = [start + _STRIP * (index + 1) / (series + 1)] * len(rows)
        axes.plot(
            across, rows, marker, color=colour, transform=axes.get_yaxis_transform(), label="_edge",
            **_edge_style(colour, is_left),
        )  # fmt: skip
    words = EXACT if is_left else NOT_FINITE
    axes.plot([], [], "o", label=words, **_edge_style("#9aa39e", is_left))


def _edge_style(colour: str, is_left: bool) -> dict[str, Any]:
    if is_left:
        return {"markersize": 5, "markerfacecolor": "none", "markeredgecolor": colour}
    black = {"markeredgecolor": "#000000", "markeredgewidth": 1.1}
    return {"markersize": 5.5, "markerfacecolor": colour, **black}
