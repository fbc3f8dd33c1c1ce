"""What several charts share: how points are grouped, numbered and bracketed by their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.plan.load import CLOSED, Load
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.scene import Seen, family, line_of, short_family, weight

Looks = Mapping[str, ink.Look]
_DISC_AREA = 150  # points², room for a two-digit number
_GAP = 0.7  # between loads that no line joins


def in_lines(points: Sequence[Seen]) -> list[list[Seen]]:
    """The points that a line may join, each group by rising load; groups in the order given."""
    lines: dict[tuple[str, str], list[Seen]] = {}
    for point in points:
        lines.setdefault((point.arm, line_of(point.load)), []).append(point)
    return [sorted(line, key=lambda point: point.load.order) for line in lines.values()]


def arms_of(points: Sequence[Seen]) -> list[str]:
    return list(dict.fromkeys(point.arm for point in points))


def mean(interval: Interval | None) -> float:
    return 0.0 if interval is None else interval.mean


def bounds(interval: Interval | None, scale: float) -> tuple[float, float]:
    """The interval of a positive figure in the axis' unit; the mean twice when there is none."""
    if interval is None:
        return 0.0, 0.0
    low = interval.mean if interval.low is None else max(0.0, interval.low)
    high = interval.mean if interval.high is None else interval.high
    return low / scale, high / scale


def end_labels(lines: Sequence[tuple[Sequence[Seen], float, float]], looks: Looks) -> list[ink.End]:
    """A label for each arm, at the right end of that of its (line, x, y) that reaches furthest."""
    ends: dict[str, ink.End] = {}
    for line, x, y in sorted(lines, key=lambda one: one[1]):
        arm = line[0].arm
        ends[arm] = (x, y, arm, looks[arm].text_colour)
    return list(ends.values())


def name_kinds(axes: Any, points: Sequence[Seen]) -> None:
    """What discs and squares stand for, where there are both."""
    if len({point.load.scheduled for point in points}) < 2:
        return
    axes.scatter([], [], marker="o", s=70, color=ink.FAINT, label="closed loop, its concurrency")
    axes.scatter([], [], marker="s", s=42, color=ink.FAINT, label="open loop")
    axes.figure.legend(loc="outside upper left", ncols=2, frameon=False, handletextpad=0.2)


def fill_of(hollow: bool, look: ink.Look) -> str:
    return ink.PAPER if hollow else look.colour


def load_mark(axes: Any, x: float, y: float, point: Seen, look: ink.Look) -> None:
    """A disc with the concurrency in it, or for an open loop a square; hollow when the point is."""
    fill = fill_of(point.hollow, look)
    style = {"color": fill, "edgecolors": look.colour, "linewidths": 1.5, "zorder": 3, "clip_on": False}
    if point.load.shape != CLOSED:
        marker = "s" if line_of(point.load) != point.load.name else "^"
        axes.scatter([x], [y], s=42, marker=marker, **style)
        return
    axes.scatter([x], [y], s=_DISC_AREA, **style)
    axes.annotate(
        weight(point.load),
        (x, y),
        ha="center",
        va="center_baseline",
        fontsize=7.5 if len(weight(point.load)) < 3 else 5.5,
        color=look.text_colour if point.hollow else ink.PAPER,
        zorder=4,
        annotation_clip=False,
    )


def line_style(line: Sequence[Seen]) -> str:
    """Solid for a closed loop, dashed for an open one."""
    return "-" if line[0].load.shape == CLOSED else (0, (5, 2))  # type: ignore[return-value]


def whisker(axes: Any, x: float, low: float, high: float, colour: str) -> None:
    """A vertical bar from low to high, nothing when they are equal."""
    if high > low:
        axes.plot([x, x], [low, high], color=colour, linewidth=1.0, zorder=4)


def names_above(axes: Any, names: Sequence[tuple[str, str]]) -> None:
    """Names above the axes, in their colours, in as many lines as they need."""
    lines: list[list[tuple[float, str, str]]] = [[]]
    left = 0.0
    for name, colour in names:
        width = 0.021 * len(name)
        if left and left + width > 1.0:
            lines.append([])
            left = 0.0
        lines[-1].append((left, name, colour))
        left += 0.06 + width
    for height, line in enumerate(reversed(lines)):
        for place, name, colour in line:
            axes.annotate(
                name,
                (place, 1.0),
                xycoords="axes fraction",
                xytext=(0, 6 + 13 * height),
                textcoords="offset points",
                color=colour,
                fontweight="bold",
                va="bottom",
            )


def arm_names_above(axes: Any, arms: Sequence[str], looks: Looks) -> None:
    names_above(axes, [(name, looks[name].text_colour) for name in arms])


def load_axis(axes: Any, loads: Sequence[Load]) -> dict[Load, float]:
    """The place of each load on an axis of equal steps; what no line joins stands apart, under its name."""
    places: dict[Load, float] = {}
    groups: list[list[Load]] = []
    at = -1.0
    for load in loads:
        fresh = not groups or short_family(groups[-1][0]) != short_family(load)
        at += 1 + (_GAP if fresh and groups else 0)
        places[load] = at
        if fresh:
            groups.append([])
        groups[-1].append(load)
    size = 9.5 if len(loads) <= 9 else 7.5
    axes.set_xticks(list(places.values()), [weight(load) for load in loads], fontsize=size)
    if len(groups) == 1:
        axes.set_xlabel(family(loads[0]))
        return places
    for number, group in enumerate(groups):
        centre = (places[group[0]] + places[group[-1]]) / 2
        axes.annotate(
            short_family(group[0]),
            (centre, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -20 - 11 * (number % 2)),  # neighbours may be wider than their loads
            textcoords="offset points",
            ha="center",
            va="top",
            color=ink.FAINT,
            fontsize=9,
        )
    return places


Figure = Callable[[Seen], float | None]


def lines_over_loads(
    points: Sequence[Seen], loads: Sequence[Load], looks: Looks, name: str, y_label: str, figure: Figure
) -> str | None:
    """`figure(point)` against load, a line per arm; points where it is None are left out."""
    drawn = [point for point in points if point.load in loads and figure(point) is not None]
    if not drawn:
        return None

    def height(point: Seen) -> float:
        return figure(point) or 0.0

    def plot(axes: Any) -> None:
        places = load_axis(axes, [load for load in loads if any(one.load == load for one in drawn)])
        axes.set_xlim(-0.15, max(places.values()) + 0.15)
        axes.set_ylim(0, max(map(height, drawn)) * 1.12 or 1)
        ends = []
        for line in in_lines(drawn):
            look = looks[line[0].arm]
            xs, ys = [places[point.load] for point in line], [height(point) for point in line]
            axes.plot(xs, ys, color=look.colour, linewidth=1.6, linestyle=line_style(line), zorder=2)
            for x, y, point in zip(xs, ys, line, strict=True):
                style = {"color": fill_of(point.hollow, look), "edgecolors": look.colour, "linewidths": 1.5}
                axes.scatter([x], [y], s=38, marker=look.marker, zorder=3, clip_on=False, **style)
            ends.append((line, xs[-1], ys[-1]))
        axes.set_ylabel(y_label)
        ink.label_ends(axes, end_labels(ends, looks), shift_points=8)

    return ink.draw(plot, name)
