"""What several charts share: how points are grouped, numbered and bracketed by their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.report import ink
from wattserve_loadgen.results.schema import Point

Looks = Mapping[str, ink.Look]
_DISC_AREA = 150  # points², room for a two-digit number


def by_variant(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Each variant's points by rising concurrency, variants in the order given."""
    lines: dict[str, list[Point]] = {}
    for point in points:
        lines.setdefault(point.variant, []).append(point)
    return {name: sorted(line, key=lambda point: point.concurrency) for name, line in lines.items()}


def mean(interval: Interval | None) -> float:
    return 0.0 if interval is None else interval.mean


def bounds(interval: Interval | None, scale: float) -> tuple[float, float]:
    """The interval of a positive figure in the axis' unit; the mean twice when there is none."""
    if interval is None:
        return 0.0, 0.0
    low = interval.mean if interval.low is None else max(0.0, interval.low)
    high = interval.mean if interval.high is None else interval.high
    return low / scale, high / scale


def axis_unit(points: Sequence[Point]) -> tuple[float, str]:
    """One unit for a whole energy axis, by its largest figure: (microjoules in the unit, unit)."""
    return words.energy_unit(max(mean(point.active_uj) + mean(point.idle_uj) for point in points))


def numbered_disc(axes: Any, x: float, y: float, point: Point, look: ink.Look) -> None:
    """A disc with the concurrency in it; hollow when the point has a verdict."""
    fill, text = (ink.PAPER, look.text_colour) if point.verdicts else (look.colour, ink.PAPER)
    axes.scatter(
        [x], [y], s=_DISC_AREA, color=fill, edgecolors=look.colour, linewidths=1.5, zorder=3, clip_on=False
    )
    axes.annotate(
        str(point.concurrency),
        (x, y),
        ha="center",
        va="center_baseline",
        fontsize=7.5 if point.concurrency < 100 else 5.5,
        color=text,
        zorder=4,
        annotation_clip=False,
    )


def whisker(axes: Any, x: float, low: float, high: float, colour: str) -> None:
    """A vertical bar from low to high, nothing when they are equal."""
    if high > low:
        axes.plot([x, x], [low, high], color=colour, linewidth=1.0, zorder=4)


def names_above(axes: Any, names: Sequence[tuple[str, str]]) -> None:
    """The variants' names above the axes, in their colours, in as many lines as they need."""
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


def lines(points: Sequence[Point], looks: Looks, name: str, y_label: str, figure: Any) -> str | None:
    """`figure(point)` against concurrency, a line per variant; points where it is None are left out."""
    drawn = [point for point in points if figure(point) is not None]
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        concurrencies = sorted({point.concurrency for point in drawn})
        axes.set_xticks(range(len(concurrencies)), [str(value) for value in concurrencies])
        axes.set_xlim(-0.15, len(concurrencies) - 0.85)
        axes.set_ylim(0, max(figure(point) for point in drawn) * 1.12 or 1)
        ends = []
        for variant, line in by_variant(drawn).items():
            look = looks[variant]
            xs = [concurrencies.index(point.concurrency) for point in line]
            ys = [figure(point) for point in line]
            axes.plot(xs, ys, color=look.colour, linewidth=1.6, zorder=2)
            for x, y, point in zip(xs, ys, line, strict=True):
                fill = ink.PAPER if point.verdicts else look.colour
                axes.scatter(
                    [x],
                    [y],
                    s=38,
                    marker=look.marker,
                    color=fill,
                    edgecolors=look.colour,
                    linewidths=1.5,
                    zorder=3,
                )
            ends.append((xs[-1], ys[-1], variant, look.text_colour))
        axes.set_xlabel("concurrency (requests in flight)")
        axes.set_ylabel(y_label)
        ink.label_ends(axes, ends, shift_points=8)

    return ink.draw(plot, name)
