"""Charts that set arms beside each other under one load: accuracy against joules, ratios, where time goes.

A sheet and a load in, a drawing out; None when there is nothing to draw. A hollow point never stands on the
line of best points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattserve_common.stats import Interval
from wattserve_loadgen import words
from wattserve_loadgen.model.ratios import Compared
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.report import ink, scene
from wattserve_loadgen.report.ink import Drawing, Look, Looks
from wattserve_loadgen.report.scene import Sheet, ShownPoint

_ROOM_ABOVE = 340  # points: labels above discs beyond it go to the side
_STAGES = {  # of a request's latency, with their colours
    "late to send": "#d98b73",
    "waiting for a batch": "#c9d6df",
    "in its batch": "#4f7f9b",
    "network, parsing, client": "#e3d9c6",
}
_ENERGIES = {  # of a request to a language model, with their colours
    "prompt": "#4f7f9b",
    "generation": "#00775a",
    "overhead (read again)": "#d98b73",
    "idle share": "#e3d9c6",
}
_RATIO_TICKS = (0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20)


def energy_bars(sheet: Sheet, load: Load) -> Drawing | None:
    """The active energy of each arm under one load, and what it saves; the band is what two equal arms differ
    by."""
    results = sheet.results
    points = [p for p in scene.shown_under(results, load) if p.told and p.figures.active_uj]
    base = next((point for point in points if point.arm == results.baseline), None)
    if base is None or len(points) < 2:
        return None
    scale, unit = words.energy_unit(max(scene.mean(point.figures.active_uj) for point in points))
    axes = ink.axes(0.7 + 0.42 * len(points))
    finest = scene.finest(results, load, scene.ACTIVE)
    if finest is not None:
        level = scene.mean(base.figures.active_uj) / scale
        axes.axvspan(level / (1 + finest), level * (1 + finest), color=ink.BAND, linewidth=0, zorder=0)
    for place, point in enumerate(points):
        look, value = sheet.looks[point.arm], scene.mean(point.figures.active_uj) / scale
        fill = ink.tint(look.colour, 0.35 if point.energy_hollow else 0.85)
        axes.barh(place, value, 0.62, color=fill, edgecolor=look.colour, linewidth=1.2, zorder=1)
        low, high = scene.bounds(point.figures.active_uj, scale)
        axes.plot([low, high], [place, place], color=ink.TEXT, linewidth=1.4, zorder=2)
        style = {"va": "center", "color": look.text_colour, "fontweight": "bold"}
        at, text = max(value, high), f"{words.significant(value)} {unit}{_saving(sheet, point)}"
        ink.write(axes, text, (at, place), (8, 0), **style)
    ink.name_rows(axes, [point.arm.replace(" (", "\n(") for point in points])
    axes.set(xlabel=f"{unit} per request (active)", ylim=(len(points) - 0.5, -0.5))
    axes.margins(x=0.3)
    axes.set_xlim(left=0)
    return Drawing(axes)


def _saving(sheet: Sheet, point: ShownPoint) -> str:
    """What stands behind the figure of an arm that is not the baseline."""
    ratio = point.figures.ratios.active_energy
    if ratio is None:
        return ""
    if not scene.resolved(sheet.results, point.load, ratio, scene.ACTIVE):
        return ", no difference shown"
    return f", {words.change(ratio.mean - 1, 0)}"


@dataclass(frozen=True)
class Quality:
    """How good an arm's answers are, with the ends of its interval, all in the unit of the axis."""

    value: float
    low: float
    high: float
    lower_is_better: bool = False

    @property
    def rank(self) -> float:
        """The higher the better."""
        return -self.value if self.lower_is_better else self.value


def accuracy_against_energy(sheet: Sheet, load: Load) -> Drawing | None:
    """In percent."""
    told = sheet.results.accuracy.items()
    qualities = {arm: Quality(one.share * 100, one.low * 100, one.high * 100) for arm, one in told}
    return _quality_against_energy(sheet, load, qualities, "accuracy, %", 100.0)


def perplexity_against_energy(sheet: Sheet, load: Load) -> Drawing | None:
    """Of a language model."""
    qualities = {}
    for arm, one in sheet.results.perplexity.items():
        low, high = (math.exp(one.nats_per_token if end is None else end) for end in (one.low, one.high))
        qualities[arm] = Quality(one.perplexity, low, high, lower_is_better=True)
    return _quality_against_energy(sheet, load, qualities, "perplexity", math.inf)


