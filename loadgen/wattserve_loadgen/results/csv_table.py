"""results.csv: a row for each point, for spreadsheets. Pure.

A figure that is not published is an empty cell, and `verdicts` says why; units are in the names of columns.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from wattserve_loadgen.model.cells import PERCENTILES
from wattserve_loadgen.model.ratios import COMPARED
from wattserve_loadgen.model.results import Accuracy, Figures, Perplexity, Point, Results
from wattserve_loadgen.plan.load import Arm, Load


@dataclass(frozen=True)
class Row:
    """What a row is filled from."""

    point: Point
    arm: Arm
    load: Load
    figures: Figures | None  # None: not published
    accuracy: Accuracy | None
    perplexity: Perplexity | None

    @property
    def published(self) -> bool:
        return not self.point.verdicts

    @property
    def verdicts(self) -> str:
        return "; ".join(verdict.code for verdict in self.point.verdicts)


@dataclass(frozen=True)
class Column:
    name: str
    meaning: str
    path: str  # of its value in a Row

    def text(self, row: Row) -> str:
        """Empty where the value, or what would hold it, is not known."""
        value: Any = row
        for name in self.path.split("."):
            value = None if value is None else getattr(value, name)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.9g}"
        return "" if value is None else str(value)


def csv_text(results: Results) -> str:
    """The whole file, with a line of column names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    shown = columns()
    writer.writerow([column.name for column in shown])
    for point in results.points:
        arm, load = results.arm(point.arm), results.load(point.load)
        row = Row(
            point,
            arm,
            load,
            point.figures,
            results.accuracy.get(point.arm),
            results.perplexity.get(point.arm),
        )
        writer.writerow([column.text(row) for column in shown])
    return out.getvalue()


def _interval(name: str, meaning: str, path: str) -> list[Column]:
    """A mean over blocks and its bounds."""
    return [
        Column(name, meaning, f"{path}.mean"),
        Column(f"{name}_low", "its 95 % interval", f"{path}.low"),
        Column(f"{name}_high", "", f"{path}.high"),
    ]


def _latencies(prefix: str, meaning: str, path: str) -> list[Column]:
    below = "the {:g}th percentile lies below it with 99 % confidence"
    return [
        Column(f"{prefix}mean_ns", f"{meaning}: mean", f"{path}.mean_ns"),
        *(
            Column(prefix + name, f"{meaning}: percentile {percent:g}", f"{path}.{name}")
            for name, percent in PERCENTILES.items()
        ),
        *(
            Column(prefix + name, below.format(percent), f"{path}.{name}")
            for name, percent in ((name.replace("_ns", "_bound_ns"), p) for name, p in PERCENTILES.items())
        ),
        Column(f"{prefix}max_ns", f"{meaning}: the longest", f"{path}.max_ns"),
    ]


