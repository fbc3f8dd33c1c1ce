"""Charts of single requests under one load: the tail, the batches, where the time goes. Records and points
in, SVG out. Each returns None when there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wattserve_loadgen import words
from wattserve_loadgen.figures.stats import SAMPLE_FLOORS
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.marks import Looks
from wattserve_loadgen.report.scene import Seen
from wattserve_loadgen.results.folder import Columns

Records = Mapping[tuple[str, str], Columns]  # by arm and load
_TAIL_STARTS_AT = 10.0  # percent
_MOST_BARS = 40
_PALE = 0.35
_VERDICT = "verdict"  # in place of a figure
STAGES = ("late to send", "waiting for a batch", "in its batch", "network, parsing, client")


def latency_distribution(
    records: Records, looks: Looks, load: Load, untold: Collection[str] = ()
) -> str | None:
    """Latency by percentile, on an axis that gives the tail room; each line ends where its sample does.

    An open loop has a second, dashed line: the service time, which knows nothing of requests that were late.
    The lines of `untold` arms are pale: those have a verdict.
    """
    drawn: dict[str, list[npt.NDArray[np.int64]]] = {}
    for name in looks:
        found = records.get((name, load.name))
        if found is not None and len(found.latency_ns) >= SAMPLE_FLOORS[90.0]:
            drawn[name] = [found.latency_ns, *([found.service_ns] if load.scheduled else [])]
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        ends, heights = [], []
        axes.set_xscale("log")
        for name, times in drawn.items():
            for values, style in zip(times, ("-", (0, (3, 2))), strict=False):
                stretched, curve = _tail(np.sort(values))
                axes.plot(
                    stretched,
                    curve,
                    color=looks[name].colour,
                    linestyle=style,
                    linewidth=1.8 if style == "-" else 1.3,
                    alpha=_PALE if name in untold else 1.0,
                    clip_on=False,
                )
                heights.append(curve)
                if style == "-":
                    ends.append((float(stretched[-1]), float(curve[-1]), name, looks[name].text_colour))
        right = max(end[0] for end in ends)
        shown = (10, 50, 75, 90, 95, 99, 99.9)
        ticks = [percent for percent in shown if 100 / (100 - percent) <= right * 1.001]
        axes.set_xticks([100 / (100 - percent) for percent in ticks], [f"{percent:g}" for percent in ticks])
        axes.minorticks_off()
        axes.set_xlim(100 / (100 - _TAIL_STARTS_AT), right)
        every = np.concatenate(heights)
        ink.log_axis(axes.yaxis, float(every.min()), float(every.max()))
        axes.set_xlabel("percentile (the axis stretches towards the tail)")
        axes.set_ylabel("latency, ms (log scale)")
        ink.label_ends(axes, ends, shift_points=5)
        if load.scheduled:
            axes.plot([], [], color=ink.FAINT, linewidth=1.8, label="response time")
            axes.plot([], [], color=ink.FAINT, linewidth=1.3, linestyle=(0, (3, 2)), label="service time")
            axes.figure.legend(loc="outside upper left", ncols=2, frameon=False)

    return ink.draw(plot, f"distribution-{'open' if load.scheduled else 'closed'}")


def _tail(ordered: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """(1 / (1 - p), latency in ms) from p = 10 % to the last percentile that the sample can carry."""
    last = max(percent for percent, floor in SAMPLE_FLOORS.items() if len(ordered) >= floor)
    stretched = np.geomspace(100 / (100 - _TAIL_STARTS_AT), 100 / (100 - last), 160)
    ranks = np.clip(np.ceil((1 - 1 / stretched) * len(ordered)).astype(int) - 1, 0, len(ordered) - 1)
    return stretched, np.maximum(ordered[ranks], 1) / 1e6


def batch_sizes(
    records: Records, looks: Looks, load: Load, unit: str, untold: Collection[str] = ()
) -> str | None:
    """For each arm a row of bars: the share of batches of each size, and a line at their mean."""
    drawn = {
        name: shares
        for name in looks
        if (found := records.get((name, load.name))) is not None
        and len(shares := batch_shares(found.batch_size))
    }
    if not drawn:
        return None
    largest = max(len(shares) for shares in drawn.values()) - 1
    step = -(-largest // _MOST_BARS)  # sizes in one bar

    def plot(panels: list[Any]) -> None:
        for axes, (name, shares) in zip(panels, drawn.items(), strict=True):
            look = looks[name]
            edges = np.arange(1, largest + 1, step)
            heights = np.add.reduceat(np.pad(shares, (0, largest + 1 - len(shares))), edges) * 100
            share = 0.12 if name in untold else 0.55
            style = {"color": ink.tint(look.colour, share), "edgecolor": look.colour, "linewidth": 0.8}
            axes.bar(edges + (step - 1) / 2, heights, 0.82 * step, **style)
            middle = float(np.arange(len(shares)) @ shares)
            axes.axvline(middle, color=look.text_colour, linewidth=1.2, linestyle=":")
            text = f"{name}: {_VERDICT if name in untold else f'mean {words.significant(middle)}'}"
            axes.annotate(
                text,
                (1.0, 1.0),
                xycoords="axes fraction",
                ha="right",
                va="top",
                color=look.text_colour,
                fontweight="bold",
            )
            axes.set_xlim(0.4, largest + 0.6)
            axes.set_ylim(0, float(heights.max()) * 1.25)
            axes.tick_params(labelbottom=axes is panels[-1])
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.yaxis.set_major_locator(ink.few_ticks())
        panels[len(panels) // 2].set_ylabel("share of batches, %")
        panels[-1].set_xlabel(f"batch size, {unit}")

    kind = "open" if load.scheduled else "closed"
    return ink.draw(plot, f"sizes-{kind}", height=max(2.6, 1.1 + 0.85 * len(drawn)), panels=[1] * len(drawn))


def batch_shares(sizes_seen: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The share of batches by size, index 0 unused; empty without a known size.

    A batch of eight is seen by eight requests, so each request stands for 1/size of a batch.
    """
    known = sizes_seen[~np.isnan(sizes_seen) & (sizes_seen > 0)].astype(np.int64)
    if not len(known):
        return np.zeros(0)
    batches = np.bincount(known, weights=1 / known).astype(np.float64)
    return batches / float(batches.sum())


