"""results.csv: a row for each point, for spreadsheets. Pure.

A figure that is not published is an empty cell, and `verdicts` says why; units are in the names of columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

from wattserve_loadgen.figures.percentiles import Percentiles
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.plan.load import Arm, Load
from wattserve_loadgen.results.schema import Accuracy, Figures, Point, Results

Value = str | int | float | None


@dataclass(frozen=True)
class Row:
    """What a column is filled from."""

    point: Point
    arm: Arm
    load: Load
    figures: Figures | None  # None: not published
    accuracy: Accuracy | None


@dataclass(frozen=True)
class Column:
    name: str
    meaning: str
    of: Callable[[Row], Value]


def csv_text(results: Results) -> str:
    """The whole file, with a line of column names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.name for column in COLUMNS])
    for point in results.points:
        row = Row(
            point,
            results.arm(point.arm),
            results.load(point.load),
            point.figures,
            results.accuracy.get(point.arm),
        )
        writer.writerow([_text(column.of(row)) for column in COLUMNS])
    return out.getvalue()


def _text(value: Value) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _interval(name: str, meaning: str, pick: Callable[[Figures], Interval | None]) -> list[Column]:
    """A mean over blocks and its bounds."""

    def part(attribute: str) -> Callable[[Row], Value]:
        def value(row: Row) -> Value:
            found = None if row.figures is None else pick(row.figures)
            return None if found is None else getattr(found, attribute)

        return value

    return [
        Column(name, meaning, part("mean")),
        Column(f"{name}_low", "its 95 % interval", part("low")),
        Column(f"{name}_high", "", part("high")),
    ]


def _figure(name: str, meaning: str, pick: Callable[[Figures], Value]) -> Column:
    return Column(name, meaning, lambda row: None if row.figures is None else pick(row.figures))


def _latencies(prefix: str, meaning: str, pick: Callable[[Figures], Percentiles | None]) -> list[Column]:
    def column(attribute: str, text: str) -> Column:
        def value(figures: Figures) -> Value:
            found = pick(figures)
            return None if found is None else getattr(found, attribute)

        return _figure(prefix + attribute, text, value)

    percents = {"p50": "50", "p90": "90", "p95": "95", "p99": "99", "p999": "99.9"}
    return [
        column("mean_ns", f"{meaning}: mean"),
        *(column(f"{name}_ns", f"{meaning}: percentile {text}") for name, text in percents.items()),
        *(
            column(f"{name}_bound_ns", f"the {text}th percentile lies below it with 99 % confidence")
            for name, text in percents.items()
        ),
        column("max_ns", f"{meaning}: the longest"),
    ]


def _accuracy(name: str, meaning: str, pick: Callable[[Accuracy], Value]) -> Column:
    return Column(name, meaning, lambda row: None if row.accuracy is None else pick(row.accuracy))


def _yes_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


COLUMNS: list[Column] = [
    Column("arm", "what is compared", lambda row: row.point.arm),
    Column("variant", "as the server calls it", lambda row: row.arm.variant),
    Column("target", "the server's name in this sweep", lambda row: row.arm.target),
    Column("twin_of", "the arm that this one repeats", lambda row: row.arm.twin_of),
    Column("proxy", "what really ran, where the variant only stands in", lambda row: row.point.proxy),
    Column("verified", "whether the server saw its precision", lambda row: _yes_no(row.point.verified)),
    Column("load", "the load's name", lambda row: row.point.load),
    Column("shape", "closed, poisson, constant, ramp, recorded, offline", lambda row: row.load.shape),
    Column("concurrency", "requests in flight, where the load sets them", lambda row: row.load.concurrency),
    Column("load_rate_per_second", "requests, where the load sets them", lambda row: row.load.rate),
    Column("sequences", "in each request", lambda row: row.load.sequences),
    Column("blocks", "that ran", lambda row: row.point.blocks),
    Column("window_seconds", "summed over blocks", lambda row: row.point.window_seconds),
    Column("offered_per_second", "by the schedule", lambda row: row.point.offered_per_second),
    Column("answered", "requests of the windows", lambda row: row.point.answered),
    Column("failed", "requests of the windows", lambda row: row.point.failed),
    Column("published", "whether its figures may be", lambda row: _yes_no(not row.point.verdicts)),
    Column(
        "verdicts",
        "codes of what speaks against it, separated by `;`",
        lambda row: "; ".join(one.code for one in row.point.verdicts),
    ),
    *_interval("achieved_per_second", "answers", lambda figures: figures.rate_per_second),
    *_latencies("", "response time (service time in a closed loop)", lambda figures: figures.latency),
    *_latencies("service_", "service time, of an open loop", lambda figures: figures.service),
    *_latencies("lag_", "due to sent, of an open loop", lambda figures: figures.lag),
    _figure(
        "goodput_share", "of those sent, answered within the objective", lambda figures: figures.goodput_share
    ),
    *_interval("active_uj_per_request", "by receipts", lambda figures: figures.active_uj),
    *_interval("idle_uj_per_request", "idle power over throughput", lambda figures: figures.idle_uj),
    *_interval("total_uj_per_request", "active and idle", lambda figures: figures.total_uj),
    *_interval("meter_uj_per_request", "by the meter's own count", lambda figures: figures.meter_uj),
    *_interval(
        "meter_difference", "(total by receipts - meter) / meter", lambda figures: figures.meter_difference
    ),
    *_interval("active_uj_per_token", "by receipts", lambda figures: figures.active_uj_per_token),
    *_interval(
        "active_uj_per_padded_token", "padding included", lambda figures: figures.active_uj_per_padded_token
    ),
    Column("energy_reason", "why there are no joules", lambda row: _energy_reason(row)),
    _figure("mean_batch_size", "sequences", lambda figures: figures.mean_batch_size),
    _figure("padding_share", "of the token positions computed", lambda figures: figures.padding_share),
    _figure("client_cpu_share", "of a core, in its worst block", lambda figures: figures.client_cpu_share),
    _figure(
        "client_cpu_us_per_request",
        "CPU time of the client, microseconds",
        lambda figures: figures.client_cpu_us_per_request,
    ),
    _accuracy("accuracy_share", "of the arm, over all loads", lambda accuracy: accuracy.share),
    _accuracy("accuracy_low", "its 95 % interval", lambda accuracy: accuracy.low),
    _accuracy("accuracy_high", "", lambda accuracy: accuracy.high),
    _accuracy("accuracy_rows", "rows that every arm answered", lambda accuracy: accuracy.rows),
    _accuracy("accuracy_difference", "from the baseline, paired", lambda accuracy: accuracy.difference),
    _accuracy("accuracy_difference_low", "its 95 % interval", lambda accuracy: accuracy.difference_low),
    _accuracy("accuracy_difference_high", "", lambda accuracy: accuracy.difference_high),
    *_interval("rate_ratio", "over the baseline's, same load", lambda figures: figures.ratios.rate),
    *_interval("p50_ratio", "over the baseline's, same load", lambda figures: figures.ratios.p50),
    *_interval("p95_ratio", "over the baseline's, same load", lambda figures: figures.ratios.p95),
    *_interval("active_energy_ratio", "over the baseline's", lambda figures: figures.ratios.active_energy),
    *_interval("total_energy_ratio", "over the baseline's", lambda figures: figures.ratios.total_energy),
]


def _energy_reason(row: Row) -> str:
    return "" if row.figures is None else row.figures.energy_reason
