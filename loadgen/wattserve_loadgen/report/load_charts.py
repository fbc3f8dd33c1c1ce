"""Charts over loads: latency, goodput, energy, batching, and the rates that a search tried.

A sheet in, a drawing out; None when there is nothing to draw. A point with a verdict is drawn hollow. No line
joins closed and open loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from matplotlib.ticker import MaxNLocator

from wattserve_loadgen import words
from wattserve_loadgen.model.results import OUTCOMES
from wattserve_loadgen.plan.load import CLOSED, OFFLINE, Load
from wattserve_loadgen.report import ink
from wattserve_loadgen.report.ink import Drawing, Look, Looks
from wattserve_loadgen.report.scene import Sheet, ShownPoint, bounds, common_loads, mean

_FEWEST_FOR_A_KNEE = 3
_GAP = 0.7  # on an axis, between loads that no line joins


def timed(points: Sequence[ShownPoint]) -> list[ShownPoint]:
    """Those whose latency says something: everything at once measures throughput alone."""
    return [point for point in points if point.load.shape != OFFLINE]


def latency_against_rate(sheet: Sheet, percent: int) -> Drawing | None:
    """A line per arm and kind of load; behind a point stands its interval over blocks, or its bound."""
    looks = sheet.looks
    drawn = [point for point in timed(sheet.points) if _latency(point, percent) and _rate(point)]
    if not drawn:
        return None

    def place(point: ShownPoint) -> tuple[float, float]:
        return _rate(point), _latency(point, percent)

    axes = ink.axes()
    axes.set_xlim(0, max(map(_rate, drawn)) * 1.04)
    reaches = [(point, *_reach(point, percent)) for point in drawn]
    heights = [_latency(point, percent) for point in drawn]
    heights += [edge for _, *edges in reaches for edge in edges if edge > 0]
    ink.log_axis(axes.yaxis, min(heights), max(heights))
    for point, low, high in reaches:
        if high > low > 0:
            style = {"color": looks[point.arm].colour, "linewidth": 1.3, "zorder": 1}
            axes.plot([_rate(point)] * 2, [low, high], alpha=0.45, **style)
            if percent == 99:
                axes.scatter([_rate(point)], [high], s=40, marker="_", **style)
    for line in in_lines(drawn):
        knee = knee_of(line)
        if knee is not None:
            ring = {"facecolors": "none", "edgecolors": looks[knee.arm].text_colour, "linewidths": 1.1}
            axes.scatter(*place(knee), s=330, zorder=2.5, clip_on=False, **ring)
    axes.set(xlabel="answers per second", ylabel=f"p{percent} latency, ms (log scale)")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(ink.PLAIN)
    if len({point.load.scheduled for point in drawn}) == 2:
        axes.scatter([], [], marker="o", s=70, color=ink.FAINT, label="closed loop, its concurrency")
        axes.scatter([], [], marker="s", s=42, color=ink.FAINT, label="open loop")
        ink.legend(axes)
    _draw_lines(axes, drawn, place, looks, _mark_load, shift=13)
    return Drawing(axes)


def in_lines(points: Sequence[ShownPoint]) -> list[list[ShownPoint]]:
    """The points that a line may join, each group by rising load; groups in the order given."""
    lines: dict[tuple[str, str], list[ShownPoint]] = {}
    for point in points:
        lines.setdefault((point.arm, point.load.line), []).append(point)
    return [sorted(line, key=lambda point: point.load.order) for line in lines.values()]


def knee_of(line: Sequence[ShownPoint]) -> ShownPoint | None:
    """The point with the most answers per second for each second of latency (Kleinrock's power, 1979).

    None where that is an end of the line, or a line is too short or too doubtful to have one.
    """
    sound = [point for point in line if not point.hollow and point.figures.latency.mean_ns]
    if len(sound) < _FEWEST_FOR_A_KNEE:
        return None
    best = max(sound, key=lambda point: _rate(point) / (point.figures.latency.mean_ns or 1))
    return None if best in (sound[0], sound[-1]) else best


def _rate(point: ShownPoint) -> float:
    return mean(point.figures.rate_per_second)


def _latency(point: ShownPoint, percent: int) -> float:
    """The pooled percentile in milliseconds; 0 when the sample does not carry it."""
    return (getattr(point.figures.latency, f"p{percent}_ns") or 0) / 1e6


def _reach(point: ShownPoint, percent: int) -> tuple[float, float]:
    """From where to where a percentile may lie, in milliseconds: over blocks; of p99, up to its bound."""
    if percent == 99:
        bound = point.figures.latency.p99_bound_ns
        return (_latency(point, percent), bound / 1e6) if bound else (0.0, 0.0)
    return bounds(point.figures.p50_blocks_ns if percent == 50 else point.figures.p95_blocks_ns, 1e6)


def _offered(point: ShownPoint) -> float:
    return point.point.offered_per_second or 0.0


def goodput_against_offered(sheet: Sheet, _: None = None) -> Drawing | None:
    """Answers within the objective against what was offered; on the diagonal every answer was."""
    drawn = [point for point in sheet.points if _offered(point) and point.figures.goodput_share is not None]
    if not drawn:
        return None

    def place(point: ShownPoint) -> tuple[float, float]:
        return _offered(point), _offered(point) * (point.figures.goodput_share or 0.0)

    axes = ink.axes()
    right = max(map(_offered, drawn)) * 1.06
    axes.plot([0, right], [0, right], color=ink.FAINT, linewidth=0.9, linestyle=":", zorder=1)
    axes.set(xlim=(0, right), xlabel="offered requests per second")
    axes.set(ylim=(0, right), ylabel="answers per second within the objective")
    _draw_lines(axes, drawn, place, sheet.looks, _mark_load)
    return Drawing(axes)


def mean_batch_over_loads(sheet: Sheet, _: None = None) -> Drawing | None:
    return _lines_over_loads(
        sheet, f"mean batch size, {sheet.unit}", lambda point: point.figures.mean_batch_size
    )


def token_energy_over_loads(sheet: Sheet, _: None = None) -> Drawing | None:
    """Of a language model."""

    def millijoules(point: ShownPoint) -> float | None:
        generated = point.energy.generated
        if generated is None or generated.active_uj_per_output_token is None:
            return None
        return generated.active_uj_per_output_token.mean / 1e3

    return _lines_over_loads(sheet, "mJ per output token (active)", millijoules)


def tokens_against_waiting(sheet: Sheet, _: None = None) -> Drawing | None:
    """Tokens of all requests per second against how long one waits for its next: a line per arm and kind of
    load. Of a language model."""

    def place(point: ShownPoint) -> tuple[float, float]:
        generated = point.figures.generated
        if generated is None or generated.itl.p50_ns is None:
            return 0.0, 0.0
        return generated.itl.p50_ns / 1e6, mean(generated.output_tokens_per_second)

    drawn = [point for point in sheet.points if all(place(point))]
    if not drawn:
        return None
    axes = ink.axes()
    right, top = (max(place(point)[axis] for point in drawn) for axis in (0, 1))
    axes.set(xlim=(0, right * 1.06), xlabel="median time from token to token, ms")
    axes.set(ylim=(0, top * 1.12), ylabel="output tokens per second")
    axes.xaxis.set_major_formatter(ink.PLAIN)
    _draw_lines(axes, drawn, place, sheet.looks, _mark_load, shift=13)
    return Drawing(axes)


def padding_over_loads(sheet: Sheet, _: None = None) -> Drawing | None:
    def percent(point: ShownPoint) -> float | None:
        share = point.figures.padding_share
        return None if share is None else share * 100

    return _lines_over_loads(sheet, "padding, % of computed tokens", percent)


def _lines_over_loads(
    sheet: Sheet, label: str, figure: Callable[[ShownPoint], float | None]
) -> Drawing | None:
    """`figure(point)` against load, a line per arm; points where it is None are left out."""
    loads = common_loads(sheet.results)
    drawn = [point for point in sheet.points if point.load in loads and figure(point) is not None]
    if not drawn:
        return None

    axes = ink.axes()
    across = _load_axis(axes, loads, drawn)
    axes.set_xlim(-0.15, max(across.values()) + 0.15)
    axes.set(ylim=(0, max(figure(point) or 0.0 for point in drawn) * 1.12 or 1), ylabel=label)

    def place(point: ShownPoint) -> tuple[float, float]:
        return across[point.load], figure(point) or 0.0

    _draw_lines(axes, drawn, place, sheet.looks, _mark_arm)
    return Drawing(axes)


_Mark = Callable[[Any, float, float, ShownPoint, Look], None]


def _draw_lines(
    axes: Any,
    points: Sequence[ShownPoint],
    place: Callable[[ShownPoint], tuple[float, float]],
    looks: Looks,
    mark: _Mark,
    shift: float = 8,
) -> None:
    """Lines with a mark at each point, and the name of each arm where its lines reach furthest.

    Call it after the axes have their limits. A closed loop's line is solid, an open one's dashed.
    """
    ends: dict[str, ink.End] = {}
    for line in in_lines(points):
        arm, look = line[0].arm, looks[line[0].arm]
        if len(line) > 1:
            dashes = "-" if line[0].load.shape == CLOSED else (0, (5, 2))
            style = {"color": look.colour, "linewidth": 1.6, "linestyle": dashes, "zorder": 2}
            axes.plot(*zip(*map(place, line), strict=True), clip_on=False, **style)
        for point in line:
            mark(axes, *place(point), point, look)
        x, y = place(line[-1])
        if arm not in ends or x >= ends[arm][0]:
            ends[arm] = (x, y, arm, look.text_colour)
    ink.label_ends(axes, list(ends.values()), shift)


def _mark_arm(axes: Any, x: float, y: float, point: ShownPoint, look: Look) -> None:
    ink.mark(axes, x, y, look, point.hollow, s=38)


def _mark_load(axes: Any, x: float, y: float, point: ShownPoint, look: Look) -> None:
    """A disc with the concurrency in it, or for an open loop a square."""
    if point.load.shape != CLOSED:
        marker = "s" if point.load.line != point.load.name else "^"
        ink.mark(axes, x, y, look, point.hollow, s=42, marker=marker)
        return
    ink.mark(axes, x, y, look, point.hollow, s=150, marker="o")
    text = point.load.weight
    style = {"ha": "center", "va": "center_baseline", "fontsize": 7.5 if len(text) < 3 else 5.5, "zorder": 4}
    ink.write(axes, text, (x, y), color=look.text_colour if point.hollow else ink.PAPER, **style)


def _load_axis(axes: Any, loads: Sequence[Load], drawn: Sequence[ShownPoint]) -> dict[Load, float]:
    """The places of the loads with a point on an axis of equal steps.

    What no line joins stands apart, under its name.
    """
    loads = [load for load in loads if any(point.load == load for point in drawn)]
    groups = [list(group) for _, group in groupby(loads, key=lambda load: load.short_axis)]
    places: dict[Load, float] = {}
    for number, group in enumerate(groups):
        for load in group:
            places[load] = len(places) + _GAP * number
    size = 9.5 if len(loads) <= 9 else 7.5
    axes.set_xticks(list(places.values()), [load.weight for load in loads], fontsize=size)
    if len(groups) == 1:
        axes.set_xlabel(loads[0].axis)
        return places
    for number, group in enumerate(groups):
        centre = (places[group[0]] + places[group[-1]]) / 2
        down = -20 - 11 * (number % 2)  # neighbours may be wider than their loads
        style = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "top", "fontsize": 9}
        ink.write(axes, group[0].short_axis, (centre, 0), (0, down), color=ink.FAINT, **style)
    return places


def energy_against_load(sheet: Sheet, loads: Sequence[Load]) -> Drawing | None:
    """Grouped bars: active energy per request, the idle draw on top, the meter's own count as a diamond."""
    drawn = [point for point in sheet.points if point.load in loads and point.energy.active_uj]
    if not drawn:
        return None
    bars = [mean(point.energy.active_uj) + mean(point.energy.idle_uj) for point in drawn]
    scale, unit = words.energy_unit(max(*bars, *(mean(point.energy.meter_uj) for point in drawn)))

    axes = ink.axes()
    arms = ink.looks_of((point.arm for point in drawn), sheet.looks)
    places = _load_axis(axes, loads, drawn)
    width = 0.82 / len(arms)
    for point in drawn:
        x = places[point.load] + (list(arms).index(point.arm) - (len(arms) - 1) / 2) * width
        _bar(axes, point, x, width * 0.86, scale, arms[point.arm])
    axes.set(ylabel=f"{unit} per request", ylim=(0, None))
    axes.grid(axis="x", visible=False)
    ink.legend(axes, arms)
    return Drawing(axes)


def _bar(axes: Any, point: ShownPoint, x: float, width: float, scale: float, look: Look) -> None:
    figures, hollow = point.energy, point.energy_hollow
    active, idle = mean(figures.active_uj) / scale, mean(figures.idle_uj) / scale
    edge = {"edgecolor": look.colour, "linewidth": 1.0}
    pale = ink.PAPER if hollow else ink.tint(look.colour, 0.22)
    axes.bar(x, active, width, color=ink.tint(look.colour, 0.30 if hollow else 1), **edge)
    axes.bar(x, idle, width, bottom=active, color=pale, hatch="////", **edge)
    line = {"color": ink.TEXT, "zorder": 4}
    low, high = bounds(figures.active_uj, scale)
    if high > low:
        axes.plot([x, x], [low, high], linewidth=1.0, **line)
    if figures.meter_uj is not None:
        y = figures.meter_uj.mean / scale
        axes.plot([x - width / 2, x + width / 2], [y, y], linewidth=1.1, **line)
        ink.mark(axes, x, y, look, hollow, s=26, marker="D", edgecolors=ink.TEXT, linewidths=1.1, zorder=5)


def searched_rates(sheet: Sheet, _: None = None) -> Drawing | None:
    """The rates that each search tried, and between which two of them the highest good one lies."""
    drawn = [search for search in sheet.results.searches if search.trials]
    if not drawn:
        return None

    axes = ink.axes(1.5 + 0.5 * max(2, len(drawn)))
    for place, search in enumerate(drawn):
        look = sheet.looks[search.arm]
        upper = search.undecided_per_second or search.broken_per_second
        if search.rate_per_second is not None and upper is not None:
            edges = [search.rate_per_second, upper]
            axes.plot(edges, [place, place], color=ink.tint(look.colour, 0.3), linewidth=12, zorder=1)
        for trial in search.trials:
            place_of = (trial.rate_per_second, place)
            if trial.judgement == "broken":
                axes.scatter(*place_of, marker="x", s=60, linewidths=1.6, color=look.colour, zorder=3)
            else:
                ink.mark(axes, *place_of, look, trial.judgement != "met", s=60, marker="o")
    ink.name_rows(axes, [search.arm.replace(" (", "\n(") for search in drawn])
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.set(xlabel="offered requests per second", xlim=(0, None))
    for judgement, marker in (("met", "o"), ("broken", "x")):
        axes.scatter([], [], marker=marker, s=46, color=ink.FAINT, label=OUTCOMES[judgement])
    style = {"marker": "o", "s": 46, "color": ink.PAPER, "edgecolors": ink.FAINT}
    axes.scatter([], [], label=OUTCOMES["undecided"], **style)
    ink.legend(axes)
    return Drawing(axes)