def where_time_goes(points: Sequence[Seen], load: Load) -> str | None:
    """Mean latency of each arm, split into lag, queue, compute and the rest."""
    drawn = [point for point in points if point.load == load and point.figures.latency.mean_ns]
    if not drawn:
        return None

    def plot(axes: Any) -> None:
        for place, point in enumerate(drawn):
            left = 0.0
            for value, colour in zip(time_stages(point), ink.STAGES, strict=True):
                axes.barh(place, value, 0.58, left=left, color=colour, alpha=1.0 if point.told else _PALE)
                left += value
            text = words.milliseconds(point.figures.latency.mean_ns) if point.told else _VERDICT
            axes.annotate(text, (left, place), xytext=(5, 0), textcoords="offset points", va="center")
        names = [point.arm.replace(" (", "\n(") for point in drawn]  # a mark goes below its name
        axes.set_yticks(range(len(drawn)), names)
        axes.tick_params(axis="y", labelcolor=ink.TEXT)
        axes.set_ylim(max(len(drawn), 3) - 0.5, -0.5)
        axes.grid(visible=False)
        axes.margins(x=0.16)
        axes.set_xlabel("mean latency, ms")
        first = 0 if load.scheduled else 1
        for name, colour in zip(STAGES[first:], ink.STAGES[first:], strict=True):
            axes.scatter([], [], marker="s", s=60, color=colour, label=name)
        columns = 2 if load.scheduled else 3
        axes.figure.legend(
            loc="outside upper left", ncols=columns, frameon=False, handletextpad=0.2, columnspacing=1
        )

    return ink.draw(plot, f"time-{'open' if load.scheduled else 'closed'}")


def time_stages(point: Seen) -> tuple[float, float, float, float]:
    """Lag, queue, compute and the rest of the mean latency, in milliseconds; what is not stated is rest."""
    figures = point.figures
    whole = (figures.latency.mean_ns or 0) / 1e6
    lag = (figures.lag.mean_ns or 0) / 1e6 if figures.lag else 0.0
    queue, compute = (figures.mean_queue_ns or 0) / 1e6, (figures.mean_compute_ns or 0) / 1e6
    return lag, queue, compute, max(0.0, whole - lag - queue - compute)
