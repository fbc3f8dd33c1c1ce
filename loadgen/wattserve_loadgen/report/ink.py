"""How charts look: one theme, a colour-blind safe palette, and SVG that drops into an HTML page.

It knows nothing of sweeps. Text stays text, so the page's own font applies and figures can be searched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

WIDTH_INCHES, HEIGHT_INCHES = 5.3, 3.75  # 382 x 270 points: 9.5-point text is still read on a phone
TEXT, FAINT, GRID, PAPER = "#22302c", "#66736e", "#e4e7e2", "#ffffff"

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
STAGES = ("#d98b73", "#c9d6df", "#4f7f9b", "#e3d9c6")  # lag, queue, compute, the rest
BAND = "#e3e6e0"  # what two equal arms differ by

_THEME = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 9.5,
    "text.color": TEXT,
    "axes.edgecolor": "#9aa5a0",
    "axes.labelcolor": FAINT,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@dataclass(frozen=True)
class Look:
    """How one arm is drawn everywhere."""

    colour: str
    text_colour: str
    marker: str


TWIN_LOOK = Look("#9aa5a0", FAINT, "o")


def looks(arms: Sequence[str], twins: Sequence[str] = ()) -> dict[str, Look]:
    """By position: the same arm has the same look in every chart of a report. Twins are grey."""
    found = {
        name: Look(*_HUES[index % len(_HUES)], _MARKERS[index % len(_MARKERS)])
        for index, name in enumerate(arms)
    }
    return found | dict.fromkeys(twins, TWIN_LOOK)


def tint(colour: str, share: float) -> str:
    """`colour` mixed with white: share 1 is the colour itself, 0 is white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * share):02x}" for part in parts)


def draw(plot: Any, name: str, height: float = HEIGHT_INCHES, panels: Sequence[float] = ()) -> str:
    """The SVG of `plot(axes)`; `name` keeps its ids apart from those of other charts on the page.

    With the relative heights of `panels`, one below the other, `plot` gets a list of axes.
    """
    with matplotlib.rc_context({**_THEME, "svg.hashsalt": "wattserve"}):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        if panels:
            stacked = figure.subplots(len(panels), 1, squeeze=False, height_ratios=list(panels))
            plot(list(stacked[:, 0]))
        else:
            plot(figure.add_subplot())
        buffer = io.StringIO()
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
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


def log_axis(axis: Any, low: float, high: float) -> None:
    """A log scale from just below `low` to just above `high`, with ticks at 1, 2 and 5 and plain numbers."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = low / 1.25, high * 1.25
    decades = [10.0**power for power in range(-6, 9)]
    ticks = [step * decade for decade in decades for step in (1, 2, 5) if low <= step * decade <= high]
    if len(ticks) < 2:
        ticks = [step * decade for decade in decades for step in range(1, 10) if low <= step * decade <= high]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})


def thousands(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions as near to `wanted` as can be while neighbours keep `gap`: for labels that must not overlap.

    Order is kept; the groups that form stay centred on what their members wanted.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    groups: list[list[float]] = []  # [centre, members]
    for index in order:
        groups.append([wanted[index], 1.0])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (upper, some), (lower, others) = groups.pop(), groups.pop()
            count = some + others
            groups.append([(upper * some + lower * others) / count, count])
    placed = [
        centre + gap * (place - (count - 1) / 2) for centre, count in groups for place in range(int(count))
    ]
    result = [0.0] * len(wanted)
    for index, position in zip(order, placed, strict=True):
        result[index] = position
    return result


End = tuple[float, float, str, str]  # x, y, text, colour


def label_ends(axes: Any, ends: Sequence[End], shift_points: float = 11) -> None:
    """Write names to the right of line ends, pushed apart where they would overlap.

    `ends` are (x, y, text, colour) in data coordinates; call it after the axes have their limits.
    """
    pixels = axes.transData.transform([(x, y) for x, y, _, _ in ends]) if ends else []
    per_point = axes.figure.dpi / 72
    heights = spread([float(y) for _, y in pixels], gap=11.5 * per_point)
    for (x, y, text, colour), (_, seen), height in zip(ends, pixels, heights, strict=True):
        axes.annotate(
            text,
            (x, y),
            xytext=(shift_points, (height - float(seen)) / per_point),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold",
            annotation_clip=False,
        )


def label_above(
    axes: Any,
    tops: Sequence[tuple[float, float]],
    texts: Sequence[tuple[str, str, str]],
    gap_points: float = 66,
) -> None:
    """Write (name, detail, colour) above the axes, each with a thin line down to its point at `tops`.

    Names are pushed apart where they would overlap, and kept within the axes. `tops` are in data coordinates;
    call it after the axes have their limits.
    """
    axes.figure.draw_without_rendering()  # lays out, so that the axes are as wide as they will be
    per_point = axes.figure.dpi / 72
    frame = axes.get_window_extent()
    wanted = [(float(x) - frame.x0) / per_point for x, _ in axes.transData.transform(tops)]
    width, half = frame.width / per_point, gap_points / 2
    placed = spread(wanted, gap_points)
    shift = max(0.0, half - min(placed)) - max(0.0, max(placed) - (width - half))
    for top, place, (name, detail, colour) in zip(tops, placed, texts, strict=True):
        across = (place + shift) / width
        style = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center", "va": "bottom"}
        axes.annotate(name, (across, 1), xytext=(0, 16), color=colour, fontweight="bold", **style)
        axes.annotate(detail, (across, 1), xytext=(0, 5), color=FAINT, fontsize=8.5, **style)
        axes.annotate(
            "",
            xy=top,
            xytext=(across, 1.01),
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "alpha": 0.6},
            annotation_clip=False,
        )


def few_ticks(most: int = 3) -> MaxNLocator:
    """For an axis that has little room."""
    return MaxNLocator(nbins=most)


def fixed_ticks(axis: Any, ticks: Sequence[float], text: str) -> None:
    """Those ticks and no others, written by the format `text`."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text.format(value)))
