"""How charts look: their style, the colours of the arms, marks and labels, and SVG for an HTML page.

It knows nothing of sweeps. Text stays text: the page's own font applies to it, and a reader can search it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from scipy.optimize import isotonic_regression

_STYLE = matplotlib.rc_params_from_file(
    Path(__file__).with_name("report.mplstyle"), use_default_template=False
)
_WIDTH, _HEIGHT = _STYLE["figure.figsize"]  # inches
TEXT, FAINT, PAPER = _STYLE["text.color"], _STYLE["axes.labelcolor"], "#ffffff"
PALE = 0.35  # the opacity of what has a verdict
BAND = "#e3e6e0"  # what two equal arms differ by
PLAIN = "{x:,.10g}"  # numbers on an axis, without exponent
_LEGEND_LETTERS = 73  # in a row

# Okabe and Ito's hues, told apart by every kind of colour blindness; each with a darker twin for text on
# white.
_HUES = (
    ("#0072b2", "#005b8e"),
    ("#d55e00", "#a84a00"),
    ("#009e73", "#00775a"),
    ("#b5539c", "#8f3f7a"),
    ("#c78a00", "#8a6000"),
    ("#3c9ad6", "#20709f"),
    ("#4d4d4d", "#4d4d4d"),
    ("#8b5a2b", "#6e4520"),
)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p", "h")  # one more than hues: their pairs repeat late


@dataclass(frozen=True)
class Look:
    """How one arm is drawn everywhere."""

    colour: str
    text_colour: str
    marker: str


Looks = Mapping[str, Look]  # by arm
TWIN_LOOK = Look("#9aa5a0", FAINT, "o")


def looks(arms: Sequence[str], twins: Sequence[str] = ()) -> dict[str, Look]:
    """By position: the same arm has the same look in every chart of a report. Twins are grey."""
    own = {
        name: Look(*_HUES[index % len(_HUES)], _MARKERS[index % len(_MARKERS)])
        for index, name in enumerate(arms)
    }
    return own | dict.fromkeys(twins, TWIN_LOOK)


def looks_of(arms: Iterable[str], looks: Looks) -> Looks:
    """Of these arms alone, in the report's order."""
    wanted = set(arms)
    return {name: look for name, look in looks.items() if name in wanted}


def tint(colour: str, share: float) -> str:
    """`colour` mixed with white: share 1 is the colour itself, 0 is white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * share):02x}" for part in parts)


def style() -> AbstractContextManager[None]:
    """The charts' own look, within which they are drawn."""
    context: AbstractContextManager[None] = matplotlib.rc_context(_STYLE)
    return context


def panels(heights: Sequence[float], height: float = _HEIGHT) -> list[Any]:
    """The axes of a new figure of that height in inches, one below the other, of these relative heights."""
    figure = Figure(figsize=(_WIDTH, height))
    return list(figure.subplots(len(heights), squeeze=False, height_ratios=list(heights))[:, 0])


def axes(height: float = _HEIGHT) -> Any:
    return panels([1], height)[0]


