"""The figures of one cell, from its records and its loop. Pure; knows no other cell, and judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wattserve_common.stats import effective_samples
from wattserve_loadgen.figures import account, steady
from wattserve_loadgen.figures.generated import GeneratedSamples, generated_samples, mean, measure_generated
from wattserve_loadgen.figures.limits import parse_limits
from wattserve_loadgen.figures.percentiles import percentiles_of
from wattserve_loadgen.figures.slo import goodput_share, parse_objectives
from wattserve_loadgen.model.cells import (
    CellResult,
    Conditions,
    MeterWindow,
    Percentiles,
    Record,
    ServerPart,
    Slices,
)
from wattserve_loadgen.model.server_info import UNSTATED, Standing
from wattserve_loadgen.plan.load import OFFLINE, Load
from wattserve_loadgen.plan.schedule import Cell

if TYPE_CHECKING:  # figures are made where nothing is sent, and grpc is not loaded
    from wattserve_loadgen.drive.job import LoopResult

LAG_LIMIT_NS = 1_000_000
LAG_LIMIT_SHARE = 0.05  # of the median service time
_SHORTEST_SLICE_SECONDS = 0.5
_FEWEST_IN_A_SLICE = 50  # answers, where slices are shorter

Stamps = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CellSamples:
    """Times of a cell's window in nanoseconds, in the order of the schedule, or of sending without one."""

    latency_ns: Stamps  # of the answered; empty for an offline load, which has no latency to speak of
    service_ns: Stamps | None  # of the answered; None in a closed loop, where it is the latency
    lag_ns: Stamps | None  # of all that were sent; None without a schedule
    generated: GeneratedSamples | None = None  # None where nothing was generated


def cell_samples(load: Load, records: Sequence[Record]) -> CellSamples:
    """Of the records of one cell, in the order of sending."""
    window = [record for record in records if record.in_window]
    count = len(window)
    sent = np.fromiter((record.sent_ns for record in window), np.int64, count)
    done = np.fromiter((record.done_ns for record in window), np.int64, count)
    ok = np.fromiter((record.ok for record in window), np.bool_, count)
    service, generated = done - sent, generated_samples(load, window)
    if load.shape == OFFLINE:
        return CellSamples(np.zeros(0, dtype=np.int64), service[ok], None, generated)
    if not load.scheduled:
        return CellSamples(service[ok], None, None, generated)
    due = np.fromiter((record.begun_ns for record in window), np.int64, count)
    order = np.argsort(due, kind="stable")
    sent, done, due, ok = sent[order], done[order], due[order], ok[order]
    return CellSamples((done - due)[ok], (done - sent)[ok], sent - due, generated)


def measure_cell(
    cell: Cell,
    loop: LoopResult,
    records: Sequence[Record],
    growth: account.LedgerGrowth,
    *,
    meter: MeterWindow | None = None,
    objective: str = "",
    stopped: str = "",
    standing: Standing = UNSTATED,
    conditions: Conditions | None = None,
    floors_by_effective: bool = True,
) -> CellResult:
    """`records`: one for each request of `loop`, in its order. `objective`: such as p99<50ms. `stopped`: why
    the cell ended early, or empty. `floors_by_effective`: see `percentiles_of`.
    """
    window = [record for record in records if record.in_window]
    answered = [record for record in window if record.ok]
    failures = [record for record in window if not record.ok]
    seconds = loop.window_s
    ok = np.fromiter((record.ok for record in records), np.bool_, len(records))
    completed = int(np.count_nonzero(ok & loop.done_in_window()))
    samples = cell_samples(cell.load, records)
    energy = account.cell_energy(records, growth, seconds, completed, meter)
    latency = _percentiles(samples.latency_ns, floors_by_effective)
    return CellResult(
        position=cell.position,
        block=cell.block,
        arm=cell.arm.name,
        load=cell.load.name,
        window_seconds=seconds,
        offered_per_second=len(window) / seconds if cell.load.scheduled and seconds > 0 else None,
        sent=len(window),
        answered=len(answered),
        failed=len(failures),
        failures=dict(Counter(record.code for record in failures)),
        failure_example=_example(failures),
        rate_per_second=completed / seconds if seconds > 0 else None,
        latency=latency,
        service=None if samples.service_ns is None else _percentiles(samples.service_ns, floors_by_effective),
        lag=None if samples.lag_ns is None else _percentiles(samples.lag_ns, floors_by_effective),
        late=late_sends(samples),
        within_objective=_within(objective, samples, window) if cell.load.shape != OFFLINE else None,
        client_cpu_seconds=loop.client_cpu_s,
        client_cpu_share=loop.client_cpu_share_max,
        mean_tokens=mean([record.tokens for record in answered if record.tokens is not None]),
        mean_batch_size=mean_batch_size(
            [(record.batch_size, len(record.rows)) for record in answered if record.batch_size]
        ),
        padding_share=padding_share(
            [
                (one.tokens, one.padded_tokens)
                for one in answered
                if one.tokens and one.padded_tokens and one.generation is None  # its steps pad nothing
            ]
        ),
        mean_queue_ns=mean([record.queue_ns for record in answered if record.queue_ns is not None]),
        mean_compute_ns=mean([record.compute_ns for record in answered if record.compute_ns is not None]),
        energy=energy,
        stopped=stopped,
        slices=window_slices(loop, records, ok),
        conditions=conditions,
        proxy=standing.proxy,
        verified=standing.verified,
        generated=measure_generated(
            records,
            samples.generated,
            ended=loop.done_in_window(),
            seconds=seconds,
            active_uj_per_request=energy.active_uj_per_request,
            latency_ns=latency.mean_ns,
            percentiles=lambda values: _percentiles(values, floors_by_effective),
        ),
        servers=[_server_part(address, window, own) for address, own in growth.by_server.items()],
    )


