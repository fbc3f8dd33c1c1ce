"""Which charts a report shows, in which order, under which words. Every caption names the energy source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattserve_loadgen.report import energy_charts, load_charts
from wattserve_loadgen.report.marks import Looks
from wattserve_loadgen.report.text import accuracy_sentence, source_line
from wattserve_loadgen.results.folder import Columns
from wattserve_loadgen.results.schema import Point, Results

CLOSED_LOOP = "Closed loop: no arrival schedule."
_LATENCY = "Down and to the right is better; the number in a disc is its concurrency."
_ENERGY = (
    "Full: active energy, with its 95 % interval over blocks. Hatched: the idle draw that falls to a request."
)
_TAIL = "Each line ends at the last percentile that its sample can carry."
_LENGTH = "The mean of requests of similar length; the band holds the middle half of them."
_TIME = "Mean latency, by what the server says of each request."
_BATCH = "Requests that run together share the fixed cost of a batch."
_PADDING = "Positions computed and thrown away, because a batch is as long as its longest row."


@dataclass(frozen=True)
class Picture:
    """One chart with its words. `svg` is None when there is nothing to draw; `instead` then says why."""

    title: str
    caption: str
    svg: str | None
    instead: str = ""


def pictures(results: Results, columns: Mapping[tuple[str, int], Columns], looks: Looks) -> list[Picture]:
    """The charts of a sweep; those with nothing to draw and nothing to say are left out."""
    points = results.points
    if not points:
        return []
    top = max(point.concurrency for point in points)
    source = f"Energy source: {source_line(results)}."
    drawn = [
        *(_latency(name, percent, points, looks, source) for name, percent in (("Median", 50), ("p95", 95))),
        _energy(results, looks, source),
        _accuracy(results, looks, top, source),
        _latency("p99", 99, points, looks, source),
        Picture(
            f"The tail at concurrency {top}",
            f"{_TAIL} {CLOSED_LOOP} {source}",
            load_charts.latency_distribution(columns, looks, top),
        ),
        Picture(
            f"Energy by length of the request at concurrency {top}",
            f"{_LENGTH} {source}",
            energy_charts.energy_against_tokens(columns, points, looks, top),
        ),
        Picture(
            f"Where the time goes at concurrency {top}",
            f"{_TIME} {CLOSED_LOOP} {source}",
            load_charts.where_time_goes(points, top),
        ),
        Picture(
            "Batch size against concurrency",
            f"{_BATCH} {source}",
            load_charts.batch_against_concurrency(
                points, looks, "images" if results.dataset.pixel_shape else "sequences"
            ),
        ),
        Picture(
            "Padding against concurrency",
            f"{_PADDING} {source}",
            load_charts.padding_against_concurrency(points, looks),
        ),
    ]
    return [picture for picture in drawn if picture.svg or picture.instead]


def _latency(name: str, percent: int, points: Sequence[Point], looks: Looks, source: str) -> Picture:
    svg = load_charts.latency_against_throughput(points, looks, percent)
    return Picture(f"{name} latency against throughput", f"{_LATENCY} {CLOSED_LOOP} {source}", svg)


def _energy(results: Results, looks: Looks, source: str) -> Picture:
    svg = energy_charts.energy_against_concurrency(results.points, looks)
    return Picture("Energy per request against concurrency", f"{_ENERGY} {source}", svg, _no_joules(results))


def _accuracy(results: Results, looks: Looks, top: int, source: str) -> Picture:
    caption = (
        f"Up and to the left is better. At concurrency {top}; bars are 95 % intervals, a disc's area grows"
        f" with p95 latency where every variant has one. {CLOSED_LOOP} {source}"
    )
    svg = energy_charts.accuracy_against_energy(results.points, results.accuracy, looks, top)
    instead = accuracy_sentence(results) if results.accuracy_reason else _no_joules(results)
    return Picture("Accuracy against energy", caption, svg, instead)


def _no_joules(results: Results) -> str:
    return f"No joules: {results.energy_reason}." if results.energy_reason else "No receipt was settled."
