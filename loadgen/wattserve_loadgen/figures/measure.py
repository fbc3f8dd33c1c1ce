"""The figures of one cell, from its records and its loop. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.drive.closed import LoopResult
from wattserve_loadgen.figures import account, stats
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.results.schema import CellResult, Record
from wattserve_loadgen.results.standing import UNSTATED, Standing


def window_latencies(records: Sequence[Record]) -> npt.NDArray[np.int64]:
    """Latencies in nanoseconds of the answered requests of the window, in the order of sending."""
    return np.array(
        [record.done_ns - record.sent_ns for record in records if record.ok and record.in_window],
        dtype=np.int64,
    )


def measure_cell(
    cell: Cell,
    loop: LoopResult,
    records: Sequence[Record],
    growth: account.LedgerGrowth,
    stopped: str,
    standing: Standing = UNSTATED,
) -> CellResult:
    """`stopped` says why the cell ended early, or is empty; `standing` is that of its variant."""
    window = [record for record in records if record.in_window]
    answered = [record for record in window if record.ok]
    failures = [record for record in window if not record.ok]
    latencies = window_latencies(records)
    seconds = loop.window_seconds
    ended = loop.done_in_window().tolist()
    completed = sum(record.ok and inside for record, inside in zip(records, ended, strict=True))
    rate = completed / seconds if seconds > 0 else None
    return CellResult(
        position=cell.position,
        block=cell.block,
        variant=cell.variant,
        concurrency=cell.concurrency,
        window_seconds=seconds,
        sent=len(window),
        answered=len(answered),
        failed=len(failures),
        failures=dict(Counter(record.code for record in failures)),
        failure_example=_example(failures),
        rate_per_second=rate,
        p50_ns=stats.percentile(latencies, 50.0),
        p90_ns=stats.percentile(latencies, 90.0),
        p95_ns=stats.percentile(latencies, 95.0),
        p99_ns=stats.percentile(latencies, 99.0),
        max_ns=int(latencies.max()) if len(latencies) else None,
        effective_samples=stats.effective_samples(latencies),
        client_cpu_seconds=loop.client_cpu_seconds,
        client_cpu_share=loop.client_cpu_seconds / seconds if seconds > 0 else None,
        mean_tokens=_mean([record.tokens for record in answered if record.tokens is not None]),
        mean_batch_size=mean_batch_size([record.batch_size for record in answered if record.batch_size]),
        padding_share=padding_share(
            [(one.tokens, one.padded_tokens) for one in answered if one.tokens and one.padded_tokens]
        ),
        mean_queue_ns=_mean([record.queue_ns for record in answered if record.queue_ns is not None]),
        mean_compute_ns=_mean([record.compute_ns for record in answered if record.compute_ns is not None]),
        mean_latency_ns=_mean(latencies.tolist()),
        energy=account.cell_energy(records, growth, rate),
        stopped=stopped,
        proxy=standing.proxy,
        verified=standing.verified,
    )


def mean_batch_size(sizes_seen: Sequence[int]) -> float | None:
    """Mean size of the batches, from the size that each request saw.

    A batch of eight is seen eight times, so each request stands for 1/size of a batch.
    """
    if not sizes_seen:
        return None
    return len(sizes_seen) / sum(1 / size for size in sizes_seen)


def padding_share(tokens_and_padded: Sequence[tuple[int, int]]) -> float | None:
    """The share of computed token positions that were padding."""
    padded = sum(pair[1] for pair in tokens_and_padded)
    return 1 - sum(pair[0] for pair in tokens_and_padded) / padded if padded else None


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None


def _example(failures: Sequence[Record]) -> str:
    if not failures:
        return ""
    return f"{failures[0].code} {failures[0].message or ''}".rstrip()