def _server_part(address: str, window: Sequence[Record], growth: account.LedgerGrowth) -> ServerPart:
    own = [record for record in window if record.server == address]
    answered = [record for record in own if record.ok]
    latencies = [record.latency_ns for record in answered]
    return ServerPart(
        address=address,
        answered=len(answered),
        failed=len(own) - len(answered),
        p50_ns=float(np.median(latencies)) if latencies else None,
        active_uj_per_request=mean([one.energy_uj for one in answered if one.energy_uj is not None]),
        measured_uj=growth.measured_uj,
        active_uj=growth.active_uj,
        idle_uj=growth.idle_uj,
        reason=growth.reason,
    )


def lag_limit_ns(service_p50_ns: float | None) -> float:
    """How far behind its schedule a send may be: 1 ms, or 5 % of the median service time (rule 2)."""
    return max(LAG_LIMIT_NS, LAG_LIMIT_SHARE * (service_p50_ns or 0.0))


def late_sends(samples: CellSamples) -> int | None:
    """Requests sent later than that; None without a schedule."""
    if samples.lag_ns is None or samples.service_ns is None:
        return None
    p50 = float(np.median(samples.service_ns)) if len(samples.service_ns) else None
    return int(np.count_nonzero(samples.lag_ns > lag_limit_ns(p50)))


def window_slices(loop: LoopResult, records: Sequence[Record], ok: npt.NDArray[np.bool_]) -> Slices | None:
    """The window in at most 20 slices, each half a second long or of enough answers; None when that leaves
    fewer slices than a trend can be seen in. Latency and energy are of the requests due (without a schedule:
    sent) in a slice.
    """
    seconds = loop.window_s
    counted = loop.in_window() & ok
    most = max(int(seconds / _SHORTEST_SLICE_SECONDS), int(np.count_nonzero(counted)) // _FEWEST_IN_A_SLICE)
    count = min(steady.SLICES, most)
    if seconds <= 0 or count < steady.FEWEST_SLICES:
        return None
    begun = loop.sent_ns if loop.scheduled_ns is None else loop.scheduled_ns
    joules = np.fromiter(
        (np.nan if one.energy_uj is None else one.energy_uj for one in records), np.float64, len(records)
    )
    edges = loop.window_start_ns, loop.window_end_ns, count
    latency = (loop.done_ns - begun)[counted]
    return Slices(
        seconds=seconds / count,
        rate_per_second=_nullable(steady.slice_throughput(loop.done_ns[ok], *edges)),
        p50_ns=_nullable(steady.slice_medians(begun[counted], latency, *edges)),
        active_uj_per_request=_nullable(steady.slice_means(begun[counted], joules[counted], *edges)),
    )


def mean_batch_size(sizes_and_sequences: Sequence[tuple[int, int]]) -> float | None:
    """Mean size of the batches, from the batch size that each request saw and its number of sequences.

    A batch of eight is seen by eight sequences, so each of them stands for 1/8 of a batch.
    """
    if not sizes_and_sequences:
        return None
    sizes, sequences = np.array(sizes_and_sequences, dtype=np.float64).T
    return float(np.sum(sequences) / np.sum(sequences / sizes))


def padding_share(tokens_and_padded: Sequence[tuple[int, int]]) -> float | None:
    """The share of computed token positions that were padding."""
    padded = sum(pair[1] for pair in tokens_and_padded)
    return 1 - sum(pair[0] for pair in tokens_and_padded) / padded if padded else None


def _percentiles(values: Stamps, floors_by_effective: bool) -> Percentiles:
    return percentiles_of(values, effective_samples(values), floors_by_effective=floors_by_effective)


def _within(objective: str, samples: CellSamples, window: Sequence[Record]) -> int | None:
    """Requests of the window within the objective."""
    if not objective:
        return None
    if limits := parse_limits(objective):
        return sum(record.ok and all(limit.holds(record) for limit in limits) for record in window)
    share = goodput_share(parse_objectives(objective), samples.latency_ns, len(window))
    return None if share is None else round(share * len(window))


def _nullable(values: steady.Floats) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _example(failures: Sequence[Record]) -> str:
    if not failures:
        return ""
    return f"{failures[0].code} {failures[0].message or ''}".rstrip()
