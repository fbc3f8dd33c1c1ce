"""Runs a job in this process, or shares it out between several that begin at one instant.

Workers are only worth it where `loadgen calibrate` says that one process cannot keep up. A worker and the
process that started it tell each other pickles, each after its length: both ends are this program, on this
machine, and nobody else can write into the pipes between them.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from wattserve_loadgen.drive.closed import Burst, ClosedLoop
from wattserve_loadgen.drive.job import Job, LoopResult, Progress, join_progress, merge, split
from wattserve_loadgen.drive.loop import Loop
from wattserve_loadgen.drive.open import OpenLoop
from wattserve_loadgen.errors import LoadgenError
from wattserve_loadgen.plan.load import CLOSED, OFFLINE
from wattserve_loadgen.target.wire import open_calls

_LOOPS: dict[str, type[Loop]] = {CLOSED: ClosedLoop, OFFLINE: Burst}  # every other shape has a schedule
_WORKER = "from wattserve_loadgen.drive.processes import work; work()"
_LENGTH = struct.Struct("<Q")
_TOLD_EVERY_S = 0.5
_SHOWN_EVERY_S = 1.0
_LEAD_NS = 50_000_000  # from the last worker's readiness to the common start
_START_S = 60.0
_ERROR_CHARACTERS = 300


class WorkerError(LoadgenError):
    """A worker process could not be started, or died."""


class JobRun:
    """One job, which runs once. `on_progress` is called now and then while it does, and may `stop` it."""

    def __init__(
        self, job: Job, processes: int = 1, on_progress: Callable[[Progress], None] | None = None
    ) -> None:
        self._jobs = split(job, processes) if processes > 1 else [job]
        self._on_progress = on_progress
        self._loop: Loop | None = None
        self._workers: list[_Worker] = []
        self._stopped = ""

    async def run(self) -> LoopResult:
        """From the first request to the last answer.

        Raises WorkerError when a worker dies; then, and when it is cancelled, the others are ended too.
        """
        showing = asyncio.create_task(self._show())
        try:
            return await (self._run_workers() if len(self._jobs) > 1 else self._run_here())
        finally:
            showing.cancel()

    def stop(self, reason: str) -> None:
        """Send nothing more, from now or from the start on; answers in flight are still awaited."""
        self._stopped = self._stopped or reason
        if self._loop is not None:
            self._loop.stop(reason)
        for worker in self._workers:
            worker.tell(reason)

    def progress(self) -> Progress:
        """As last told by the workers, where there are any."""
        if self._loop is not None:
            return self._loop.progress()
        return join_progress([worker.progress for worker in self._workers if worker.progress is not None])

    async def _show(self) -> None:
        while self._on_progress is not None:
            await asyncio.sleep(_SHOWN_EVERY_S)
            self._on_progress(self.progress())

    async def _run_here(self) -> LoopResult:
        self._loop, close = open_loop(self._jobs[0])
        if self._stopped:
            self._loop.stop(self._stopped)
        try:
            return await self._loop.run()
        finally:
            await close()

    async def _run_workers(self) -> LoopResult:
        try:
            for job in self._jobs:
                self._workers.append(await _Worker.start(job))
            try:
                async with asyncio.timeout(_START_S):
                    await asyncio.gather(*(worker.receive() for worker in self._workers))  # it is ready
            except TimeoutError:
                raise WorkerError(
                    f"the worker processes were not ready after {_START_S:g} s: use fewer of them"
                ) from None
            if self._stopped:
                self.stop(self._stopped)
            begin_ns = time.perf_counter_ns() + _LEAD_NS
            for worker in self._workers:
                worker.tell(begin_ns)
            return merge(await asyncio.gather(*(self._result_of(worker) for worker in self._workers)))
        finally:
            for worker in self._workers:
                await worker.end()

    async def _result_of(self, worker: _Worker) -> LoopResult:
        """What ends one early ends all."""
        result = await worker.result()
        if result.stopped:
            self.stop(result.stopped)
        return result


def open_loop(job: Job) -> tuple[Loop, Callable[[], Awaitable[None]]]:
    """The loop of a job, on connections of its own, and what closes them."""
    calls, close = open_calls(job.connection, job.slots)
    return _LOOPS.get(job.load.shape, OpenLoop)(job, calls), close


class _Worker:
    """A worker process, as seen from outside."""

    def __init__(self, process: Process) -> None:
        self._process = process
        assert process.stderr is not None
        self._complaints = asyncio.create_task(process.stderr.read())
        self.progress: Progress | None = None  # since its load began

    @classmethod
    async def start(cls, job: Job) -> _Worker:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process; it tells the workers
            )
        except OSError as error:
            raise WorkerError(f"a worker process cannot be started: {error}; use fewer of them") from None
        worker = cls(process)
        worker.tell(job)
        return worker

    def tell(self, message: Job | int | str) -> None:
        """Its job, then the instant to begin, by `time.perf_counter_ns`; any time, why to stop."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # it has died, and `receive` says so
            self._process.stdin.write(_packed(message))

    async def receive(self) -> Progress | LoopResult:
        assert self._process.stdout is not None
        try:
            message: Progress | LoopResult = await _receive(self._process.stdout)
        except asyncio.IncompleteReadError:
            raise WorkerError(await self._obituary()) from None
        return message

    async def result(self) -> LoopResult:
        while not isinstance(message := await self.receive(), LoopResult):
            self.progress = message
        return message

    async def end(self) -> None:
        """Whatever it does now."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._complaints.cancel()

    async def _obituary(self) -> str:
        code = await self._process.wait()
        end = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        said = (await self._complaints).decode(errors="replace").strip().splitlines()
        last = f": {said[-1][:_ERROR_CHARACTERS]}" if said else ""
        return f"a worker process of loadgen ended {end}{last}; what it had measured is lost"


def work() -> None:
    """A worker process, from inside: it says how it goes, the first time when it is ready, and its result.

    When its standard input ends, whoever started it is gone, and it ends too.
    """
    try:
        asyncio.run(_work())
    except asyncio.IncompleteReadError:
        raise SystemExit(1) from None


async def _work() -> None:
    inbox = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(inbox), sys.stdin.buffer
    )
    outbox = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no message

    def say(message: Progress | LoopResult) -> None:
        outbox.write(_packed(message))
        outbox.flush()

    loop, close = open_loop(await _receive(inbox))
    say(loop.progress())
    while isinstance(begin_ns := await _receive(inbox), str):
        loop.stop(begin_ns)

    async def obey() -> None:
        try:
            while True:
                loop.stop(await _receive(inbox))
        except asyncio.IncompleteReadError:
            os._exit(1)  # nobody is left to tell

    async def report() -> None:
        while True:
            await asyncio.sleep(_TOLD_EVERY_S)
            say(loop.progress())

    obeying, reporting = asyncio.create_task(obey()), asyncio.create_task(report())
    result = await loop.run(begin_ns)
    reporting.cancel()
    say(result)
    obeying.cancel()
    await close()


def _packed(message: Any) -> bytes:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


async def _receive(reader: asyncio.StreamReader) -> Any:
    """The next message; IncompleteReadError when the other side has ended."""
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(size))
