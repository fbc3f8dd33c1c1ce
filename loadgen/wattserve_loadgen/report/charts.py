"""The list of charts: titles, captions, and how they are drawn. A new chart is an entry of CHARTS.

The page takes its pictures from here, in this order, with their words for the eye and for a screen reader.
Every caption names the energy source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wattserve_loadgen.model.results import Results
from wattserve_loadgen.plan.load import CLOSED, Load
from wattserve_loadgen.report import ink, load_charts, record_charts, trade_charts
from wattserve_loadgen.report.facts import source_line
from wattserve_loadgen.report.ink import Drawing
from wattserve_loadgen.report.scene import Sheet, common_loads, main_loads, twin_of_baseline
from wattserve_loadgen.report.text import accuracy_sentence, capitalised, twin_sentence
from wattserve_loadgen.results.readings import MeterReadings


@dataclass(frozen=True)
class Picture:
    """A chart on the page."""

    title: str
    caption: str
    svg: str | None  # None when there is nothing to draw
    instead: str = ""  # then: why


def _the_sweep(sheet: Sheet) -> Sequence[Any]:
    return [None]


def _main_loads(sheet: Sheet) -> Sequence[Load]:
    return main_loads(sheet.results)


def _kinds_of_loads(sheet: Sheet) -> Sequence[Sequence[Load]]:
    """The closed loads, and the others."""
    loads = common_loads(sheet.results)
    kinds = [[load for load in loads if (load.shape == CLOSED) == closed] for closed in (True, False)]
    return [kind for kind in kinds if kind]


@dataclass(frozen=True)
class Chart:
    """A chart of a report, drawn once for each of its subjects: the sweep, a load, some loads, a meter.

    Names in braces in its words are filled by `_blanks`.
    """

    title: str
    caption: str
    draw: Callable[[Sheet, Any], Drawing | None]  # gets one of the subjects
    subjects: Callable[[Sheet], Sequence[Any]] = _the_sweep
    instead: Callable[[Results], str] = lambda results: ""  # why the first subject has nothing to draw


def opening(sheet: Sheet) -> Picture | None:
    """The one beside the headline, of what the headline says."""
    return next(iter(_pictures(sheet, (OPENING,), "opening")), None)


def pictures(sheet: Sheet) -> list[Picture]:
    """The charts of a sweep; those with nothing to draw and nothing to say are left out."""
    return _pictures(sheet, CHARTS if sheet.points else (SEARCHES,), "chart")


def _pictures(sheet: Sheet, charts: Sequence[Chart], name: str) -> list[Picture]:
    drawn: list[Picture] = []
    for chart in charts:
        for number, subject in enumerate(chart.subjects(sheet)):
            with ink.style():
                drawing = chart.draw(sheet, subject)
            instead = "" if number else chart.instead(sheet.results)
            if drawing or instead:
                blanks = _blanks(sheet, subject)
                caption = f"{chart.caption} Energy source: {{source}}.".format(**blanks)
                svg = drawing.svg(f"{name}-{len(drawn) + 1}") if drawing else None
                drawn.append(Picture(chart.title.format(**blanks), " ".join(caption.split()), svg, instead))
    return drawn


def _blanks(sheet: Sheet, subject: Any) -> dict[str, str]:
    """What the words of a chart may name, of one of its subjects."""
    results = sheet.results
    load = subject if isinstance(subject, Load) else None
    twin = twin_of_baseline(results)
    time = _time_of([load] if load else [point.load for point in load_charts.timed(sheet.points)])
    blanks = {
        "source": source_line(results),
        "baseline": results.baseline,
        "time": time,
        "Time": capitalised(time),
        "objective": results.plan.objective,
        "objectives": " and ".join(dict.fromkeys(search.objective for search in results.searches)),
        "twin": f"Grey: {twin}, which is the baseline once more." if twin else "",
    }
    if load:
        blanks["at"] = load.phrase
        blanks["band"] = _BAND.format(**blanks) if twin_sentence(results, load) else ""
        blanks["tail"] = (_OPEN_TAIL if load.scheduled else "{Time}.").format(**blanks)
    if isinstance(subject, int):
        blanks["percentile"], blanks["bar"] = _PERCENTILES[subject]
    if isinstance(subject, list):
        blanks["against"] = "concurrency" if subject[0].shape == CLOSED else "load"
    if isinstance(subject, MeterReadings):
        where = " of ".join(part for part in (subject.device, subject.target) if part)
        blanks["meter"] = f": {where}" if len(sheet.meters) > 1 else ""
    return blanks


def _time_of(loads: Sequence[Load]) -> str:
    """Which time a latency is, for loads that may be of both kinds."""
    closed = "service time (closed loop: there is no schedule)"
    opened = "response time (open loop: counted from the schedule)"
    kinds = [opened if load.scheduled else closed for load in loads]
    return " and ".join(kind for kind in (closed, opened) if kind in kinds)


def _no_joules(results: Results) -> str:
    return f"No joules: {results.energy_reason}." if results.energy_reason else "No receipt was settled."


def _no_trade(results: Results) -> str:
    if results.generates:
        return ""  # of a language model the perplexity is the quality
    return accuracy_sentence(results) if results.accuracy_reason else _no_joules(results)


_BLOCKS = "A bar behind a mark is the 95 % interval over blocks."
_BOUND = "A bar goes up to the bound below which p99 lies with 99 % confidence."
_PERCENTILES = {50: ("Median", _BLOCKS), 95: ("p95", _BLOCKS), 99: ("p99", _BOUND)}
_BAND = (
    "The grey band is how far {baseline} differs from itself, measured twice under two names. Smaller"
    " differences than that mean nothing here."
)
_OPEN_TAIL = (
    "Solid: {time}. Dashed: service time, from sending. The gap between them is what a client hides that"
    " counts from sending instead of from the schedule (coordinated omission)."
)
SEARCHES = Chart(
    "The highest rate within {objectives}",
    "Each mark is a rate that was tried. The bar lies between the highest rate that held the objective and"
    " the lowest that did not, or that could not be decided.",
    load_charts.searched_rates,
)

OPENING = Chart(
    "What a request costs {at}",
    "Shorter is better. A dark line is the 95 % interval over blocks. {band}",
    trade_charts.energy_bars,
    lambda sheet: main_loads(sheet.results)[:1],
)

CHARTS = (
    Chart(
        "{percentile} latency against achieved rate",
        "{Time}. Down and to the right is better. A disc holds its concurrency. A square is an open loop,"
        " whose line is dashed. {bar} A ring marks the knee of a line: the most answers per second for each"
        " second of latency.",
        load_charts.latency_against_rate,
        lambda sheet: list(_PERCENTILES),
    ),
    Chart(
        "Energy per request against {against}",
        "The full bar is the active energy by receipts, with its 95 % interval over blocks. The hatched bar"
        " is a request's share of the idle draw. The diamond is the meter's own count over the window, per"
        " answer.",
        load_charts.energy_against_load,
        _kinds_of_loads,
        _no_joules,
    ),
    Chart(
        "Energy per output token against load",
        "Active energy by receipts, over the tokens that the requests wrote. Requests that run in one step"
        " share what reading the weights costs.",
        load_charts.token_energy_over_loads,
    ),
    Chart(
        "Output tokens per second against the time from token to token",
        "Up and to the left is better. Tokens are those of all requests together; the time is the median that"
        " one request waits for its next token. A disc holds its concurrency.",
        load_charts.tokens_against_waiting,
    ),
    Chart(
        "Where the energy of a request goes {at}",
        "Reading the prompt and choosing the first token; choosing the others; reading again what a"
        " preemption had lost, which is the server's expense and in no receipt; a request's share of the idle"
        " draw.",
        trade_charts.where_energy_goes,
        _main_loads,
    ),
    Chart(
        "Perplexity against energy {at}",
        "Down and to the left is better. Perplexity is of rows held out. Bars are 95 % intervals. The area of"
        " a disc grows with p95 latency where every variant has one: {time}.",
        trade_charts.perplexity_against_energy,
        _main_loads,
    ),
    Chart(
        "Accuracy against energy {at}",
        "Up and to the left is better. The dotted line joins the variants that no other beats in both. Bars"
        " are 95 % intervals. The area of a disc grows with p95 latency where every variant has one: {time}.",
        trade_charts.accuracy_against_energy,
        _main_loads,
        _no_trade,
    ),
    Chart(
        "Compared with {baseline} {at}",
        "The ratios are paired block by block and have 95 % intervals. An arrow says which way is better. A"
        " hollow mark belongs to a point with a verdict. Latency is {time}. {band}",
        trade_charts.paired_ratios,
        _main_loads,
    ),
    Chart(
        "Goodput against offered rate",
        "Objective: {objective}. On the dotted diagonal every request was answered within the objective."
        " Latency is response time (open loop: counted from the schedule).",
        load_charts.goodput_against_offered,
    ),
    SEARCHES,
    Chart(
        "The tail {at}",
        "Each line ends at the last percentile that its sample can carry. {tail}",
        record_charts.latency_distribution,
        _main_loads,
    ),
    Chart(
        "Where the time goes {at}",
        "Mean latency, by what the client stamped and what the server says. The last part is what neither"
        " states. It is {time}.",
        trade_charts.where_time_goes,
        _main_loads,
    ),
    Chart(
        "Energy by length of the request {at}",
        "A mark is the mean of requests of similar length. The band holds the middle half of them.",
        record_charts.energy_against_length,
        lambda sheet: main_loads(sheet.results)[:1],
    ),
    Chart(
        "Batch sizes {at}",
        "Each batch counts once, however many requests it held. The dotted line is the mean.",
        record_charts.batch_sizes,
        _main_loads,
    ),
    Chart(
        "Mean batch size against load",
        "Requests that run together share the fixed cost of a batch.",
        load_charts.mean_batch_over_loads,
    ),
    Chart(
        "Padding against load",
        "These positions were computed and thrown away, because a batch is as long as its longest row.",
        load_charts.padding_over_loads,
    ),
    Chart(
        "Power over time{meter}",
        "Mean power between two readings. The shaded windows count, by variant. Between them lie warm-up and"
        " settlement.",
        record_charts.power_over_time,
        lambda sheet: sheet.meters,
    ),
    Chart(
        "The cells in run order",
        "Every cell against the mean of its own point: a drift with time shows as a slope. An × is a cell"
        " that was cut short. {twin}",
        record_charts.run_order,
    ),
)
