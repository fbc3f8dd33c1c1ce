"""Runs one cell: check that the server is the one we know; wait until nothing is pending; load; wait until
the cell's energy is final; make its records and its figures.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from wattserve_client import Receipt
from wattserve_common.dataset import Dataset
from wattserve_loadgen.drive.job import Job, LoopResult, Progress, Stamps
from wattserve_loadgen.drive.processes import JobRun
from wattserve_loadgen.errors import RefusedError, TargetError
from wattserve_loadgen.figures import account
from wattserve_loadgen.figures.measure import measure_cell
from wattserve_loadgen.model.cells import CellResult, Record
from wattserve_loadgen.model.codec import as_stored
from wattserve_loadgen.model.server_info import standing_of
from wattserve_loadgen.plan import arrivals, schedule
from wattserve_loadgen.plan.load import CONSTANT, OFFLINE, POISSON, RAMP, Load
from wattserve_loadgen.plan.schedule import Cell, Plan
from wattserve_loadgen.sweeping.environment import conditions_now
from wattserve_loadgen.sweeping.progress import Display, Tick
from wattserve_loadgen.sweeping.records import make_records, parse
from wattserve_loadgen.sweeping.servers import Site
from wattserve_loadgen.target.fleet import Fleet
from wattserve_loadgen.target.wire import CallFailure

_MOST_PER_SECOND = 25_000  # of each process, above what it can send; arrays are sized by it
_MOST_PER_CELL = 5_000_000
_RETENTION_USED = 0.5  # of what the server keeps of receipts, before they are fetched while they settle
_NOT_ALLOWED = {"PERMISSION_DENIED", "UNAUTHENTICATED"}
_SPREAD = 1.5  # a cell may be faster than its heat-up was
_LOST = "the server was lost before the cell's receipts settled"
_SLACK = 1.1  # of an offline cell, whose length is not known before
_FAST = 3000.0  # requests per second of a cell that has not been seen yet


@dataclass(frozen=True)
class CellOutcome:
    """What a cell left."""

    records: list[Record]
    result: CellResult | None  # None: its window did not open


class CellLost(TargetError):
    """The server went away in a cell, or is another one since; its cause says which."""

    def __init__(self, text: str, outcome: CellOutcome) -> None:
        super().__init__(text)
        self.outcome = outcome  # what there is


class CellRunner:
    """Runs the cells of one plan against its sites, one at a time."""

    def __init__(
        self,
        plan: Plan,
        dataset: Dataset,
        sites: dict[str, Site],
        display: Display,
        origin_ns: int,
        *,
        deadline_s: float,
        processes: int,
    ) -> None:
        self.plan = plan
        self._dataset, self._sites, self._display, self._origin_ns = dataset, sites, display, origin_ns
        self._deadline_s, self._processes = deadline_s, processes
        self._lengths = len(set(dataset.lengths.tolist()))
        self._rates: dict[tuple[str, str], float] = {}  # the highest seen, by arm and load
        self._running: JobRun | None = None
        self._stopped = ""

    def stop(self, reason: str) -> None:
        """End the running cell in good order; those after it end before they begin."""
        self._stopped = reason
        if self._running is not None:
            self._running.stop(reason)

    async def heat_up(self, cell: Cell) -> None:
        """A cell that is not counted. A closed loop meets a row of every length before it ends. It runs once
        more where nothing was answered, as by an engine that is slow the first time.
        """
        loop = await self.trial(cell)
        if all(isinstance(outcome, CallFailure) for outcome in loop.outcomes):
            await self.trial(cell)

    async def trial(self, cell: Cell) -> LoopResult:
        """Load without accounts. Raises TargetError when the server is lost before its end, and RefusedError
        when it takes no requests of this key."""
        site = self._sites[cell.arm.target]
        await site.check()
        await site.witness.before()
        async with site.witness.watching(harvest=False):
            loop = await self._load(cell, site, self._groups(cell), self._lengths)
        await site.check()
        for outcome in loop.outcomes:
            if isinstance(outcome, CallFailure) and outcome.code in _NOT_ALLOWED:
                raise RefusedError(outcome.server or site.target.address, outcome.code, outcome.message)
        return loop

    async def run(self, cell: Cell) -> CellOutcome:
        """A cell that counts. Raises CellLost when the server is lost in it, and TargetError when it is lost
        before any load is on it.
        """
        site, variant = self._sites[cell.arm.target], cell.arm.variant
        await site.check()
        await site.witness.before()
        conditions = conditions_now()
        groups = self._groups(cell)
        async with site.witness.watching(harvest=self._outlives_receipts(cell, site)):
            loop = await self._load(cell, site, groups, self.plan.cell_requests())
        answers = parse(loop.outcomes, variant, site.target.read)
        servers = site.target.servers_of(loop.outcomes) if isinstance(site.target, Fleet) else []
        start, end = self._seconds(loop.window_start_ns), self._seconds(loop.window_end_ns)
        lost: TargetError | None = None
        receipts: dict[str, Receipt] = {}
        growth = account.LedgerGrowth(reason=_LOST, method=site.witness.method)
        try:
            await site.check()
            receipts, growth = await site.witness.after(variant, answers, start, end, servers)
        except TargetError as error:
            lost = error
        records = make_records(cell, self._dataset, groups, loop, answers, receipts, self._origin_ns, servers)
        result = None
        if loop.window_start_ns:
            about = next(each for each in site.info.variants if each.name == variant)
            result = measure_cell(
                cell,
                loop,
                records,
                growth,
                meter=site.witness.window(variant, start, end) if end > start else None,
                objective=self.plan.objective,
                stopped=loop.stopped or ("" if lost is None else str(lost)),
                standing=standing_of(as_stored(about)),
                conditions=conditions,
                floors_by_effective=self.plan.withholds,
            )
            result = replace(result, window_start_seconds=start)
        if lost is not None:
            raise CellLost(str(lost), CellOutcome(records, result)) from lost
        return CellOutcome(records, result)

    async def _load(self, cell: Cell, site: Site, groups: list[list[int]], least: int) -> LoopResult:
        """From warm-up to last answer. `least`: requests of a closed loop's window."""

        def show(progress: Progress) -> None:
            p50_ns, p99_ns = progress.percentile_ns(50), progress.percentile_ns(99)
            self._display.tick(Tick(progress.rate_per_second, p50_ns, p99_ns, site.witness.watts()))

        requests = site.target.make_requests(self._dataset, groups, cell.arm.variant)
        job = self._shaped(Job(site.target.connection, requests, cell.load, self._deadline_s), cell, least)
        self._running = JobRun(job, self._processes, show)
        if self._stopped:
            self._running.stop(self._stopped)
        try:
            loop = await self._running.run()
        finally:
            self._running = None
        if loop.window_s > 0:
            key = cell.arm.name, cell.load.name
            self._rates[key] = max(loop.done_per_second, self._rates.get(key, 0.0))
        return loop

    def _shaped(self, job: Job, cell: Cell, least: int) -> Job:
        """The job with its instants and its number of requests."""
        load = cell.load
        if load.scheduled:
            return replace(
                job,
                warmup_s=cell.warmup_seconds,
                window_s=open_window_s(self.plan, cell),
                arrivals_ns=schedule_of(self.plan, cell),
            )
        assert load.concurrency is not None  # held by check_loads
        if load.shape == OFFLINE:
            return replace(job, most_requests=load.concurrency if cell.discarded else len(job.requests))
        sendable = int(schedule.load_seconds(cell) * _MOST_PER_SECOND * self._processes)
        return replace(
            job,
            warmup_s=cell.warmup_seconds,
            window_s=cell.seconds,
            most_requests=min(_MOST_PER_CELL, sendable + 2 * least + load.concurrency),
            least_requests=least,
        )

    def _groups(self, cell: Cell) -> list[list[int]]:
        """The rows of each request, in the order of sending."""
        order = schedule.row_order(self.plan, cell.block, len(self._dataset.rows))
        if cell.discarded:
            order = _every_length_first(order, self._dataset.lengths.tolist())
        groups = schedule.row_groups(order, cell.load.sequences)
        if cell.load.shape == OFFLINE and not cell.discarded:
            rate = self._rates.get((cell.arm.name, cell.load.name), 0.0)
            wanted = max(self.plan.cell_requests(), math.ceil(rate * cell.seconds * _SLACK))
            groups = groups * max(1, -(-wanted // len(groups)))
        return groups

    def _outlives_receipts(self, cell: Cell, site: Site) -> bool:
        """Whether the server might forget the cell's first receipts before its last are asked for."""
        limits = site.info.limits
        rate = cell.load.rate or self._rates.get((cell.arm.name, cell.load.name), _FAST) * _SPREAD
        load_s = schedule.load_seconds(cell)
        count = max(rate * load_s, float(self.plan.cell_requests()))
        many = limits.receipt_retention_count
        long = limits.receipt_retention_seconds
        return bool((many and count > many * _RETENTION_USED) or (long and load_s > long * _RETENTION_USED))

    def _seconds(self, stamp_ns: int) -> float:
        return (stamp_ns - self._origin_ns) / 1e9 if stamp_ns else 0.0


def schedule_of(plan: Plan, cell: Cell) -> Stamps:
    """When the requests of an open loop are due, warm-up included: in a block the same for every arm.

    A cell that is not counted has arrivals of its own: a rate that a search tries again has new luck.
    """
    load = cell.load
    seed = f"arrivals:{plan.seed}:{cell.block}:{load.name}"
    if cell.discarded:
        seed += f":{cell.position}"
    window_s = open_window_s(plan, cell)
    rate, rate_end = load.rate or 0.0, load.rate_end or 0.0
    whole_s = cell.warmup_seconds + window_s
    if load.shape == POISSON:
        return arrivals.poisson(rate, whole_s, seed)
    if load.shape == CONSTANT:
        return arrivals.constant(rate, whole_s)
    if load.shape == RAMP:
        window = arrivals.ramp(rate, rate_end, window_s, seed)
        if not cell.warmup_seconds:
            return window
        before = arrivals.poisson(rate, cell.warmup_seconds, seed + ":warm-up")
        return np.concatenate([before, window + round(cell.warmup_seconds * 1e9)])
    return arrivals.repeated(_recorded(load).offsets_ns, whole_s)


@lru_cache(maxsize=8)
def _recorded(load: Load) -> arrivals.RecordedArrivals:
    """Read once for all cells of a load."""
    return arrivals.recorded(Path(load.trace), speed=load.speed)


def open_window_s(plan: Plan, cell: Cell) -> float:
    """How long an open loop's window is: enough for the plan's least requests, and of a constant rate a whole
    number of gaps, so that it offers exactly what was asked for.
    """
    load, window_s = cell.load, cell.seconds
    if load.rate and not cell.discarded:
        window_s = max(window_s, plan.cell_requests() / load.rate)
    if load.rate and load.shape == CONSTANT:
        window_s = max(1, math.ceil(round(window_s * load.rate, 6))) / load.rate
    return window_s


def _every_length_first(order: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """One row of each length, then the others: a server prepares itself for shapes."""
    first: dict[int, int] = {}
    for row in order:
        first.setdefault(lengths[row], row)
    ahead = list(first.values())
    random.Random("heat-up").shuffle(ahead)
    taken = set(ahead)
    return ahead + [row for row in order if row not in taken]