def _quality_against_energy(
    sheet: Sheet, load: Load, qualities: Mapping[str, Quality], label: str, most: float
) -> Drawing | None:
    """One disc per arm under one load, its area growing with p95 latency, and the line of the best."""
    looks = sheet.looks
    points = scene.shown_under(sheet.results, load)
    drawn = [point for point in points if point.energy.active_uj and point.arm in qualities]
    if not drawn:
        return None
    scale, unit = words.energy_unit(max(scene.mean(point.energy.active_uj) for point in drawn))
    areas = _disc_areas(drawn)
    right = max(scene.bounds(point.energy.active_uj, scale)[1] for point in drawn) * 1.12
    low = min(qualities[point.arm].low for point in drawn)
    high = max(qualities[point.arm].high for point in drawn)
    room = max(0.005 * high, (high - low) * 0.14)

    def place(point: ShownPoint) -> tuple[float, float]:
        return scene.mean(point.energy.active_uj) / scale, qualities[point.arm].value

    axes = ink.axes()
    axes.set(xlim=(0, right), ylim=(max(0.0, low - room), min(most, high + room)))
    best = pareto_line(drawn, qualities)
    if len(best) > 1:
        style = {"color": ink.FAINT, "linewidth": 1.1, "linestyle": ":", "zorder": 1}
        axes.step(*zip(*map(place, best), strict=True), where="post", **style)
    for point in sorted(drawn, key=lambda point: -areas[point.arm]):  # the smallest disc on top
        look, quality, (x, y) = looks[point.arm], qualities[point.arm], place(point)
        line = {"color": look.colour, "linewidth": 1.3, "alpha": 0.7, "zorder": 2, "clip_on": False}
        axes.plot([x, x], [quality.low, quality.high], **line)
        axes.plot(scene.bounds(point.energy.active_uj, scale), [y, y], **line)
        fill = ink.PAPER if point.energy_hollow else ink.tint(look.colour, 0.75)
        ink.mark(axes, x, y, look, s=areas[point.arm], marker="o", color=fill, linewidths=1.8)
    axes.set(xlabel=f"{unit} per request (active)", ylabel=label)
    widths = [_label_width(point) for point in drawn]
    if sum(widths) <= _ROOM_ABOVE:
        tops = [(place(point)[0], qualities[point.arm].high) for point in drawn]
        texts = [(*_name_and_detail(point), looks[point.arm].text_colour) for point in drawn]
        ink.label_above(axes, tops, texts, max(widths))
    else:
        ends = [(right, place(point)[1], point.arm, looks[point.arm].text_colour) for point in drawn]
        ink.label_ends(axes, ends, shift=4)
    return Drawing(axes)


def pareto_line(points: Sequence[ShownPoint], qualities: Mapping[str, Quality]) -> list[ShownPoint]:
    """By rising energy, the points that no other beats in both; never one that is drawn hollow."""
    line: list[ShownPoint] = []
    sound = [point for point in points if not point.energy_hollow]
    for point in sorted(
        sound, key=lambda point: (scene.mean(point.energy.active_uj), -qualities[point.arm].rank)
    ):
        if not line or qualities[point.arm].rank > qualities[line[-1].arm].rank:
            line.append(point)
    return line


def _disc_areas(points: Sequence[ShownPoint]) -> dict[str, float]:
    """Marker areas in points², by arm; all the same unless every point has a p95."""
    p95 = {point.arm: point.figures.latency.p95_ns or 0 for point in points}
    if not all(p95.values()):
        return dict.fromkeys(p95, 120.0)
    return {arm: 50 + 350 * value / max(p95.values()) for arm, value in p95.items()}


def _name_and_detail(point: ShownPoint) -> tuple[str, str]:
    """A mark such as `(proxy)` goes below the name, where there is room for it."""
    name, has_mark, mark = point.arm.partition(" (")
    details = [f"({mark}"] if has_mark else []
    p95 = point.figures.latency.p95_ns
    details += [f"p95 {words.milliseconds(p95)}"] if p95 and point.told else []
    details += [] if point.told else ["verdict"]
    return name, " ".join(details)


def _label_width(point: ShownPoint) -> float:
    """Of a label above its disc, in points, with the space beside it."""
    name, detail = _name_and_detail(point)
    return max(66.0, 6.6 * len(name), 5.2 * len(detail)) + 4


