"""What this client can send at most, measured against a server that does nothing, and remembered in a file.

The server runs on the same machine and takes CPU time of its own: on few cores the ceiling is that of both
together, which errs on the strict side. A ceiling holds for one machine with one set of versions, one kind of
call, one number of processes and one class of request size; anything else is measured anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from wattserve_common.machine import cpu_model, usable_cores, version_of
from wattserve_loadgen.drive.job import Job, LoopResult
from wattserve_loadgen.drive.null_server import GENERATION, KINDS, PIECES
from wattserve_loadgen.drive.processes import JobRun
from wattserve_loadgen.errors import LoadgenError
from wattserve_loadgen.model.results import Ceiling
from wattserve_loadgen.plan.arrivals import constant
from wattserve_loadgen.plan.load import CONSTANT, Load, closed
from wattserve_loadgen.target.wire import (
    GENERATE,
    MODEL_INFER,
    PREDICT,
    PREDICT_STREAM,
    CallFailure,
    Connection,
)

CONCURRENCIES = (16, 64, 128)
WARMUP_S = 0.2
_WHOLE_S = 3.0
_OPEN_PART = 0.4  # of the time: the open loop at half the ceiling
_LEAST_OPEN = 20  # requests of that loop, however slow the machine
_DEADLINE_S = 10.0
_MOST_PER_SECOND = 100_000
_START_S = 30.0
_METHODS = {"unary": PREDICT, "stream": PREDICT_STREAM, "oip": MODEL_INFER, GENERATION: GENERATE}
_FILE = Path("wattserve") / "loadgen-calibration.json"
_SMALLEST_CLASS_BYTES = 64

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]


class CalibrationError(LoadgenError):
    """The client cannot be measured."""


@dataclass(frozen=True)
class ClientCeiling:
    """Against a server that answers nothing but canned bytes, on the same machine."""

    kind: str  # of `null_server.KINDS`
    processes: _Count
    request_bytes: _Count  # the upper end of the size class, at which it was measured
    concurrency: _Count  # the best of those tried
    requests_per_second: Annotated[float, msgspec.Meta(gt=0)]
    cpu_seconds_per_request: _Amount
    cpu_share: _Amount  # of the busiest process at the ceiling
    half_rate_lag_p50_ns: _Count  # sent - scheduled, in an open loop at half the ceiling
    half_rate_lag_p99_ns: _Count
    half_rate_lag_max_ns: _Count
    measured_unix_seconds: _Count

    def summary(self, tokens: float = 1.0) -> Ceiling:
        """As results keep it. tokens: of the answers to come, where each is a message."""
        longer = tokens / PIECES if self.kind == GENERATION else 1.0
        return Ceiling(
            requests_per_second=self.requests_per_second / longer,
            client_cpu_us_per_request=self.cpu_seconds_per_request * 1e6 * longer,
            request_bytes=self.request_bytes,
            kind=self.kind,
            processes=self.processes,
            measured=datetime.fromtimestamp(self.measured_unix_seconds, UTC).isoformat(),
        )

    def describe(self) -> str:
        """One line for the screen."""
        workers = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return (
            f"this client reaches {self.requests_per_second:,.0f} {self.kind} requests/s of up to"
            f" {self.request_bytes:,} bytes ({workers}, {self.concurrency} in flight,"
            f" {self.cpu_seconds_per_request * 1e6:.0f} µs of client CPU each);"
            f" at half that rate requests leave {self.half_rate_lag_p99_ns / 1e6:.2f} ms late at p99"
        )


@dataclass(frozen=True)
class _Cache:
    """What the file holds."""

    ceilings: dict[str, ClientCeiling]  # by what they depend on, see `_key`
    format: Literal[2] = 2


async def ensure_ceiling(
    kind: str,
    request_bytes: int,
    processes: int = 1,
    *,
    tell: Callable[[str], None],
    file: Path | None = None,
) -> tuple[ClientCeiling, list[str]]:
    """The stored one, or one measured now, and notes for the results. `tell` tells the user what is measured,
    and where it is kept.
    """
    ceiling, note = stored_ceiling(kind, request_bytes, processes, file=file)
    notes = [note]
    if ceiling is None:
        tell(f"measuring first what this client can send at most, which takes {_WHOLE_S:g} s")
        ceiling = await measure_ceiling(kind, request_bytes, processes)
        notes.append(store_ceiling(ceiling, file=file))
        tell(f"{ceiling.describe()}; {notes[-1] or kept_in(file)}")
    return ceiling, list(filter(None, notes))


def kept_in(file: Path | None = None) -> str:
    """For the user, once a ceiling was stored."""
    return f"kept in {file or cache_file()} for the next time"


async def measure_ceiling(
    kind: str, request_bytes: int, processes: int = 1, *, whole_s: float = _WHOLE_S
) -> ClientCeiling:
    """Takes about `whole_s`, and the start of the processes; on a machine so busy that this is too short, as
    long as it needs. `kind` is one of `null_server.KINDS`.
    """
    requests = [bytes(size_class(request_bytes))]
    window_s = whole_s * (1 - _OPEN_PART) / len(CONCURRENCIES)
    async with null_server(kind) as connection:
        best, best_concurrency = None, 0
        for concurrency in CONCURRENCIES:
            most = round((window_s + WARMUP_S) * _MOST_PER_SECOND) * processes
            load, least = closed(concurrency), 2 * concurrency  # so many sent, at least half are answered
            job = Job(connection, requests, load, _DEADLINE_S, WARMUP_S, window_s, most, least)
            result = await _run(job, processes)
            if best is None or result.done_per_second > best.done_per_second:
                best, best_concurrency = result, concurrency
        assert best is not None
        rate = best.done_per_second
        open_s = max(whole_s * _OPEN_PART, _LEAST_OPEN / (rate / 2))
        half = await _run(steady(connection, requests, rate / 2, open_s), processes)
    lag_p50_ns, lag_p99_ns, lag_max_ns = lag_ns(half)
    return ClientCeiling(
        kind=kind,
        processes=processes,
        request_bytes=size_class(request_bytes),
        concurrency=best_concurrency,
        requests_per_second=rate,
        cpu_seconds_per_request=best.client_cpu_s / int(best.done_in_window().sum()),
        cpu_share=best.client_cpu_share_max or 0.0,
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


def steady(connection: Connection, requests: list[bytes], per_second: float, window_s: float) -> Job:
    """Equal distances: what is late is late for the client's reasons."""
    load = Load(CONSTANT, rate=per_second)
    arrivals_ns = constant(per_second, WARMUP_S + window_s)
    return Job(connection, requests, load, _DEADLINE_S, WARMUP_S, window_s, arrivals_ns=arrivals_ns)


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
            line = await asyncio.wait_for(process.stdout.readline(), _START_S)
        if not line.strip().isdigit():
            raise CalibrationError("the null server did not start: is the loopback interface usable?")
        yield Connection(f"127.0.0.1:{int(line)}", _METHODS[kind], stream=kind == "stream")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _run(job: Job, processes: int) -> LoopResult:
    result = await JobRun(job, processes).run()
    failure = next((outcome for outcome in result.outcomes if isinstance(outcome, CallFailure)), None)
    if failure is not None:
        raise CalibrationError(f"the null server failed: {failure.code} {failure.message}; try again")
    if not result.in_window().any():
        raise CalibrationError(
            f"nothing was measured: {result.stopped or 'the time is too short'}; try longer"
        )
    return result


