"""Charts of latency and batching: points and records in, SVG out. Each returns None when there is nothing to
draw.

A point with a verdict is drawn hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wattserve_loadgen import words
from wattserve_loadgen.figures.stats import SAMPLE_FLOORS, Interval
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.marks import Looks, bounds, by_variant, lines, mean, numbered_disc
from wattserve_loadgen.results.folder import Columns
from wattserve_loadgen.results.schema import Point

_TAIL_STARTS_AT = 10.0  # percent


def latency_against_throughput(points: Sequence[Point], looks: Looks, percent: int) -> str | None:
    """A line per variant; points carry their concurrency, and behind them the interval over blocks."""
    drawn = [point for point in points if _latency(point, percent)[0] and point.rate_per_second]
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        axes.set_xlim(0, max(mean(point.rate_per_second) for point in drawn) * 1.04)
        heights = [_latency(point, percent)[0] / 1e6 for point in drawn]
        ink.log_axis(axes.yaxis, min(heights), max(heights))
        ends = []
        for name, line in by_variant(drawn).items():
            look = looks[name]
            xs = [mean(point.rate_per_second) for point in line]
            ys = [_latency(point, percent)[0] / 1e6 for point in line]
            axes.plot(xs, ys, color=look.colour, linewidth=1.6, zorder=2, clip_on=False)
            for point, x, y in zip(line, xs, ys, strict=True):
                faint = {"color": look.colour, "alpha": 0.45, "linewidth": 1.3, "zorder": 1}
                low, high = bounds(_latency(point, percent)[1], 1e6)
                if high > low > 0:
                    axes.plot([x, x], [low, high], **faint)
                numbered_disc(axes, x, y, point, look)
            ends.append((xs[-1], ys[-1], name, look.text_colour))
        axes.set_xlabel("answers per second")
        axes.set_ylabel(f"p{percent} latency, ms (log scale)")
        ink.thousands(axes.xaxis)
        ink.label_ends(axes, ends)

    return ink.draw(plot, f"latency-p{percent}")


def _latency(point: Point, percent: int) -> tuple[int, Interval | None]:
    """(pooled percentile or 0, the interval of the blocks' percentiles if any), in nanoseconds."""
    found = {
        50: (point.p50_ns, point.p50_blocks_ns),
        95: (point.p95_ns, point.p95_blocks_ns),
        99: (point.p99_ns, None),
    }
    value, interval = found[percent]
    return value or 0, interval


def batch_against_concurrency(points: Sequence[Point], looks: Looks, unit: str) -> str | None:
    """Mean batch size per variant, in `unit`: sequences or images."""
    return lines(points, looks, "batch", f"mean batch size, {unit}", lambda point: point.mean_batch_size)


def padding_against_concurrency(points: Sequence[Point], looks: Looks) -> str | None:
    """The share of computed token positions that were padding."""

    def figure(point: Point) -> float | None:
        return None if point.padding_share is None else point.padding_share * 100

    return lines(points, looks, "padding", "padding, % of computed tokens", figure)


def where_time_goes(points: Sequence[Point], concurrency: int) -> str | None:
    """Mean latency of each variant at one concurrency, split into queue, compute and the rest."""
    drawn = [point for point in points if point.concurrency == concurrency and point.mean_latency_ns]
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        for place, point in enumerate(drawn):
            whole = (point.mean_latency_ns or 0) / 1e6
            queue, compute = (point.mean_queue_ns or 0) / 1e6, (point.mean_compute_ns or 0) / 1e6
            left = 0.0
            for value, colour in zip(
                (queue, compute, max(0.0, whole - queue - compute)), ink.STAGES, strict=True
            ):
                axes.barh(place, value, 0.58, left=left, color=colour)
                left += value
            text = words.milliseconds(point.mean_latency_ns)
            axes.annotate(text, (left, place), xytext=(5, 0), textcoords="offset points", va="center")
        names = [point.variant.replace(" (", "\n(") for point in drawn]  # a mark goes below its name
        axes.set_yticks(range(len(drawn)), names)
        axes.tick_params(axis="y", labelcolor=ink.TEXT)
        axes.set_ylim(max(len(drawn), 3) - 0.5, -0.5)
        axes.grid(visible=False)
        axes.margins(x=0.16)
        axes.set_xlabel("mean latency, ms")
        stages = ("waiting for a batch", "in its batch", "network, parsing, client")
        for name, colour in zip(stages, ink.STAGES, strict=True):
            axes.scatter([], [], marker="s", s=60, color=colour, label=name)
        axes.figure.legend(
            loc="outside upper left", ncols=3, frameon=False, handletextpad=0.2, columnspacing=1
        )

    return ink.draw(plot, "time")


def latency_distribution(
    columns: Mapping[tuple[str, int], Columns], looks: Looks, concurrency: int
) -> str | None:
    """Latency by percentile, on an axis that gives the tail room; each line ends where its sample does."""
    found = {name: columns.get((name, concurrency)) for name in looks}
    drawn = {
        name: np.sort(one.latency_ns)
        for name, one in found.items()
        if one is not None and len(one.latency_ns) >= SAMPLE_FLOORS[90.0]
    }
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        curves = {name: _tail(values) for name, values in drawn.items()}
        ends = []
        axes.set_xscale("log")
        for name, (stretched, heights) in curves.items():
            axes.plot(stretched, heights, color=looks[name].colour, linewidth=1.8, clip_on=False)
            ends.append((float(stretched[-1]), float(heights[-1]), name, looks[name].text_colour))
        right = max(end[0] for end in ends)
        ticks = [
            percent for percent in (10, 50, 75, 90, 95, 99, 99.9) if 100 / (100 - percent) <= right * 1.001
        ]
        axes.set_xticks([100 / (100 - percent) for percent in ticks], [f"{percent:g}" for percent in ticks])
        axes.minorticks_off()
        axes.set_xlim(100 / (100 - _TAIL_STARTS_AT), right)
        heights = np.concatenate([curve[1] for curve in curves.values()])
        ink.log_axis(axes.yaxis, float(heights.min()), float(heights.max()))
        axes.set_xlabel("percentile (the axis stretches towards the tail)")
        axes.set_ylabel("latency, ms (log scale)")
        ink.label_ends(axes, ends, shift_points=5)

    return ink.draw(plot, "distribution")


def _tail(ordered: Any) -> tuple[Any, Any]:
    """(1 / (1 - p), latency in ms) from p = 10 % to the last percentile that the sample can carry."""
    last = max(percent for percent, floor in SAMPLE_FLOORS.items() if len(ordered) >= floor)
    stretched = np.geomspace(100 / (100 - _TAIL_STARTS_AT), 100 / (100 - last), 160)
    ranks = np.clip(np.ceil((1 - 1 / stretched) * len(ordered)).astype(int) - 1, 0, len(ordered) - 1)
    return stretched, ordered[ranks] / 1e6