@dataclass(frozen=True)
class Drawing:
    """A finished chart, by the first of its axes."""

    axes: Any

    def svg(self, name: str) -> str:
        """`name` keeps the ids of this chart apart from those of the others on the page."""
        buffer = io.StringIO()
        with style():
            FigureCanvasSVG(self.axes.figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
        return _inline(buffer.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """Without XML header, metadata and fixed size; only ids in use are left, as `name-1`, `name-2`.

    Matplotlib makes ids of unrounded coordinates, whose last digit can change from one layout to the next.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1
    )
    used = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    short = {old: f"{name}-{number}" for number, old in enumerate(used, start=1)}
    svg = re.sub(r' id="([^"]+)"', lambda at: f' id="{short[at[1]]}"' if at[1] in short else "", svg)
    return re.sub(r'(url\(|href=")#([^")]+)', lambda at: f"{at[1]}#{short[at[2]]}", svg).strip()


def fixed_ticks(axis: Any, ticks: Sequence[float], text: str = PLAIN) -> None:
    """Those ticks and no others, written by the format `text`."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(text)


def log_axis(axis: Any, low: float, high: float) -> None:
    """A log scale from just below `low` to just above `high`, with ticks at 1, 2 and 5 and plain numbers."""
    low, high = low / 1.25, high * 1.25
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    decades = [10.0**power for power in range(-6, 9)]
    ticks: list[float] = []
    for steps in ((1, 2, 5), range(1, 10)):
        if len(ticks) < 2:
            ticks = [step * decade for decade in decades for step in steps if low <= step * decade <= high]
    fixed_ticks(axis, ticks)


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Names of the rows of a chart without a vertical scale, on the left."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", labelcolor=TEXT)
    axes.grid(axis="y", visible=False)


def fill_of(look: Look, hollow: bool) -> str:
    return PAPER if hollow else look.colour


def mark(axes: Any, x: float, y: float, look: Look, hollow: bool = False, **style: Any) -> None:
    """A point in the look of its arm; a hollow one has a verdict."""
    usual = {"color": fill_of(look, hollow), "edgecolors": look.colour, "marker": look.marker}
    axes.scatter([x], [y], **{**usual, "linewidths": 1.5, "zorder": 3, "clip_on": False, **style})


def write(
    axes: Any, text: str, at: tuple[float, float], shift: tuple[float, float] = (0, 0), /, **style: Any
) -> None:
    """Text at a point, moved by `shift` points; it may stand outside of the axes."""
    axes.annotate(text, at, xytext=shift, textcoords="offset points", annotation_clip=False, **style)


def legend(axes: Any, arms: Looks | None = None, marker: str = "s") -> None:
    """Above the chart, in as many rows as it needs: everything with a label, and `arms` by their colours.

    An empty `marker` stands for that of each arm.
    """
    for name, look in (arms or {}).items():
        axes.scatter([], [], s=36, marker=marker or look.marker, color=look.colour, label=name)
    widths = [len(label) + 6 for label in axes.get_legend_handles_labels()[1]]
    columns = len(widths) if sum(widths) <= _LEGEND_LETTERS else max(1, _LEGEND_LETTERS // max(widths))
    axes.figure.legend(loc="outside upper left", ncols=columns)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions as near to `wanted` as can be while neighbours keep `gap`: for labels that must not overlap.

    Order is kept; the groups that form stay centred on what their members wanted (least squares).
    """
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(order))
    placed = np.empty(len(order))
    placed[order] = isotonic_regression(np.asarray(wanted)[order] - steps).x + steps
    return [float(position) for position in placed]


End = tuple[float, float, str, str]  # x, y, text, colour


def label_ends(axes: Any, ends: Sequence[End], shift: float = 8) -> None:
    """Names to the right of line ends, pushed apart where they would overlap.

    `ends` are in data coordinates; call it after the axes have their limits.
    """
    per_point = axes.figure.dpi / 72
    heights = [float(axes.transData.transform((x, y))[1]) / per_point for x, y, _, _ in ends]
    for (x, y, text, colour), height, place in zip(ends, heights, spread(heights, gap=11.5), strict=True):
        write(axes, text, (x, y), (shift, place - height), va="center", color=colour, fontweight="bold")


def label_above(
    axes: Any, tops: Sequence[tuple[float, float]], texts: Sequence[tuple[str, str, str]], gap: float
) -> None:
    """(name, detail, colour) above the axes, each with a thin line down to its point at `tops`.

    Names are pushed apart where they would overlap, and kept within the axes; `gap` is in points. `tops` are
    in data coordinates; call it after the axes have their limits.
    """
    axes.figure.draw_without_rendering()  # lays out, so that the axes are as wide as they will be
    per_point = axes.figure.dpi / 72
    frame = axes.get_window_extent()
    width = frame.width / per_point
    placed = spread([(float(x) - frame.x0) / per_point for x, _ in axes.transData.transform(tops)], gap)
    shift = max(0.0, gap / 2 - min(placed)) - max(0.0, max(placed) - (width - gap / 2))
    for top, place, (name, detail, colour) in zip(tops, placed, texts, strict=True):
        across = (place + shift) / width
        style = {"xycoords": "axes fraction", "ha": "center", "va": "bottom"}
        write(axes, name, (across, 1), (0, 16), color=colour, fontweight="bold", **style)
        write(axes, detail, (across, 1), (0, 5), color=FAINT, fontsize=8.5, **style)
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "alpha": 0.6}
        axes.annotate(
            "", top, (across, 1.01), textcoords="axes fraction", arrowprops=line, annotation_clip=False
        )