def size_class(request_bytes: int) -> int:
    """`request_bytes` rounded up to a power of two."""
    return max(_SMALLEST_CLASS_BYTES, 1 << max(0, request_bytes - 1).bit_length())


def this_client() -> dict[str, Any]:
    """What a ceiling depends on, as plain JSON values."""
    return {
        "cpu_model": cpu_model(),
        "usable_cpus": usable_cores(),
        "python": platform.python_version(),
        "grpcio": version_of("grpcio"),
        "protobuf": version_of("protobuf"),
        "loadgen": version_of("wattserve"),
    }


def cache_file() -> Path:
    """Where ceilings are kept: in $XDG_CACHE_HOME, or ~/.cache."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (folder if folder.is_absolute() else Path(os.path.expanduser("~/.cache"))) / _FILE


def stored_ceiling(
    kind: str, request_bytes: int, processes: int = 1, *, file: Path | None = None
) -> tuple[ClientCeiling | None, str]:
    """(the one measured earlier or None, a note when the file is of no use)."""
    stored, note = _read(file or cache_file())
    return stored.get(_key(kind, size_class(request_bytes), processes)), note


def store_ceiling(ceiling: ClientCeiling, *, file: Path | None = None) -> str:
    """Replaces the file in one step. Gives back a note when it cannot be written."""
    file = file or cache_file()
    stored, _ = _read(file)
    stored[_key(ceiling.kind, ceiling.request_bytes, ceiling.processes)] = ceiling
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(handle, "w") as writer:
                json.dump(asdict(_Cache(stored)), writer, indent=1)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        return f"the client's ceiling is not kept: {file} cannot be written ({error.strerror})"
    return ""


def _key(kind: str, request_bytes: int, processes: int) -> str:
    asked = {"kind": kind, "request_bytes": request_bytes, "processes": processes}
    return json.dumps(this_client() | asked, sort_keys=True)


def _read(file: Path) -> tuple[dict[str, ClientCeiling], str]:
    """What the file holds, by what it depends on; and a note when that is of no use."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Cache).ceilings, ""
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{file} cannot be read ({error.strerror}): the client's ceiling is measured anew"
    except (ValueError, RecursionError):
        return {}, f"{file} is no calibration of this loadgen and is not used"