def paired_ratios(sheet: Sheet, load: Load) -> Drawing | None:
    """Ratios to the baseline under one load; the band is what two equal arms differ by.

    Below them stand the differences in accuracy, of the arms that have one.
    """
    looks, results = sheet.looks, sheet.results
    rivals = [point for point in scene.shown_under(results, load) if point.arm != results.baseline]
    twin, accuracy = scene.twin_under(results, load), results.accuracy
    metrics = [metric for metric in scene.METRICS if any(metric.of(rival.figures.ratios) for rival in rivals)]
    if not metrics:
        return None
    compared = [
        (rival, difference)
        for rival in rivals
        if rival.arm in accuracy
        and (difference := scene.accuracy_difference(accuracy[rival.arm])) is not None
    ]
    twin_accuracy = accuracy.get(scene.twin_of_baseline(results) or "")
    band = None if twin_accuracy is None else scene.accuracy_difference(twin_accuracy)

    rows = len(metrics) * len(rivals) + 1.0
    heights = [rows, len(compared) + 1.0] if compared else [rows]
    panels = ink.panels(heights, max(2.9, 1.0 + 0.2 * sum(heights) + (0.6 if compared else 0)))
    _ratio_rows(panels[0], metrics, rivals, twin, looks)
    ink.legend(panels[0], {rival.arm: looks[rival.arm] for rival in rivals}, marker="")
    if compared:
        _accuracy_rows(panels[1], compared, band, looks)
    return Drawing(panels[0])


def _ratio_rows(
    axes: Any,
    metrics: Sequence[Compared],
    rivals: Sequence[ShownPoint],
    twin: ShownPoint | None,
    looks: Looks,
) -> None:
    edges = [1.0]
    for place, metric in enumerate(metrics):
        if twin is not None:
            edges += _band(axes, metric.of(twin.figures.ratios), place, 0.44)
        for step, rival in enumerate(rivals, start=1):
            ratio = metric.of(rival.figures.ratios)
            if ratio is None:
                continue
            y = place + step / (len(rivals) + 1) - 0.5
            hollow = rival.energy_hollow if metric.of_energy else rival.hollow
            text = f"{words.times(ratio)}  {words.bounds(ratio)}" if rival.told else "verdict"
            _interval_row(axes, ratio, y, text, looks[rival.arm], hollow)
            edges += [edge for edge in (ratio.mean, ratio.low, ratio.high) if edge]
    low, high = min(edges) / 1.04, max(edges) * 1.04
    axes.set(xscale="log", xlim=(low, high), ylim=(len(metrics) - 0.5, -0.5))
    ink.fixed_ticks(axes.xaxis, _ratio_ticks(low, high), "{x:g}×")
    axes.axvline(1, color=ink.FAINT, linewidth=0.9, zorder=1)
    ink.name_rows(axes, [f"{metric.name} {metric.better}" for metric in metrics])
    axes.set_xlabel("times the baseline (log scale)")


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Ticks that do not crowd: 1 first, the others where there is room."""
    ticks: list[float] = []
    for tick in sorted(_RATIO_TICKS, key=lambda tick: abs(math.log(tick))):
        crowds = any(abs(math.log(tick / other)) <= 0.135 * math.log(high / low) for other in ticks)
        if low <= tick <= high and not crowds:
            ticks.append(tick)
    return sorted(ticks)


def _accuracy_rows(
    axes: Any, compared: Sequence[tuple[ShownPoint, Interval]], band: Interval | None, looks: Looks
) -> None:
    rows = len(compared)
    _band(axes, band, 0, 0.44 * rows)
    for place, (rival, difference) in enumerate(compared, start=1):
        mean, low, high = (
            words.signed(edge, 1) for edge in (difference.mean, difference.low, difference.high)
        )
        y = place / (rows + 1) * rows - rows / 2
        _interval_row(axes, difference, y, f"{mean}  {low} to {high}", looks[rival.arm], hollow=False)
    axes.axvline(0, color=ink.FAINT, linewidth=0.9, zorder=1)
    ink.name_rows(axes, ["accuracy ↑"])
    axes.set(xlabel="percentage points more than the baseline", ylim=(rows / 2, -rows / 2))
    axes.margins(x=0.08)


def _band(axes: Any, band: Interval | None, place: float, half: float) -> list[float]:
    """Its edges on the axis."""
    if band is None:
        return []
    edges = [edge for edge in (band.low, band.mean, band.high) if edge is not None]
    low, high = min(edges), max(edges)
    axes.fill_between([low, high], place - half, place + half, color=ink.BAND, linewidth=0, zorder=0)
    return [low, high]


def _interval_row(axes: Any, interval: Interval, y: float, text: str, look: Look, hollow: bool) -> None:
    """A mark with its interval, and what it says to the right of the axes."""
    if interval.low is not None and interval.high is not None:
        axes.plot([interval.low, interval.high], [y, y], color=look.colour, linewidth=1.5, zorder=2)
    ink.mark(axes, interval.mean, y, look, hollow, s=36)
    style = {"va": "center", "fontsize": 8, "color": look.text_colour}
    ink.write(axes, text, (1, y), (6, 0), xycoords=("axes fraction", "data"), **style)


def where_time_goes(sheet: Sheet, load: Load) -> Drawing | None:
    """Mean latency of each arm, split into lag, queue, compute and the rest."""
    points = scene.shown_under(sheet.results, load)
    drawn = [point for point in points if point.figures.latency.mean_ns]
    if not drawn:
        return None

    rows = [
        _PartedBar(
            point.arm,
            time_stages(point),
            pale=not point.told,
            text=words.milliseconds(point.figures.latency.mean_ns) if point.told else "verdict",
        )
        for point in drawn
    ]
    named = list(_STAGES)[0 if load.scheduled else 1 :]
    return _parted_bars(rows, _STAGES, named, "mean latency, ms")


def where_energy_goes(sheet: Sheet, load: Load) -> Drawing | None:
    """A request's energy for each arm, split into prompt, answer, overhead and idle. Of a language model."""
    points = scene.shown_under(sheet.results, load)
    drawn = [(point, parts) for point in points if (parts := energy_parts(point)) and sum(parts) > 0]
    if not drawn:
        return None
    scale, unit = words.energy_unit(max(sum(parts) for _, parts in drawn))
    rows = []
    for point, parts in drawn:
        told = point.told and point.figures.active_uj is not None
        text = f"{words.significant(sum(parts) / scale)} {unit}" if told else "verdict"
        scaled = [part / scale for part in parts]
        rows.append(_PartedBar(point.arm, scaled, pale=point.energy_hollow, text=text))
    return _parted_bars(rows, _ENERGIES, list(_ENERGIES), f"{unit} per request")


