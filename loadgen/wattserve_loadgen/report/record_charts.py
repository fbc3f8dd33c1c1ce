"""Charts of what was recorded: single requests under one load, the meters' readings, the cells in run order.

A sheet in, a drawing out; None when there is nothing to draw. What has a verdict is pale or hollow. The
charts over time show the baseline's twin too, in grey: it took its time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator

from wattserve_common.stats import SAMPLE_FLOORS
from wattserve_loadgen import words
from wattserve_loadgen.model.cells import CellResult
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.ink import Drawing, Look, Looks
from wattserve_loadgen.report.scene import Numbers, Sheet, shown_under, untold_under
from wattserve_loadgen.results.readings import MeterReadings

_TAIL_STARTS_AT = 10.0  # percent
_TAIL_TICKS = (10, 50, 75, 90, 95, 99, 99.9)
_MOST_BARS = 40
_BINS, _FEWEST_IN_BIN = 8, 12
_MOST_STEPS = 900
_ZOOM_READINGS = 240  # more ticks than this run together
_MARGIN = 0.15  # of the window, beside it in the zoom


def latency_distribution(sheet: Sheet, load: Load) -> Drawing | None:
    """Latency by percentile, on an axis that gives the tail room; each line ends where its sample does.

    An open loop has a second, dashed line: the service time, which knows nothing of requests that were late.
    """
    untold = untold_under(sheet.results, load)
    drawn = {
        name: columns
        for name, columns in sheet.columns(load).items()
        if len(columns.latency_ns) >= SAMPLE_FLOORS[90.0]
    }
    if not drawn:
        return None
    times: dict[str, tuple[Any, float]] = {"response time": ("-", 1.8)}
    if load.scheduled:
        times["service time"] = ((0, (3, 2)), 1.3)

    axes = ink.axes()
    axes.set_xscale("log")
    ends, heights = [], []
    for name, columns in drawn.items():
        look, alpha = sheet.looks[name], ink.PALE if name in untold else 1.0
        for values, (dashes, width) in zip(
            (columns.latency_ns, columns.service_ns), times.values(), strict=False
        ):
            stretched, curve = _tail(np.sort(values))
            style = {"color": look.colour, "linestyle": dashes, "linewidth": width}
            axes.plot(stretched, curve, alpha=alpha, clip_on=False, **style)
            heights += [float(curve[0]), float(curve[-1])]
            if dashes == "-":
                ends.append((float(stretched[-1]), float(curve[-1]), name, look.text_colour))
    right = max(end[0] for end in ends)
    ticks = [percent for percent in _TAIL_TICKS if 100 / (100 - percent) <= right * 1.001]
    axes.set_xticks([100 / (100 - percent) for percent in ticks], [f"{percent:g}" for percent in ticks])
    axes.minorticks_off()
    axes.set_xlim(100 / (100 - _TAIL_STARTS_AT), right)
    ink.log_axis(axes.yaxis, min(heights), max(heights))
    axes.set_xlabel("percentile (the axis stretches towards the tail)")
    axes.set_ylabel("latency, ms (log scale)")
    ink.label_ends(axes, ends, shift=5)
    if load.scheduled:
        for label, (dashes, width) in times.items():
            axes.plot([], [], color=ink.FAINT, linewidth=width, linestyle=dashes, label=label)
        ink.legend(axes)
    return Drawing(axes)


def _tail(ordered: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """(1 / (1 - p), latency in ms) from p = 10 % to the last percentile that the sample can carry."""
    last = max(percent for percent, floor in SAMPLE_FLOORS.items() if len(ordered) >= floor)
    stretched = np.geomspace(100 / (100 - _TAIL_STARTS_AT), 100 / (100 - last), 160)
    ranks = np.clip(np.ceil((1 - 1 / stretched) * len(ordered)).astype(int) - 1, 0, len(ordered) - 1)
    return stretched, np.maximum(ordered[ranks], 1) / 1e6


def batch_sizes(sheet: Sheet, load: Load) -> Drawing | None:
    """For each arm a row of bars: the share of batches of each size, and a line at their mean."""
    untold = untold_under(sheet.results, load)
    shares_of = {name: batch_shares(columns.batch_size) for name, columns in sheet.columns(load).items()}
    drawn = {name: shares for name, shares in shares_of.items() if len(shares)}
    if not drawn:
        return None
    largest = max(map(len, drawn.values())) - 1
    step = -(-largest // _MOST_BARS)  # sizes in one bar

    panels = ink.panels([1] * len(drawn), max(2.6, 1.1 + 0.85 * len(drawn)))
    for axes, (name, shares) in zip(panels, drawn.items(), strict=True):
        look = sheet.looks[name]
        edges = np.arange(1, largest + 1, step)
        heights = np.add.reduceat(np.pad(shares, (0, largest + 1 - len(shares))), edges) * 100
        bar = {"color": ink.tint(look.colour, 0.12 if name in untold else 0.55), "edgecolor": look.colour}
        axes.bar(edges + (step - 1) / 2, heights, 0.82 * step, linewidth=0.8, **bar)
        mean = float(np.arange(len(shares)) @ shares)
        axes.axvline(mean, color=look.text_colour, linewidth=1.2, linestyle=":")
        text = f"{name}: {'verdict' if name in untold else f'mean {words.significant(mean)}'}"
        style = {"color": look.text_colour, "fontweight": "bold", "ha": "right", "va": "top"}
        ink.write(axes, text, (1.0, 1.0), xycoords="axes fraction", **style)
        axes.set(xlim=(0.4, largest + 0.6), ylim=(0, float(heights.max()) * 1.25))
        axes.tick_params(labelbottom=axes is panels[-1])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.set_major_locator(MaxNLocator(3))
    panels[len(panels) // 2].set_ylabel("share of batches, %")
    panels[-1].set_xlabel(f"batch size, {sheet.unit}")
    return Drawing(panels[0])


def batch_shares(sizes: Numbers) -> Numbers:
    """The share of batches by size, index 0 unused; empty without a known size.

    A batch of eight is seen by eight requests, so each request stands for 1/size of a batch.
    """
    whole = sizes[sizes > 0].astype(np.int64)
    batches: Numbers = np.bincount(whole, weights=1 / whole).astype(np.float64)
    return batches / float(batches.sum())


_Bin = tuple[float, float, float, float]  # mean length, mean energy, its quartiles


def energy_against_length(sheet: Sheet, load: Load) -> Drawing | None:
    """Mean energy of requests of similar length, with the middle half of them as a band.

    Above by the tokens that were sent, below by the positions that were computed, padding included; of a
    language model, what the prompt cost by its tokens, and what the answer did by its own.
    """
    hollow = {point.arm for point in shown_under(sheet.results, load) if point.energy_hollow}
    rows: dict[str, dict[str, list[_Bin]]] = {}
    for name, columns in sheet.columns(load).items():
        of_prediction = (
            ("tokens in the request", columns.tokens, columns.energy_uj),
            ("computed positions, padding included", columns.padded_tokens, columns.energy_uj),
        )
        of_generation = (
            ("tokens of the prompt, and what reading it cost", columns.prompt_tokens, columns.prompt_uj),
            ("tokens of the answer, and what writing it cost", columns.output_tokens, columns.output_uj),
        )
        for label, lengths, energy in of_generation if sheet.results.generates else of_prediction:
            if bins := _binned(energy, lengths):
                rows.setdefault(label, {})[name] = bins
    if not rows:
        return None
    ends = [bins for row in rows.values() for bins in row.values()]
    scale, unit = words.energy_unit(max(upper for bins in ends for *_, upper in bins))
    right = max(bins[-1][0] for bins in ends)

    panels = ink.panels([1] * len(rows), 2.9 * len(rows) + 0.4)
    for axes, (label, row) in zip(panels, rows.items(), strict=True):
        for name, bins in row.items():
            _draw_bins(axes, bins, scale, sheet.looks[name], name in hollow)
        axes.set(xlim=(0, right), xlabel=label)
        axes.set(ylim=(0, None), ylabel=f"{unit} per request (active)")
        labels = [(name, sheet.looks[name].text_colour) for name in row]
        places = [(bins[-1][0], bins[-1][1] / scale) for bins in row.values()]
        ink.label_ends(axes, [(*place, *label) for place, label in zip(places, labels, strict=True)])
    return Drawing(panels[0])


def _draw_bins(axes: Any, bins: Sequence[_Bin], scale: float, look: Look, hollow: bool) -> None:
    lengths, means, low, high = np.array(bins).T
    axes.fill_between(lengths, low / scale, high / scale, color=ink.tint(look.colour, 0.14), linewidth=0)
    style = {"color": look.colour, "markerfacecolor": ink.fill_of(look, hollow), "markersize": 5}
    axes.plot(lengths, means / scale, look.marker + "-", **style)


def _binned(energy: Numbers, lengths: Numbers) -> list[_Bin]:
    """Groups of equal size by rising length; [] when there are too few requests."""
    is_known = ~(np.isnan(energy) | np.isnan(lengths))
    lengths, energy = lengths[is_known], energy[is_known]
    bins = min(_BINS, len(lengths) // _FEWEST_IN_BIN)
    if bins < 2:
        return []
    groups = np.array_split(np.argsort(lengths, kind="stable"), bins)
    return [
        (float(lengths[group].mean()), float(energy[group].mean()), *np.percentile(energy[group], (25, 75)))
        for group in groups
    ]


def power_steps(
    meter: MeterReadings, most: int, start: float = -math.inf, end: float = math.inf
) -> tuple[Numbers, Numbers]:
    """(edges in seconds, mean watts between them): at most `most` steps, each from reading to reading.

    A counter that steps back has no power there: NaN.
    """
    kept = (meter.seconds >= start) & (meter.seconds <= end)
    seconds, joules = meter.seconds[kept], meter.joules[kept]
    if len(seconds) < 2:
        return np.zeros(0), np.zeros(0)
    wanted = np.linspace(seconds[0], seconds[-1], most + 1)
    places = np.unique(np.clip(np.searchsorted(seconds, wanted), 0, len(seconds) - 1))
    watts = np.diff(joules[places]) / np.diff(seconds[places])
    return seconds[places], np.where(watts < 0, np.nan, watts)


def power_over_time(sheet: Sheet, meter: MeterReadings) -> Drawing | None:
    """The whole sweep, and below it one window with a tick for each reading. Windows are shaded by arm."""
    results, looks = sheet.results, sheet.looks
    own = {arm.name for arm in results.plan.arms if arm.target == meter.target}
    cells = [cell for cell in results.cells if cell.arm in own]
    edges, watts = power_steps(meter, _MOST_STEPS)
    if not np.isfinite(watts).any():
        return None
    windows = [
        (cell, cell.window_start_seconds, cell.window_start_seconds + cell.window_seconds)
        for cell in cells
        if cell.window_start_seconds is not None and cell.window_seconds > 0
    ]
    main = [window for window in windows if looks[window[0].arm] is not ink.TWIN_LOOK] or windows
    zoom = _zoom(meter, *main[len(main) // 2][1:]) if main else None

    whole, *close = ink.panels([1.15, 1], 4.9) if zoom else ink.panels([1], 2.9)
    _draw_power(whole, meter, edges, watts, windows, looks)
    whole.set(xlim=(float(edges[0]), float(edges[-1])), xlabel="seconds since the sweep's start")
    ink.legend(whole, ink.looks_of((cell.arm for cell in cells), looks))
    if zoom:
        ticks, near = power_steps(meter, _ZOOM_READINGS, *zoom)
        top = _draw_power(close[0], meter, ticks, near, windows, looks)
        close[0].vlines(ticks, 0, top * 0.06, color=ink.FAINT, linewidth=0.6, zorder=4)
        close[0].set(xlim=zoom, xlabel="one window close up; each tick is a reading")
    return Drawing(whole)


def _zoom(meter: MeterReadings, start: float, end: float) -> tuple[float, float] | None:
    """From when to when to look closely: a window and its edges, or its beginning with many readings."""
    margin = (end - start) * _MARGIN
    start, end = start - margin, end + margin
    within = meter.seconds[(meter.seconds >= start) & (meter.seconds <= end)]
    if len(within) < 3:
        return None
    return start, float(within[_ZOOM_READINGS - 1]) if len(within) > _ZOOM_READINGS else end


def _draw_power(
    axes: Any,
    meter: MeterReadings,
    edges: Numbers,
    watts: Numbers,
    windows: Sequence[tuple[CellResult, float, float]],
    looks: Looks,
) -> float:
    """Steps of power over the windows within `edges`, with the idle power; returns the height of the axes."""
    top = float(np.nanmax(watts)) * 1.1 or 1.0
    axes.stairs(watts, edges, color=ink.TEXT, linewidth=0.9, zorder=3)
    for cell, start, end in windows:
        if end > edges[0] and start < edges[-1]:
            axes.axvspan(start, end, color=ink.tint(looks[cell.arm].colour, 0.22), linewidth=0, zorder=0)
    if meter.idle_watts is not None:
        axes.axhline(meter.idle_watts, color=ink.FAINT, linewidth=0.9, linestyle="--", zorder=2)
        style = {"xycoords": ("axes fraction", "data"), "ha": "right", "color": ink.FAINT, "fontsize": 8.5}
        ink.write(axes, "idle", (1, meter.idle_watts), (-3, 3), **style)
    axes.set(ylim=(0, top), ylabel="watts")
    axes.xaxis.set_major_formatter(ink.PLAIN)
    return top


def run_order(sheet: Sheet, _: None = None) -> Drawing | None:
    """Each cell's rate against the mean of its point, in run order; below, what the client's machine said."""
    looks = sheet.looks
    ordered = sorted(sheet.results.cells, key=lambda cell: cell.position)
    points: dict[tuple[str, str], list[float]] = {}
    for cell in ordered:
        if cell.rate_per_second:
            points.setdefault((cell.arm, cell.load), []).append(cell.rate_per_second)
    means = [float(np.mean(points.get((cell.arm, cell.load), math.nan))) for cell in ordered]
    rates = _numbers([cell.rate_per_second or None for cell in ordered]) / means
    if not np.isfinite(rates).any():
        return None
    extras = {
        label: values
        for label, name in (("°C", "temperature_celsius"), ("CPU MHz", "cpu_mhz"))
        if np.isfinite(values := _numbers([getattr(cell.conditions, name, None) for cell in ordered])).any()
    }

    panels = ink.panels([1.9, *[1.0] * len(extras)], 2.8 + 0.95 * len(extras))
    strip = panels[0]
    for place, (cell, rate) in enumerate(zip(ordered, rates, strict=True)):
        if math.isfinite(rate):
            marker, colour = "X" if cell.stopped else "s", looks[cell.arm].colour
            strip.scatter([place], [rate * 100], s=26, marker=marker, color=colour, zorder=3)
    strip.axhline(100, color=ink.FAINT, linewidth=0.9, zorder=1)
    far = max(2.0, float(np.nanmax(abs(rates - 1))) * 100) * 1.15
    strip.set(ylim=(100 - far, 100 + far), ylabel="% of its\npoint's mean")
    ink.legend(strip, ink.looks_of((cell.arm for cell in ordered), looks))
    for axes, (label, values) in zip(panels[1:], extras.items(), strict=True):
        axes.plot(range(len(ordered)), values, color=ink.TEXT, linewidth=1.1, marker=".", markersize=4)
        axes.set_ylabel(label)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(ink.PLAIN)
    for axes in panels:
        axes.set_xlim(-0.7, len(ordered) - 0.3)
        axes.tick_params(labelbottom=False, bottom=False)
        for place, (before, after) in enumerate(pairwise(ordered)):
            if before.block != after.block:
                axes.axvline(place + 0.5, color=ink.FAINT, linewidth=0.7, linestyle=":")
    _name_blocks(panels[-1], ordered)
    return Drawing(panels[0])


def _name_blocks(axes: Any, ordered: Sequence[CellResult]) -> None:
    blocks = np.array([cell.block for cell in ordered])
    names = list(dict.fromkeys(blocks.tolist()))[:: -(-len(set(blocks.tolist())) // 12)]
    axes.set_xticks([float(np.flatnonzero(blocks == name).mean()) for name in names], map(str, names))
    axes.tick_params(labelbottom=True)
    axes.set_xlabel("cells in run order, by block")


def _numbers(values: Sequence[float | None]) -> Numbers:
    """NaN where it is not known."""
    return np.array([math.nan if value is None else value for value in values])
