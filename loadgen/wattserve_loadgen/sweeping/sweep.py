"""Runs a plan against a server: cell after cell, with everything measured on disk before the next one starts.

A cell: check that the server is the one we started with; wait until nothing is pending; read the ledger;
load; fetch the receipts once they are final; read the ledger again; write. It knows no percentile and no
HTML.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattserve_loadgen import words
from wattserve_loadgen.data.dataset import Dataset
from wattserve_loadgen.data.dataset import load as load_dataset
from wattserve_loadgen.drive.closed import ClosedLoop, LoopResult
from wattserve_loadgen.errors import TargetError
from wattserve_loadgen.figures import account, measure
from wattserve_loadgen.figures.points import make_points, measure_accuracy
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.plan.schedule import Cell, Plan
from wattserve_loadgen.results.folder import ResultsFolder
from wattserve_loadgen.results.schema import Accuracy, CellResult, Record, Results
from wattserve_loadgen.results.standing import remarks, standing_of
from wattserve_loadgen.sweeping import preflight
from wattserve_loadgen.sweeping.progress import Display
from wattserve_loadgen.target import answers
from wattserve_loadgen.target.native import Target, connected
from wattserve_proto.v1 import inference_pb2 as pb

_CONNECT_SECONDS = 10.0
_TICK_SECONDS = 1.0
_SETTLING_MARGIN_SECONDS = 10.0
_SETTLING_DEFAULT_SECONDS = 30.0
_MOST_PER_SECOND = 12_000  # above what a Python client can send; arrays are sized by it
_MOST_PER_CELL = 5_000_000
_RETENTION_USED = 0.9  # of the receipts that the server keeps


@dataclass(frozen=True)
class SweepOptions:
    """What the user asked for; None: the preset's or the server's own."""

    target: str
    dataset: Path
    out: Path
    preset: str
    variants: tuple[str, ...] | None
    concurrencies: tuple[int, ...] | None
    blocks: int | None
    seconds: float | None
    seed: int
    deadline_seconds: float
    force: bool
    command: tuple[str, ...]


async def run_sweep(options: SweepOptions, display: Display) -> Results:
    """Checks, then every cell. If something ends it early, the results so far are written and returned."""
    dataset = load_dataset(options.dataset)
    folder = ResultsFolder(options.out, force=options.force)
    async with connected(options.target) as target:
        info = await target.server_info(_CONNECT_SECONDS)
        plan = schedule.make_plan(
            options.preset,
            preflight.choose_variants(info, options.variants),
            concurrencies=options.concurrencies,
            blocks=options.blocks,
            seconds=options.seconds,
            seed=options.seed,
        )
        preflight.check(info, plan, dataset)
        folder.start()
        return await _Sweep(options, plan, dataset, folder, target, info, display).run()


class _Sweep:
    """The state of one sweep between its cells."""

    def __init__(
        self,
        options: SweepOptions,
        plan: Plan,
        dataset: Dataset,
        folder: ResultsFolder,
        target: Target,
        info: pb.ServerInfo,
        display: Display,
    ) -> None:
        self._options, self._plan, self._dataset = options, plan, dataset
        self._folder, self._target, self._info, self._display = folder, target, info, display
        self._rows = answers.serialise_rows(dataset)
        self._origin_ns = time.perf_counter_ns()
        self._latencies: dict[int, npt.NDArray[np.int64]] = {}
        self._predictions: dict[str, dict[int, list[int | None]]] = defaultdict(dict)
        self._loop: ClosedLoop | None = None
        self._interrupted = False
        self._metered = preflight.is_metered(info)
        limit = info.limits.settlement_limit_seconds or _SETTLING_DEFAULT_SECONDS
        self._settling_seconds = limit + _SETTLING_MARGIN_SECONDS
        self._results = preflight.empty_results(info, plan, dataset, options.target, options.command)

    async def run(self) -> Results:
        cells = schedule.cells(self._plan)
        self._save()
        self._display.say(self._first_line(cells))
        for remark in remarks(self._results.server["variants"], self._plan.variants):
            self._display.say(remark)
        self._display.begin(cells)
        self._catch_signals()
        try:
            ended = await self._run_cells(cells)
        finally:
            self._release_signals()
            self._display.end()
        self._results = replace(self._results, ended=ended)
        self._save()
        return self._results

    async def _run_cells(self, cells: Sequence[Cell]) -> str:
        """How the sweep ended."""
        for cell in cells:
            if self._interrupted:
                break
            self._display.cell_started(cell)
            try:
                result = await self._run_cell(cell)
            except TargetError as error:
                return f"the server was lost: {error}"
            self._display.cell_done(cell, result)
        return "interrupted by the user" if self._interrupted else "complete"

    async def _run_cell(self, cell: Cell) -> CellResult | None:
        """None when the cell is not counted: heat-up, or ended before its window opened."""
        info = await self._target.server_info()
        if info.instance_id != self._info.instance_id:
            raise TargetError(f"{self._target.address} is another server now: it was restarted or replaced")
        before = await self._target.quiet_report(self._settling_seconds)
        order = schedule.row_order(self._plan, cell.block, len(self._rows))
        loop = await self._load(cell, answers.make_requests(self._rows, order, cell.variant))
        if cell.discarded:
            return None
        parsed = answers.parse(loop.outcomes, cell.variant)
        receipts: dict[str, pb.Receipt] = {}
        lost = None
        stopped = loop.stopped
        try:
            if self._metered:
                waiting = answers.unsettled_ids(parsed)
                receipts = await self._target.final_receipts(waiting, self._settling_seconds)
            after = await self._target.quiet_report(self._settling_seconds)
            growth = self._growth(before, after, cell.variant)
        except TargetError as error:
            lost = error
            stopped = stopped or str(error)
            growth = account.unknown_growth("the server was lost before the cell's receipts settled")
        records = answers.make_records(cell, self._dataset, order, loop, parsed, receipts, self._origin_ns)
        self._folder.add_records(records)
        result = None
        if loop.window_start_ns:
            self._note_variants(info)
            about = standing_of(self._results.server["variants"], cell.variant)
            result = measure.measure_cell(cell, loop, records, growth, stopped, about)
            self._keep(cell, result, records)
        if lost is not None:
            raise lost
        return result

    def _growth(self, before: pb.EnergyReport, after: pb.EnergyReport, variant: str) -> account.LedgerGrowth:
        device = next((one.device for one in self._info.variants if one.name == variant), "")
        then, now = account.ledger_of(before, device), account.ledger_of(after, device)
        return account.ledger_growth(then, now, variant)

    def _note_variants(self, info: pb.ServerInfo) -> None:
        """Keep the variants as the server describes them now: one that was not loaded at first is now."""
        server = self._results.server | {"variants": preflight.plain_variants(info)}
        self._results = replace(self._results, server=server)

    async def _load(self, cell: Cell, requests: Sequence[bytes]) -> LoopResult:
        capacity = min(_MOST_PER_CELL, int(schedule.load_seconds(cell) * _MOST_PER_SECOND) + cell.concurrency)
        reason, kept = "", self._info.limits.receipt_retention_count
        if self._metered and 0 < kept * _RETENTION_USED < capacity:
            capacity = max(1, int(kept * _RETENTION_USED))
            reason = f": the server keeps {kept} receipts"
        self._loop = ClosedLoop(
            self._target.calls(cell.concurrency),
            requests,
            warmup_seconds=cell.warmup_seconds,
            seconds=cell.seconds,
            deadline_seconds=self._options.deadline_seconds,
            capacity=capacity,
            capacity_reason=reason,
        )
        ticking = asyncio.create_task(self._tick(self._loop))
        try:
            return await self._loop.run()
        finally:
            self._loop = None
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking

    async def _tick(self, loop: ClosedLoop) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._display.tick(loop.rate_per_second(), loop.recent_p50_ns())

    def _keep(self, cell: Cell, result: CellResult, records: Sequence[Record]) -> None:
        self._latencies[cell.position] = measure.window_latencies(records)
        for record in records:
            if record.ok and record.in_window:
                self._predictions[cell.variant].setdefault(record.row, []).append(record.predicted)
        kept = [*self._results.cells, result]
        rows, accuracy = 0, dict[str, Accuracy]()
        if not self._results.accuracy_reason:
            rows, accuracy = measure_accuracy(self._predictions, self._dataset.labels)
        period = preflight.sensor_period_seconds(self._info)
        self._results = replace(
            self._results,
            cells=kept,
            points=make_points(self._plan, kept, self._latencies, period),
            accuracy_rows=rows,
            accuracy=accuracy,
            energy_reason=self._energy_reason(kept),
        )
        self._save()

    def _energy_reason(self, kept: Sequence[CellResult]) -> str:
        """Why the whole sweep has no joules, or ""."""
        if any(cell.energy.active_uj_per_request is not None for cell in kept):
            return ""
        return kept[0].energy.reason if kept else "nothing was measured"

    def _save(self) -> None:
        self._folder.write(self._results)

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)

    def _release_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        """The first signal ends the cell in good order; the next one ends the process."""
        self._release_signals()
        self._interrupted = True
        self._display.say("stopping: the running cell ends and its energy is settled; again to stop at once")
        if self._loop is not None:
            self._loop.stop("interrupted by the user")

    def _first_line(self, cells: Sequence[Cell]) -> str:
        plan = self._plan
        seconds = sum(schedule.load_seconds(cell) for cell in cells)
        counted = sum(not cell.discarded for cell in cells)
        loads = ", ".join(map(str, plan.concurrencies))
        return (
            f"{self._info.model_name} at {self._target.address}: {', '.join(plan.variants)}"
            f" at concurrency {loads}; a heat-up block, then {plan.blocks} blocks of"
            f" {counted // plan.blocks} cells of {plan.seconds:g} s: {words.duration(seconds)} of load,"
            " and some settling"
        )