@dataclass(frozen=True)
class _PartedBar:
    """An arm's bar, and what stands behind it."""

    arm: str
    parts: Sequence[float]
    pale: bool
    text: str


def _parted_bars(
    rows: Sequence[_PartedBar], colours: Mapping[str, str], named: Sequence[str], label: str
) -> Drawing:
    """`colours`: of the parts, by their names, of which the legend has those that are `named`."""
    axes = ink.axes()
    for place, row in enumerate(rows):
        left = 0.0
        for value, colour in zip(row.parts, colours.values(), strict=True):
            axes.barh(place, value, 0.58, left=left, color=colour, alpha=ink.PALE if row.pale else 1.0)
            left += value
        ink.write(axes, row.text, (left, place), (5, 0), va="center")
    ink.name_rows(axes, [row.arm.replace(" (", "\n(") for row in rows])  # a mark goes below its name
    axes.set(xlabel=label, ylim=(max(len(rows), 3) - 0.5, -0.5))
    axes.margins(x=0.16)
    for name in named:
        axes.scatter([], [], marker="s", s=60, color=colours[name], label=name)
    ink.legend(axes)
    return Drawing(axes)


def energy_parts(point: ShownPoint) -> tuple[float, float, float, float] | None:
    """Of prompt, answer, overhead and idle share in microjoules; None where they are not known."""
    figures, generated = point.energy, point.energy.generated
    if generated is None or generated.prompt_uj is None or generated.output_uj is None:
        return None
    parts = (generated.prompt_uj, generated.output_uj, generated.overhead_uj, figures.idle_uj)
    prompt, output, overhead, idle = map(scene.mean, parts)
    return prompt, output, overhead, idle


def time_stages(point: ShownPoint) -> tuple[float, float, float, float]:
    """Lag, queue, compute and the rest of the mean latency, in milliseconds; what is not stated is rest."""
    figures = point.figures
    parts = (figures.lag.mean_ns if figures.lag else None, figures.mean_queue_ns, figures.mean_compute_ns)
    lag, queue, compute = ((part or 0.0) / 1e6 for part in parts)
    return lag, queue, compute, max(0.0, (figures.latency.mean_ns or 0) / 1e6 - lag - queue - compute)