def columns() -> list[Column]:
    """In the order of the file."""
    return [
        Column("arm", "what is compared", "point.arm"),
        Column("variant", "as the server calls it", "arm.variant"),
        Column("target", "the server's name in this sweep", "arm.target"),
        Column("twin_of", "the arm that this one repeats", "arm.twin_of"),
        Column("proxy", "what really ran, where the variant only stands in", "point.proxy"),
        Column("verified", "whether the server saw its precision", "point.verified"),
        Column("load", "the load's name", "point.load"),
        Column("shape", "closed, poisson, constant, ramp, recorded, offline", "load.shape"),
        Column("concurrency", "requests in flight, where the load sets them", "load.concurrency"),
        Column("load_rate_per_second", "requests, where the load sets them", "load.rate"),
        Column("sequences", "in each request", "load.sequences"),
        Column("blocks", "that ran", "point.blocks"),
        Column("window_seconds", "summed over blocks", "point.window_seconds"),
        Column("offered_per_second", "by the schedule", "point.offered_per_second"),
        Column("answered", "requests of the windows", "point.answered"),
        Column("failed", "requests of the windows", "point.failed"),
        Column("published", "whether its figures may be", "published"),
        Column("verdicts", "codes of what speaks against it, separated by `;`", "verdicts"),
        *_interval("achieved_per_second", "answers", "figures.rate_per_second"),
        *_latencies("", "response time (service time in a closed loop)", "figures.latency"),
        *_latencies("service_", "service time, of an open loop", "figures.service"),
        *_latencies("lag_", "due to sent, of an open loop", "figures.lag"),
        Column("goodput_share", "of those sent, answered within the objective", "figures.goodput_share"),
        *_interval("active_uj_per_request", "by receipts", "figures.active_uj"),
        *_interval("idle_uj_per_request", "idle power over throughput", "figures.idle_uj"),
        *_interval("total_uj_per_request", "active and idle", "figures.total_uj"),
        *_interval("meter_uj_per_request", "by the meter's own count", "figures.meter_uj"),
        *_interval("meter_difference", "(total by receipts - meter) / meter", "figures.meter_difference"),
        *_interval("active_uj_per_token", "by receipts", "figures.active_uj_per_token"),
        *_interval("active_uj_per_padded_token", "padding included", "figures.active_uj_per_padded_token"),
        *_interval(
            "output_tokens_per_second",
            "of a language model; so the columns to mean_output_tokens",
            "figures.generated.output_tokens_per_second",
        ),
        *_latencies("ttft_", "time to first token", "figures.generated.ttft"),
        *_latencies("tpot_", "time per output token behind the first", "figures.generated.tpot"),
        *_latencies("itl_", "from a message with tokens to the next", "figures.generated.itl"),
        *_interval(
            "active_uj_per_output_token", "by receipts", "figures.generated.active_uj_per_output_token"
        ),
        *_interval("prompt_uj_per_request", "of reading the prompt", "figures.generated.prompt_uj"),
        *_interval("output_uj_per_request", "of the tokens behind the first", "figures.generated.output_uj"),
        *_interval("overhead_uj_per_request", "of preemptions, beside", "figures.generated.overhead_uj"),
        *_interval(
            "energy_delay_uj_seconds",
            "active energy of a request times its mean latency",
            "figures.generated.energy_delay_uj_seconds",
        ),
        Column("mean_prompt_tokens", "of a request", "figures.generated.mean_prompt_tokens"),
        Column("mean_output_tokens", "of a request", "figures.generated.mean_output_tokens"),
        Column("energy_reason", "why there are no joules", "figures.energy_reason"),
        Column("mean_batch_size", "sequences", "figures.mean_batch_size"),
        Column("padding_share", "of the token positions computed", "figures.padding_share"),
        Column("client_cpu_share", "of a core, in its worst block", "figures.client_cpu_share"),
        Column(
            "client_cpu_us_per_request",
            "CPU time of the client, microseconds",
            "figures.client_cpu_us_per_request",
        ),
        Column("accuracy_share", "of the arm, over all loads", "accuracy.share"),
        Column("accuracy_low", "its 95 % interval", "accuracy.low"),
        Column("accuracy_high", "", "accuracy.high"),
        Column("accuracy_rows", "rows with a label that every arm answered", "accuracy.rows"),
        Column("perplexity", "of the arm, on rows held out", "perplexity.perplexity"),
        Column("nats_per_token", "its logarithm", "perplexity.nats_per_token"),
        Column("nats_per_token_low", "its 95 % interval", "perplexity.low"),
        Column("nats_per_token_high", "", "perplexity.high"),
        Column("nats_difference", "from the baseline's, paired", "perplexity.difference"),
        Column("nats_difference_low", "its 95 % interval", "perplexity.difference_low"),
        Column("nats_difference_high", "", "perplexity.difference_high"),
        Column("accuracy_difference", "from the baseline, paired", "accuracy.difference"),
        Column("accuracy_difference_low", "its 95 % interval", "accuracy.difference_low"),
        Column("accuracy_difference_high", "", "accuracy.difference_high"),
        *(
            column
            for name in COMPARED
            for column in _interval(
                f"{name}_ratio", "over the baseline's, same load", f"figures.ratios.{name}"
            )
        ),
    ]
