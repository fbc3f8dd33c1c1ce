"""Puts the load of one cell on a server: the schedule, the job, the figures on the screen meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.drive.job import BurstShape, ClosedShape, Job, OpenShape, Shape
from wattserve_loadgen.drive.outcome import LoopResult
from wattserve_loadgen.drive.processes import JobRun
from wattserve_loadgen.plan import arrivals
from wattserve_loadgen.plan.load import CONSTANT, OFFLINE, POISSON, RAMP, Load
from wattserve_loadgen.plan.schedule import Cell, Plan, load_seconds
from wattserve_loadgen.sweeping.progress import Display, Tick
from wattserve_loadgen.sweeping.site import Site

_MOST_PER_SECOND = 25_000  # of each process, above what it can send; arrays are sized by it
_MOST_PER_CELL = 5_000_000
_TICK_SECONDS = 1.0


class Loading:
    """The client's side of a sweep's cells, one at a time. `stop` ends the running one in good order; those
    after it end before they begin.
    """

    def __init__(self, deadline_seconds: float, processes: int, display: Display) -> None:
        self._deadline_seconds, self._processes, self._display = deadline_seconds, processes, display
        self._running: JobRun | None = None
        self._stopped = ""
        self._traces: dict[tuple[str, float], arrivals.Recording] = {}

    def stop(self, reason: str) -> None:
        """What is in flight is still awaited."""
        self._stopped = reason
        if self._running is not None:
            self._running.stop(reason)

    async def run(
        self, plan: Plan, cell: Cell, site: Site, requests: Sequence[bytes], least: int
    ) -> LoopResult:
        """The cell's load, from warm-up to last answer. `least`: requests of a closed loop's window."""
        shape = self._shape(plan, cell, len(requests), least)
        job = Job(site.target.connection, requests, shape, self._deadline_seconds)
        self._running = JobRun(job, self._processes)
        if self._stopped:
            self._running.stop(self._stopped)
        try:
            async with self._ticking(self._running, site):
                return await self._running.run()
        finally:
            self._running = None

    def _shape(self, plan: Plan, cell: Cell, requests: int, least: int) -> Shape:
        load = cell.load
        if load.scheduled:
            return OpenShape(
                self.schedule_of(plan, cell), cell.warmup_seconds, open_window_seconds(plan, cell)
            )
        assert load.concurrency is not None  # held by check_loads
        if load.shape == OFFLINE:
            return BurstShape(load.concurrency, load.concurrency if cell.discarded else requests)
        room = int(load_seconds(cell) * _MOST_PER_SECOND * self._processes) + 2 * least + load.concurrency
        return ClosedShape(
            load.concurrency,
            cell.warmup_seconds,
            cell.seconds,
            capacity=min(_MOST_PER_CELL, room),
            least_requests=least,
        )

    def schedule_of(self, plan: Plan, cell: Cell) -> npt.NDArray[np.int64]:
        """When the requests of an open loop are due, warm-up included: in a block the same for every arm.

        A cell that is not counted has arrivals of its own: a rate that a search tries again has new luck.
        """
        load = cell.load
        seed = f"arrivals:{plan.seed}:{cell.block}:{load.name}"
        if cell.discarded:
            seed += f":{cell.position}"
        seconds = open_window_seconds(plan, cell)
        rate, rate_end = load.rate or 0.0, load.rate_end or 0.0
        whole = cell.warmup_seconds + seconds
        if load.shape == POISSON:
            return arrivals.poisson(rate, whole, seed)
        if load.shape == CONSTANT:
            return arrivals.constant(rate, whole)
        if load.shape == RAMP:
            window = arrivals.ramp(rate, rate_end, seconds, seed)
            if not cell.warmup_seconds:
                return window
            before = arrivals.poisson(rate, cell.warmup_seconds, seed + ":warm-up")
            return np.concatenate([before, window + round(cell.warmup_seconds * 1e9)])
        trace = self._trace(load)
        return arrivals.repeated(trace.offsets_ns, whole)

    @asynccontextmanager
    async def _ticking(self, run: JobRun, site: Site) -> AsyncIterator[None]:
        async def tick() -> None:
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                watts = site.witness.watts()
                self._display.tick(Tick(run.rate_per_second(), run.recent_ns(50), run.recent_ns(99), watts))

        ticking = asyncio.create_task(tick())
        try:
            yield
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking

    def _trace(self, load: Load) -> arrivals.Recording:
        key = load.trace, load.speed
        if key not in self._traces:
            self._traces[key] = arrivals.recorded(Path(load.trace), speed=load.speed)
        return self._traces[key]


def open_window_seconds(plan: Plan, cell: Cell) -> float:
    """How long an open loop's window is: enough for the plan's least requests, and of a constant rate a whole
    number of gaps, so that it offers exactly what was asked for.
    """
    load, seconds = cell.load, cell.seconds
    if load.rate and not cell.discarded:
        seconds = max(seconds, plan.cell_requests() / load.rate)
    if load.rate and load.shape == CONSTANT:
        seconds = max(1, math.ceil(round(seconds * load.rate, 6))) / load.rate
    return seconds
