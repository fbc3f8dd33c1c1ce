"""Charts of latency, goodput and batching against load: points in, SVG out. Each returns None when there is
nothing to draw.

A point with a verdict is drawn hollow. Closed and open loads are never joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.plan.load import OFFLINE, Load
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.marks import (
    Looks,
    bounds,
    end_labels,
    fill_of,
    in_lines,
    line_style,
    lines_over_loads,
    load_mark,
    mean,
    name_kinds,
)
from wattserve_loadgen.report.scene import Seen, line_of
from wattserve_loadgen.results.schema import Search

_FEWEST_FOR_A_KNEE = 3


def timed(points: Sequence[Seen]) -> list[Seen]:
    """Those whose latency says something: everything at once measures throughput alone."""
    return [point for point in points if point.load.shape != OFFLINE]


def latency_against_rate(points: Sequence[Seen], looks: Looks, percent: int) -> str | None:
    """A line per arm and kind of load; behind a point stands its interval over blocks, or its bound."""
    drawn = [point for point in timed(points) if _latency(point, percent) and mean(_rate(point))]
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        axes.set_xlim(0, max(mean(_rate(point)) for point in drawn) * 1.04)
        heights = [_latency(point, percent) for point in drawn]
        reach = [edge for point in drawn for edge in _reach(point, percent) if edge > 0]
        ink.log_axis(axes.yaxis, min(heights + reach), max(heights + reach))
        ends = []
        for line in in_lines(drawn):
            look = looks[line[0].arm]
            xs, ys = [mean(_rate(point)) for point in line], [_latency(point, percent) for point in line]
            style = {"color": look.colour, "linewidth": 1.6, "zorder": 2, "clip_on": False}
            if line_of(line[0].load) != line[0].load.name:
                axes.plot(xs, ys, linestyle=line_style(line), **style)
            for point, x, y in zip(line, xs, ys, strict=True):
                _draw_reach(axes, point, percent, x, look)
                load_mark(axes, x, y, point, look)
            knee = knee_of(line)
            if knee is not None:
                place = line.index(knee)
                ring = {"facecolors": "none", "edgecolors": look.text_colour, "linewidths": 1.1}
                axes.scatter([xs[place]], [ys[place]], s=330, zorder=2.5, clip_on=False, **ring)
            ends.append((line, xs[-1], ys[-1]))
        axes.set_xlabel("answers per second")
        axes.set_ylabel(f"p{percent} latency, ms (log scale)")
        axes.xaxis.set_major_locator(ink.few_ticks(6))
        ink.thousands(axes.xaxis)
        name_kinds(axes, drawn)
        ink.label_ends(axes, end_labels(ends, looks), shift_points=13)

    return ink.draw(plot, f"latency-p{percent}")


def knee_of(line: Sequence[Seen]) -> Seen | None:
    """The point with the most answers per second for each second of latency (Kleinrock's power, 1979).

    None where that is an end of the line, or a line is too short or too doubtful to have one.
    """
    sound = [point for point in line if not point.hollow and point.figures.latency.mean_ns]
    if len(sound) < _FEWEST_FOR_A_KNEE:
        return None
    best = max(sound, key=lambda point: mean(_rate(point)) / (point.figures.latency.mean_ns or 1))
    return None if best in (sound[0], sound[-1]) else best


def _rate(point: Seen) -> Interval | None:
    return point.figures.rate_per_second


def _latency(point: Seen, percent: int) -> float:
    """The pooled percentile in milliseconds; 0 when the sample does not carry it."""
    found = point.figures.latency
    return ({50: found.p50_ns, 95: found.p95_ns, 99: found.p99_ns}[percent] or 0) / 1e6


def _reach(point: Seen, percent: int) -> tuple[float, float]:
    """From where to where a percentile may lie, in milliseconds: over blocks; of p99, up to its bound."""
    if percent == 99:
        value, bound = _latency(point, percent), point.figures.latency.p99_bound_ns
        return (value, bound / 1e6) if bound else (0.0, 0.0)
    return bounds(point.figures.p50_blocks_ns if percent == 50 else point.figures.p95_blocks_ns, 1e6)


def _draw_reach(axes: Any, point: Seen, percent: int, x: float, look: ink.Look) -> None:
    low, high = _reach(point, percent)
    if not high > low > 0:
        return
    axes.plot([x, x], [low, high], color=look.colour, alpha=0.45, linewidth=1.3, zorder=1)
    if percent == 99:
        axes.scatter([x], [high], s=40, marker="_", color=look.colour, linewidths=1.3, zorder=1)


def goodput_against_offered(points: Sequence[Seen], looks: Looks) -> str | None:
    """Answers within the objective against what was offered; on the diagonal everything was."""
    drawn = [
        point
        for point in points
        if point.point.offered_per_second is not None and point.figures.goodput_share is not None
    ]
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        right = max(point.point.offered_per_second or 0.0 for point in drawn) * 1.06
        axes.plot([0, right], [0, right], color=ink.FAINT, linewidth=0.9, linestyle=":", zorder=1)
        ends = []
        for line in in_lines(drawn):
            look = looks[line[0].arm]
            xs = [point.point.offered_per_second or 0.0 for point in line]
            ys = [x * (point.figures.goodput_share or 0.0) for x, point in zip(xs, line, strict=True)]
            if line_of(line[0].load) != line[0].load.name:
                axes.plot(xs, ys, color=look.colour, linewidth=1.6, linestyle=line_style(line), zorder=2)
            for point, x, y in zip(line, xs, ys, strict=True):
                load_mark(axes, x, y, point, look)
            ends.append((line, xs[-1], ys[-1]))
        axes.set_xlim(0, right)
        axes.set_ylim(0, right)
        axes.set_xlabel("offered requests per second")
        axes.set_ylabel("answers per second within the objective")
        ink.label_ends(axes, end_labels(ends, looks), shift_points=8)

    return ink.draw(plot, "goodput")


def searched_rates(searches: Sequence[Search], looks: Looks) -> str | None:
    """The rates that each search tried, and between which two of them the highest good one lies."""
    drawn = [search for search in searches if search.trials]
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        for place, search in enumerate(drawn):
            look = looks[search.arm]
            if search.rate_per_second is not None and search.broken_per_second is not None:
                edges = [search.rate_per_second, search.broken_per_second]
                axes.plot(edges, [place, place], color=ink.tint(look.colour, 0.3), linewidth=12, zorder=1)
            for trial in search.trials:
                style = {"s": 60, "linewidths": 1.6, "zorder": 3, "color": look.colour}
                if trial.judgement == "broken":
                    axes.scatter([trial.rate_per_second], [place], marker="x", **style)
                else:
                    fill = fill_of(trial.judgement != "met", look)
                    edge = {**style, "color": fill, "edgecolors": look.colour}
                    axes.scatter([trial.rate_per_second], [place], marker="o", **edge)
        axes.set_yticks(range(len(drawn)), [search.arm.replace(" (", "\n(") for search in drawn])
        axes.tick_params(axis="y", labelcolor=ink.TEXT)
        axes.set_ylim(len(drawn) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.grid(visible=False)
        axes.set_xlabel("offered requests per second")
        for name, marker, colour in (("met", "o", ink.FAINT), ("broken", "x", ink.FAINT)):
            axes.scatter([], [], marker=marker, s=46, color=colour, label=name)
        axes.scatter([], [], marker="o", s=46, color=ink.PAPER, edgecolors=ink.FAINT, label="undecided")
        axes.figure.legend(loc="outside upper left", ncols=3, frameon=False, handletextpad=0.2)

    return ink.draw(plot, "searches", height=1.5 + 0.5 * max(2, len(drawn)))


def batch_against_load(points: Sequence[Seen], loads: Sequence[Load], looks: Looks, unit: str) -> str | None:
    """Mean batch size per arm, in `unit`: sequences or images."""
    return lines_over_loads(
        points, loads, looks, "batch", f"mean batch size, {unit}", lambda point: point.figures.mean_batch_size
    )


def padding_against_load(points: Sequence[Seen], loads: Sequence[Load], looks: Looks) -> str | None:
    """The share of computed token positions that were padding."""

    def figure(point: Seen) -> float | None:
        share = point.figures.padding_share
        return None if share is None else share * 100

    return lines_over_loads(points, loads, looks, "padding", "padding, % of computed tokens", figure)
