"""What the fields of a results folder mean, for the reference page and the JSON Schema.

A field's meaning is the comment behind it in the code; where its name says enough for readers of the code but
not for others, it stands here, by `Class.field` or, for several classes, by `field`. Needs the source files.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from typing import Any, cast

MEANINGS = {
    "concurrency": "requests in flight at once; null where the load does not set it",
    "block": "which repetition of the plan, from 1; the heat-up block is not recorded",
    "sent_ns": "when it was sent",
    "done_ns": "when its answer was there, or its failure",
    "ok": "whether it was answered",
    "predicted": "index of the highest logit; null for models without labels",
    "receipt_id": "the server's id of its receipt",
    "energy_low_uj": "lower end of the receipt's 95 % interval",
    "energy_high_uj": "upper end",
    "batch_size": "sequences in the batch that it ran in",
    "padded_tokens": "tokens that were computed for it, padding included",
    "queue_ns": "until it was in a batch, on the server's clock",
    "compute_ns": "its batch's window, on the server's clock",
    "unknown_reasons": "how often each reason was given",
    "active_uj_per_token": "of the window's settled receipts, over the tokens of those requests",
    "idle_watts": "mean idle draw over the cell",
    "ledger_seconds": "between the ledger's readings before and after the cell",
    "measured_uj": "what the meter counted in that time, measured or not: the source says",
    "idle_uj": "booked as idle",
    "CellEnergy.idle_uj": "booked as idle",
    "unattributed_uj": "above idle, and explained by no batch",
    "pending_uj": "metered and not settled at the end of the cell",
    "gap_count": "gaps of the meter within the cell",
    "gap_seconds": "their length",
    "position": "when it ran, from 1, heat-up cells counted",
    "window_seconds": "length of the window; of a point: summed over its blocks",
    "failure_example": "the message of one failure, or empty",
    "rate_per_second": "answers per second of the window",
    "p50_ns": "median latency; percentiles are null where the sample is too small to bound them",
    "p90_ns": "90th percentile",
    "p95_ns": "95th percentile",
    "p99_ns": "99th percentile",
    "p999_ns": "99.9th percentile",
    "max_ns": "the longest",
    "mean_tokens": "tokens of a request",
    "mean_batch_size": "sequences of the batch that a request ran in",
    "mean_queue_ns": "of `queue_ns` of the records",
    "mean_compute_ns": "of `compute_ns` of the records",
    "energy": "what it cost",
    "Verdict.text": "the verdict in words",
    "Verdict.code": "a name of the verdict that does not change",
    "Verdict.spoils": "`point`, or `energy` alone",
    "Check.name": "what was looked at",
    "Check.text": "what was found, with its figures",
    "blocks": "how many blocks ran",
    "Plan.blocks": "repetitions of the plan, the heat-up block not counted",
    "answered": "requests answered",
    "failed": "requests that failed",
    "p50_blocks_ns": "the blocks' own medians",
    "p95_blocks_ns": "the blocks' own 95th percentiles",
    "padding_share": "of the token positions that were computed",
    "verdicts": "why it must not be published as it is; empty when nothing speaks against it",
    "verified": "whether the server saw its precision; null when it does not say",
    "correct": "rows answered with the label",
    "rows": "rows",
    "Accuracy.rows": "rows that every arm answered",
    "high": "upper end",
    "folder": "as it was given",
    "sha256": "of the tensors' contents",
    "labelled": "whether every row has a label",
    "max_tokens": "of the longest row",
    "Interval.mean": "the mean; of ratios the geometric one",
    "Interval.low": "lower end; null below two blocks",
    "Interval.high": "upper end; null below two blocks",
    "Interval.n": "blocks",
    "schema": "`wattserve-loadgen-results`",
    "schema_version": "changes when a reader would break",
    "loadgen_version": "the version of Wattserve that measured",
    "command": "the command line",
    "plan": "what was to be done",
    "dataset": "what was replayed",
    "client": "machine, versions and revision of the client",
    "accuracy": "by arm; empty where it does not apply",
    "notes": "what a reader should know, in sentences",
    "points": "the figures of the report",
    "cells": "what they were made from",
    "preset": "`look`, `quick` or `full`",
    "seed": "of the order of cells and rows",
    "arm": "what is compared, by its name",
    "load": "how requests were offered, by its name",
    "labels": "the rows' labels; null where a row has none",
    "targets": "the servers of the sweep",
    "ceilings": "what this client can do against a server that does nothing",
    "searches": "what `--find-max` found; empty without it",
    "checks": "what `loadgen validate` says of it",
    "arms": "what is compared, in this order; the first is the baseline",
    "Arm.name": "unique in the sweep; of a twin `NAME (A/A)`",
    "shape": "`closed`, `poisson`, `constant`, `ramp`, `recorded` or `offline`",
    "rate_end": "of a ramp: the rate at its end",
    "trace": "of a recorded load: the file of its instants",
    "trace_sha256": "of that file",
    "speed": "of a recorded load: how much faster than it was recorded",
    "MeterWindow.seconds": "length of the window",
    "watts": "mean power over the window",
    "active_uj_per_padded_token": "the same over the tokens that were computed, padding included",
    "active_uj_per_request": "the mean of each slice's settled receipts",
    "started_unix_seconds": "by the wall clock",
    "cpu_mhz": "mean clock of the client's cores",
    "temperature_celsius": "of its processor",
    "load_average": "over one minute",
    "slices": "null: older results, or a window too short to slice",
    "conditions": "null: older results",
    "Ratios.rate": "throughput",
    "Ratios.p50": "the blocks' medians",
    "Ratios.p95": "the blocks' 95th percentiles",
    "Ratios.active_energy": "active energy per request",
    "Ratios.total_energy": "active and idle energy per request",
    "latency": "response time where there is a schedule, service time where there is none",
    "service": "sent to answered; null in a closed loop, where it is the latency",
    "lag": "due to sent; null in a closed loop",
    "client_cpu_us_per_request": "the client's own CPU time, in microseconds",
    "ratios": "to the baseline under the same load",
    "offered_per_second": "by the schedule; null in a closed loop",
    "figures": "what is published; null: a verdict speaks against it",
    "withheld": "what is not published: to be drawn hollow; null when nothing is withheld",
    "lost_rows": "wrong here, right in the baseline",
    "difference_low": "lower end of its 95 % interval",
    "difference_high": "upper end",
    "objective": "such as `p99<50ms`",
    "trials": "in the order in which they ran",
    "achieved_per_second": "answers",
    "Trial.rate_per_second": "offered",
    "Slices.rate_per_second": "answers per second of each slice",
    "Slices.p50_ns": "median latency of each slice",
    "Figures.idle_uj": "per request: idle power over throughput",
    "Trial.seconds": "how long it was tried",
    "requests_per_second": "answers of a server that does nothing",
    "request_bytes": "of a request on the wire",
    "processes": "of the client",
    "TargetSummary.name": "unique in the sweep",
    "address": "HOST:PORT",
    "samples": "how many latencies",
    "mean_ns": "their mean",
    "p90_bound_ns": "of the 90th percentile",
    "p95_bound_ns": "of the 95th percentile",
    "p99_bound_ns": "of the 99th percentile",
    "p999_bound_ns": "of the 99.9th percentile",
}


def meanings_of(kind: type) -> dict[str, str]:
    """A sentence for every field of a dataclass; LookupError when one has none."""
    comments = _comments(kind)
    found = {}
    for one in fields(cast(Any, kind)):
        keys = (f"{kind.__name__}.{one.name}", one.name)
        meaning = comments.get(one.name) or next((MEANINGS[key] for key in keys if key in MEANINGS), "")
        if not meaning:
            raise LookupError(f"{keys[0]}: no comment in the code and no entry in meanings.py")
        found[one.name] = re.sub(r"\bNone\b", "null", meaning)
    return found


def _comments(kind: type) -> dict[str, str]:
    """Field to the comment behind it."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    found = {}
    for node in cast(ast.ClassDef, ast.parse(source).body[0]).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = re.search(r"#\s*(.*)", lines[node.lineno - 1])
            if comment:
                found[node.target.id] = comment[1]
    return found
