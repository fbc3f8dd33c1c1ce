"""Runs a job in this process, or shares it out between several that begin at one instant.

Workers are only worth it where `loadgen calibrate` says that one process cannot keep up.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress

from wattserve_loadgen.drive.job import Job, split
from wattserve_loadgen.drive.loop import Loop, percentile_ns
from wattserve_loadgen.drive.messages import TICK_SECONDS, Begin, Stop, Tick, packed, receive
from wattserve_loadgen.drive.outcome import LoopResult, merge
from wattserve_loadgen.errors import LoadgenError
from wattserve_loadgen.target.channel import open_calls

_WORKER = "wattserve_loadgen.drive.worker"
_LEAD_NS = 50_000_000  # from the last worker's readiness to the common start
_START_SECONDS = 60.0
_ERROR_CHARACTERS = 300


class WorkerError(LoadgenError):
    """A worker process could not be started, or died."""


class JobRun:
    """One job. `run` once; `stop`, `rate_per_second` and `recent_ns` as a loop's, at any time."""

    def __init__(self, job: Job, processes: int = 1) -> None:
        self._jobs = split(job, processes) if processes > 1 else [job]
        self._loop: Loop | None = None
        self._workers: list[_Worker] = []
        self._stopped = ""

    async def run(self) -> LoopResult:
        """Raises WorkerError when a worker dies; then, and when it is cancelled, the others are ended too."""
        if len(self._jobs) > 1:
            return await self._run_workers()
        (job,) = self._jobs
        calls, close = open_calls(job.connection, job.slots())
        self._loop = job.make_loop(calls)
        if self._stopped:
            self._loop.stop(self._stopped)
        try:
            return await self._loop.run()
        finally:
            await close()

    def stop(self, reason: str) -> None:
        """Send nothing more; answers in flight are still awaited."""
        self._stopped = self._stopped or reason
        if self._loop is not None:
            self._loop.stop(reason)
        for one in self._workers:
            one.stop(reason)

    def rate_per_second(self) -> float | None:
        """Answers so far in the window; None before it opens."""
        if self._loop is not None:
            return self._loop.rate_per_second()
        rates = [one.tick.rate_per_second for one in self._workers if one.tick is not None]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    def recent_ns(self, percentile: float) -> int | None:
        """Of the recent service times of all processes: for the screen, not for results."""
        if self._loop is not None:
            return self._loop.recent_ns(percentile)
        ticks = [one.tick for one in self._workers if one.tick is not None]
        return percentile_ns([tick.recent_services_ns for tick in ticks], percentile)

    async def _run_workers(self) -> LoopResult:
        try:
            for job in self._jobs:
                self._workers.append(await _Worker.start(job))
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await asyncio.gather(*(one.ready() for one in self._workers))
            except TimeoutError:
                raise WorkerError(
                    f"the worker processes were not ready after {_START_SECONDS:g} s: use fewer of them"
                ) from None
            if self._stopped:
                self.stop(self._stopped)
            begin_ns = time.perf_counter_ns() + _LEAD_NS
            for one in self._workers:
                one.begin(begin_ns)
            return merge(await asyncio.gather(*(self._result_of(one) for one in self._workers)))
        finally:
            for one in self._workers:
                await one.end()

    async def _result_of(self, one: _Worker) -> LoopResult:
        """What ends one early ends all."""
        result = await one.result()
        if result.stopped:
            self.stop(result.stopped)
        return result


async def run_job(
    job: Job, processes: int = 1, on_tick: Callable[[JobRun], None] | None = None
) -> LoopResult:
    """The job from its start to its last answer; `on_tick` is called twice a second, and may `stop` it."""
    run = JobRun(job, processes)

    async def tick(ticked: Callable[[JobRun], None]) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            ticked(run)

    ticking = None if on_tick is None else asyncio.create_task(tick(on_tick))
    try:
        return await run.run()
    finally:
        if ticking is not None:
            ticking.cancel()


class _Worker:
    """A worker process, as seen from outside."""

    def __init__(self, process: Process) -> None:
        self._process = process
        assert process.stderr is not None
        self._complaints = asyncio.create_task(process.stderr.read())
        self.tick: Tick | None = None

    @classmethod
    async def start(cls, job: Job) -> _Worker:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process; it tells the workers
            )
        except OSError as error:
            raise WorkerError(f"a worker process cannot be started: {error}; use fewer of them") from None
        one = cls(process)
        one._tell(job)
        return one

    async def ready(self) -> None:
        await self._receive()

    def begin(self, at_ns: int) -> None:
        self._tell(Begin(at_ns))

    def stop(self, reason: str) -> None:
        self._tell(Stop(reason))

    async def result(self) -> LoopResult:
        while True:
            message = await self._receive()
            if isinstance(message, LoopResult):
                return message
            if isinstance(message, Tick):
                self.tick = message

    async def end(self) -> None:
        """Whatever it does now."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._complaints.cancel()

    def _tell(self, message: object) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # it has died, and `_receive` says so
            self._process.stdin.write(packed(message))

    async def _receive(self) -> object:
        assert self._process.stdout is not None
        try:
            message: object = await receive(self._process.stdout)
        except asyncio.IncompleteReadError:
            raise WorkerError(await self._obituary()) from None
        return message

    async def _obituary(self) -> str:
        code = await self._process.wait()
        end = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        said = (await self._complaints).decode(errors="replace").strip().splitlines()
        last = f": {said[-1][:_ERROR_CHARACTERS]}" if said else ""
        return f"a worker process of loadgen ended {end}{last}; what it had measured is lost"
