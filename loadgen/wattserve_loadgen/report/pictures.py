"""Which charts a report shows, in which order, under which words. Every caption names the energy source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wattserve_loadgen.plan.load import CLOSED, Load
from wattserve_loadgen.report import energy_charts, load_charts, tail_charts, time_charts, trade_charts
from wattserve_loadgen.report.comparison import twin_sentence
from wattserve_loadgen.report.marks import Looks
from wattserve_loadgen.report.readings import Meter
from wattserve_loadgen.report.scene import (
    Seen,
    at,
    common_loads,
    main_loads,
    seen_points,
    time_kind,
    twin_accuracy,
    twin_of_baseline,
    twin_under,
    untold_under,
)
from wattserve_loadgen.report.sources import source_line
from wattserve_loadgen.report.text import accuracy_sentence
from wattserve_loadgen.results.schema import Results

_LATENCY = (
    "Down and to the right is better. A disc holds its concurrency, a square is an open loop, its line is"
    " dashed."
)
_KNEE = "A ring marks a line's knee: the most answers per second for each second of latency."
_BLOCKS = "A bar behind a mark is the 95 % interval over blocks."
_BOUND = "A bar goes up to the bound below which p99 lies with 99 % confidence."
_ENERGY = (
    "Full: active energy by receipts, with its 95 % interval over blocks. Hatched: the idle draw that falls"
    " to a request. A diamond: the meter's own count over the window, per answer."
)
_RATIOS = (
    "Paired block by block, with 95 % intervals; an arrow says which way is better, a hollow mark belongs to"
    " a point with a verdict."
)
_TAIL = "Each line ends at the last percentile that its sample can carry."
_GAP = (
    "The gap between the two is what a client hides that counts from sending instead of from the schedule"
    " (coordinated omission)."
)
_LENGTH = "The mean of requests of similar length; the band holds the middle half of them."
_TIME = "Mean latency, by what the client stamped and the server says; the last part is what nobody states."
_SIZES = "Each batch counts once, however many requests it held; the dotted line is the mean."
_BATCH = "Requests that run together share the fixed cost of a batch."
_PADDING = "Positions computed and thrown away, because a batch is as long as its longest row."
_POWER = (
    "Mean power between readings. Shaded: the windows that count, by variant; between them warm-up and"
    " settlement."
)
_ORDER = (
    "Every cell against the mean of its own point: what drifts with time shows as a slope. × is a cell that"
    " was cut short."
)
_GOODPUT = "On the dotted diagonal every request was answered within the objective."
_SEARCH = (
    "Each rate that was tried; the bar lies between the highest that held the objective and the lowest that"
    " did not, or could not be decided."
)


@dataclass(frozen=True)
class Picture:
    """One chart with its words. `svg` is None when there is nothing to draw; `instead` then says why."""

    title: str
    caption: str
    svg: str | None
    instead: str = ""


@dataclass(frozen=True)
class Sheet:
    """What the charts of one report are drawn from."""

    results: Results
    records: tail_charts.Records
    meters: Sequence[Meter]
    looks: Looks  # of every arm, the twin too

    @property
    def points(self) -> list[Seen]:
        return seen_points(self.results)

    @property
    def main_looks(self) -> Looks:
        """Without the twin."""
        return {arm.name: self.looks[arm.name] for arm in self.results.main_arms}

    @property
    def unit(self) -> str:
        return "images" if self.results.dataset.pixel_shape else "sequences"


def pictures(sheet: Sheet) -> list[Picture]:
    """The charts of a sweep; those with nothing to draw and nothing to say are left out."""
    if not sheet.points:
        return [picture for picture in _searches(sheet) if picture.svg]
    source = f"Energy source: {source_line(sheet.results)}."
    mains = main_loads(sheet.results)
    made: list[Iterator[Picture]] = [
        _latency(sheet),
        _energy(sheet),
        *(_trade(sheet, load) for load in mains),
        *(_forest(sheet, load) for load in mains),
        _goodput(sheet),
        _searches(sheet),
        *(_tail(sheet, load) for load in mains),
        *(_time(sheet, load) for load in mains),
        _lengths(sheet, mains[0]),
        _batches(sheet, mains),
        _over_time(sheet),
    ]
    return [
        Picture(one.title, f"{one.caption} {source}", one.svg, one.instead)
        for group in made
        for one in group
        if one.svg or one.instead
    ]


def _latency(sheet: Sheet) -> Iterator[Picture]:
    timed = load_charts.timed(sheet.points)
    kind = f"{time_kind([point.load for point in timed]).capitalize()}."
    for name, percent in (("Median", 50), ("p95", 95), ("p99", 99)):
        reach = _BOUND if percent == 99 else _BLOCKS
        svg = load_charts.latency_against_rate(sheet.points, sheet.main_looks, percent)
        yield Picture(f"{name} latency against achieved rate", f"{kind} {_LATENCY} {reach} {_KNEE}", svg)


def _energy(sheet: Sheet) -> Iterator[Picture]:
    loads = common_loads(sheet.results)
    closed = [load for load in loads if load.shape == CLOSED]
    others = [load for load in loads if load.shape != CLOSED]
    instead = _no_joules(sheet.results)
    for group, name, what in ((closed, "energy", "concurrency"), (others, "energy-open", "load")):
        if group:
            svg = energy_charts.energy_against_load(sheet.points, group, sheet.main_looks, name)
            yield Picture(f"Energy per request against {what}", _ENERGY, svg, instead)
            instead = ""


def _trade(sheet: Sheet, load: Load) -> Iterator[Picture]:
    caption = (
        "Up and to the left is better; the dotted line joins the variants that no other beats in both. Bars"
        " are 95 % intervals, a disc's area grows with p95 latency where every variant has one:"
        f" {time_kind([load])}."
    )
    results = sheet.results
    own = _under(sheet, load)
    svg = trade_charts.accuracy_against_energy(own, results.accuracy, sheet.main_looks)
    instead = ""
    if load == main_loads(results)[0]:
        instead = accuracy_sentence(results) if results.accuracy_reason else _no_joules(results)
    yield Picture(f"Accuracy against energy {at(load)}", caption, svg, instead)


def _forest(sheet: Sheet, load: Load) -> Iterator[Picture]:
    results = sheet.results
    rivals = [point for point in _under(sheet, load) if point.arm != results.baseline]
    if not rivals:
        return
    twin = twin_under(results, load)
    band = ""
    if twin is not None and twin_sentence(results, load):
        band = (
            f" Grey: what {results.baseline} differs by from itself, measured twice under two names; smaller"
            " differences than that mean nothing here."
        )
    svg = trade_charts.paired_ratios(rivals, twin, results.accuracy, twin_accuracy(results), sheet.looks)
    title = f"Compared with {results.baseline} {at(load)}"
    yield Picture(title, f"{_RATIOS} Latency is {time_kind([load])}.{band}", svg)


def _goodput(sheet: Sheet) -> Iterator[Picture]:
    svg = load_charts.goodput_against_offered(sheet.points, sheet.main_looks)
    objective = f"Objective: {sheet.results.plan.objective}."
    kind = "Latency is response time (open loop: counted from the schedule)."
    yield Picture("Goodput against offered rate", f"{objective} {_GOODPUT} {kind}", svg)


def _searches(sheet: Sheet) -> Iterator[Picture]:
    svg = load_charts.searched_rates(sheet.results.searches, sheet.looks)
    objectives = " and ".join(dict.fromkeys(one.objective for one in sheet.results.searches))
    yield Picture(f"The highest rate within {objectives}", _SEARCH, svg)


def _tail(sheet: Sheet, load: Load) -> Iterator[Picture]:
    svg = tail_charts.latency_distribution(
        sheet.records, sheet.main_looks, load, untold_under(sheet.results, load)
    )
    kind = f"{time_kind([load]).capitalize()}."
    if load.scheduled:
        kind = f"Solid: {time_kind([load])}. Dashed: service time, from sending. {_GAP}"
    yield Picture(f"The tail {at(load)}", f"{_TAIL} {kind}", svg)


def _time(sheet: Sheet, load: Load) -> Iterator[Picture]:
    svg = tail_charts.where_time_goes(sheet.points, load)
    yield Picture(f"Where the time goes {at(load)}", f"{_TIME} It is {time_kind([load])}.", svg)


def _lengths(sheet: Sheet, load: Load) -> Iterator[Picture]:
    svg = energy_charts.energy_against_tokens(sheet.records, sheet.points, sheet.main_looks, load)
    yield Picture(f"Energy by length of the request {at(load)}", _LENGTH, svg)


def _batches(sheet: Sheet, mains: Sequence[Load]) -> Iterator[Picture]:
    loads = common_loads(sheet.results)
    for load in mains:
        sizes = tail_charts.batch_sizes(
            sheet.records, sheet.main_looks, load, sheet.unit, untold_under(sheet.results, load)
        )
        yield Picture(f"Batch sizes {at(load)}", _SIZES, sizes)
    means = load_charts.batch_against_load(sheet.points, loads, sheet.main_looks, sheet.unit)
    yield Picture("Mean batch size against load", _BATCH, means)
    padding = load_charts.padding_against_load(sheet.points, loads, sheet.main_looks)
    yield Picture("Padding against load", _PADDING, padding)


def _over_time(sheet: Sheet) -> Iterator[Picture]:
    results = sheet.results
    for number, meter in enumerate(sheet.meters, start=1):
        own = {arm.name for arm in results.plan.arms if arm.target == meter.target}
        cells = [cell for cell in results.cells if cell.arm in own]
        svg = time_charts.power_over_time(meter, cells, sheet.looks, f"power-{number}")
        where = " of ".join(part for part in (meter.device, meter.target) if part)
        title = f"Power over time: {where}" if len(sheet.meters) > 1 else "Power over time"
        yield Picture(title, _POWER, svg)
    twin = twin_of_baseline(results)
    grey = f" Grey: {twin}, which is the baseline once more." if twin else ""
    yield Picture("The cells in run order", _ORDER + grey, time_charts.run_order(results.cells, sheet.looks))


def _under(sheet: Sheet, load: Load) -> list[Seen]:
    return [point for point in sheet.points if point.load == load]


def _no_joules(results: Results) -> str:
    return f"No joules: {results.energy_reason}." if results.energy_reason else "No receipt was settled."
