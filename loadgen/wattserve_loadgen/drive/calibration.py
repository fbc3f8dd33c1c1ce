"""Measures this client's own ceiling against a server that does nothing: `loadgen calibrate`.

The server runs on the same machine and takes CPU time of its own: on few cores the ceiling is that of both
together, which errs on the strict side.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np

from wattserve_loadgen.drive.ceiling import Ceiling, size_class, store_ceiling, stored_ceiling
from wattserve_loadgen.drive.job import ClosedShape, Job, OpenShape, Shape
from wattserve_loadgen.drive.null_server import KINDS
from wattserve_loadgen.drive.outcome import Failure, LoopResult
from wattserve_loadgen.drive.processes import run_job
from wattserve_loadgen.errors import LoadgenError
from wattserve_loadgen.plan.arrivals import constant
from wattserve_loadgen.target.channel import MODEL_INFER, PREDICT, PREDICT_STREAM, Connection

CONCURRENCIES = (16, 64, 128)
_SECONDS = 3.0
_OPEN_PART = 0.4  # of the time: the open loop at half the ceiling
WARMUP_SECONDS = 0.2
_DEADLINE_SECONDS = 10.0
_MOST_PER_SECOND = 100_000
_START_SECONDS = 30.0
_METHODS = {"unary": PREDICT, "stream": PREDICT_STREAM, "oip": MODEL_INFER}


class CalibrationError(LoadgenError):
    """The client cannot be measured."""


async def ensure_ceiling(
    kind: str, request_bytes: int, processes: int = 1, *, file: Path | None = None
) -> tuple[Ceiling, list[str]]:
    """The stored ceiling, or one measured now, and notes for the user."""
    found, note = stored_ceiling(kind, request_bytes, processes, file=file)
    notes = [note] if note else []
    if found is None:
        found = await measure_ceiling(kind, request_bytes, processes)
        if note := store_ceiling(found, file=file):
            notes.append(note)
    return found, notes


async def measure_ceiling(
    kind: str, request_bytes: int, processes: int = 1, *, seconds: float = _SECONDS
) -> Ceiling:
    """Takes about `seconds`, and the start of the processes. `kind` is one of `null_server.KINDS`."""
    requests = [bytes(size_class(request_bytes))]
    each = seconds * (1 - _OPEN_PART) / len(CONCURRENCIES)
    async with null_server(kind) as connection:
        found: dict[int, LoopResult] = {}
        for concurrency in CONCURRENCIES:
            capacity = round((each + WARMUP_SECONDS) * _MOST_PER_SECOND) * processes
            shape = ClosedShape(concurrency, WARMUP_SECONDS, each, capacity)
            found[concurrency] = await _run(connection, requests, shape, processes)
        best = max(found, key=lambda concurrency: found[concurrency].done_per_second)
        rate = found[best].done_per_second
        if rate == 0:
            raise CalibrationError("the null server answered nothing in the time given; try longer")
        half = await _run(connection, requests, steady(rate / 2, seconds * _OPEN_PART), processes)
    at_best = found[best]
    lag_p50_ns, lag_p99_ns, lag_max_ns = lag_ns(half)
    return Ceiling(
        kind=kind,
        processes=processes,
        request_bytes=size_class(request_bytes),
        concurrency=best,
        requests_per_second=rate,
        cpu_seconds_per_request=at_best.client_cpu_seconds / int(at_best.done_in_window().sum()),
        cpu_share=at_best.client_cpu_share_max or 0.0,
        half_rate_lag_p50_ns=lag_p50_ns,
        half_rate_lag_p99_ns=lag_p99_ns,
        half_rate_lag_max_ns=lag_max_ns,
        measured_unix_seconds=int(time.time()),
    )


def lag_ns(result: LoopResult) -> tuple[int, int, int]:
    """p50, p99 and the highest of sent - scheduled, of an open loop's window."""
    assert result.scheduled_ns is not None
    late = (result.sent_ns - result.scheduled_ns)[result.in_window()]
    p50, p99, most = np.percentile(late, [50, 99, 100])
    return round(p50), round(p99), round(most)


def steady(per_second: float, seconds: float) -> OpenShape:
    """Equal distances: what is late is late for the client's reasons. `seconds`: of the window."""
    arrivals_ns = constant(per_second, WARMUP_SECONDS + seconds)
    return OpenShape(arrivals_ns, WARMUP_SECONDS, seconds)


@asynccontextmanager
async def null_server(kind: str) -> AsyncIterator[Connection]:
    """One that answers `kind`, in a process of its own, for as long as the block runs."""
    if kind not in KINDS:
        raise CalibrationError(f"no such kind of call: {kind!r}; choose from {', '.join(KINDS)}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wattserve_loadgen.drive.null_server", kind),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = b""
        with suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
        if not line.strip().isdigit():
            raise CalibrationError("the null server did not start: is the loopback interface usable?")
        yield Connection(f"127.0.0.1:{int(line)}", _METHODS[kind], stream=kind == "stream")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _run(connection: Connection, requests: list[bytes], shape: Shape, processes: int) -> LoopResult:
    result = await run_job(Job(connection, requests, shape, _DEADLINE_SECONDS), processes)
    failure = next((one for one in result.outcomes if isinstance(one, Failure)), None)
    if failure is not None:
        raise CalibrationError(f"the null server failed: {failure.code} {failure.message}; try again")
    if not result.in_window().any():
        raise CalibrationError(
            f"nothing was measured: {result.stopped or 'the time is too short'}; try longer"
        )
    return result
