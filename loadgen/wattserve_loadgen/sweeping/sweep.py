"""Runs a plan against its servers: cell after cell, with everything measured on disk before the next one
starts. It knows no percentile and no HTML.
"""

from __future__ import annotations

import math
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from wattserve_loadgen.data.dataset import Dataset
from wattserve_loadgen.data.dataset import load as load_dataset
from wattserve_loadgen.drive.outcome import LoopResult
from wattserve_loadgen.drive.processes import WorkerError
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.plan import budget, schedule
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.plan.plan_file import write_plan
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.results.folder import PLAN_FILE, READINGS_FILE, ResultsFolder, read_records
from wattserve_loadgen.results.parquet import write_parquet
from wattserve_loadgen.results.schema import Results
from wattserve_loadgen.results.sensor import sensor_period_seconds
from wattserve_loadgen.results.standing import remarks
from wattserve_loadgen.results.validate import validate_folder
from wattserve_loadgen.sweeping import beginning, opening, preflight
from wattserve_loadgen.sweeping.cell_run import CellLost, CellRunner, Ran
from wattserve_loadgen.sweeping.clock_watch import ClockWatch
from wattserve_loadgen.sweeping.gathering import Gathering
from wattserve_loadgen.sweeping.live import LiveMetrics
from wattserve_loadgen.sweeping.loading import Loading
from wattserve_loadgen.sweeping.patience import INTERRUPTED, Patience, SweepOver
from wattserve_loadgen.sweeping.progress import Display, Several
from wattserve_loadgen.sweeping.readings import last_instant
from wattserve_loadgen.sweeping.searching import Searching, loads_found
from wattserve_loadgen.sweeping.signals import first_signal
from wattserve_loadgen.sweeping.site import Site
from wattserve_loadgen.sweeping.sweep_clock import SweepClock


async def run_sweep(options: SweepOptions, display: Display) -> Results | None:
    """Checks, then every cell. If something ends it early, the results so far are written and returned.
    None for a dry run.
    """
    dataset = load_dataset(options.dataset)
    async with AsyncExitStack() as stack:
        if options.metrics_port is not None and not options.dry_run:
            live = LiveMetrics(options.metrics_port)
            stack.callback(live.close)
            display = Several(display, live)
            display.say(f"metrics of the running cell: http://127.0.0.1:{live.port}/metrics")
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadgen-")))
        clock = SweepClock()
        sites = await opening.open_sites(options, stack, scratch, clock)
        plan = opening.plan_of(options, sites, dataset)
        left_out: list[str] = []
        search_seconds = math.inf
        if options.budget_seconds is not None:
            plan, left_out, search_seconds = opening.fit_budget(
                plan, options.budget_seconds, find_max=options.find_max
            )
        if options.dry_run:
            display.say(
                budget.describe(plan, aside_seconds_per_cell=opening.ASIDE_SECONDS, left_out=left_out)
            )
            return None
        folder = ResultsFolder(options.out, force=options.force, resume=options.resume)
        before = folder.resume() if options.resume else None
        if before is not None:
            beginning.check_same_sweep(before, options, plan, dataset, sites)
            plan = before.plan
        ceilings, notes = await opening.ceilings_of(options, plan, sites, dataset)
        if before is None:
            folder.start()
            results = beginning.first_results(options, plan, sites, dataset, ceilings)
        else:
            folder.go_on(before)
            results = beginning.resumed_results(before, sites, ceilings)
        results = replace(results, notes=list(dict.fromkeys([*results.notes, *left_out, *notes])))
        folder.write_text(PLAN_FILE, write_plan(options, plan))
        periods = {arm.name: sensor_period_seconds(sites[arm.target].witness.meter()) for arm in plan.arms}
        gathering = Gathering(results, dataset, folder, periods, ceilings)
        if before is not None:
            last_ns = gathering.restore(read_records(folder.path))
            last_reading_ns = round(last_instant(folder.path / READINGS_FILE) * 1e9)
            clock.continue_after(max(last_ns, last_reading_ns))
        sweep = _Sweep(options, dataset, sites, gathering, folder, clock, display)
        return await sweep.run(search_seconds)


class _Sweep:
    """The state of one sweep between its cells."""

    def __init__(
        self,
        options: SweepOptions,
        dataset: Dataset,
        sites: dict[str, Site],
        gathering: Gathering,
        folder: ResultsFolder,
        clock: SweepClock,
        display: Display,
    ) -> None:
        self._options, self._dataset, self._sites = options, dataset, sites
        self._gathering, self._folder, self._clock, self._display = gathering, folder, clock, display
        self._loading = Loading(options.deadline_seconds, options.processes, display)
        self._wall = ClockWatch()
        self._cells: list[Cell] = []
        self._interrupted = False
        self._runner = self._make_runner()
        self._patience = Patience(
            options.wait_for_server_seconds,
            self._is_interrupted,
            self._heat_up,
            display.say,
            gathering.note,
        )

    async def run(self, search_seconds: float) -> Results:
        """`search_seconds`: the most that a search may take."""
        self._gathering.refresh()
        for line in beginning.first_lines(self._gathering.results, self._sites):
            self._display.say(line)
        try:
            with first_signal(self._interrupt):
                ended = await self._run_all(search_seconds)
        except SweepOver as over:
            ended = over.ended
        except WorkerError as error:
            ended = f"a process of the client was lost: {error}"
        except ResultsError as error:
            raise ResultsError(
                f"{error}; the finished cells are kept: go on with --resume once that is repaired"
            ) from None
        finally:
            self._display.end()
        for name, site in self._sites.items():  # a variant that was loaded late says more by now
            variants = opening.variants_on(self._gathering.plan.arms, name)
            self._gathering.remark(remarks(preflight.plain_variants(site.info), variants))
        results = replace(self._gathering.results, ended=ended)
        self._folder.write(results)
        results = replace(results, checks=validate_folder(self._folder.path))
        self._folder.write(results)
        if self._options.parquet:
            write_parquet(self._folder.path)
        return results

    async def _run_all(self, search_seconds: float) -> str:
        """How the sweep ended; or SweepOver."""
        if self._options.find_max and not _searched(self._gathering.results):
            await self._search(search_seconds)
        self._cells = schedule.cells(self._gathering.plan)
        self._display.begin(self._cells)
        done = {cell.position for cell in self._gathering.results.cells}
        for cell in self._cells:
            if self._interrupted:
                break
            if cell.position in done:
                self._display.cell_passed(cell)
            else:
                await self._run_cell(cell)
        whole = sum(not cell.stopped for cell in self._gathering.results.cells)
        missing = self._gathering.results.cells_planned - whole
        if self._interrupted and (missing or not self._cells):
            return INTERRUPTED
        if missing:
            return f"{missing} cells ended early: their points are in the results, with a verdict"
        return "complete" if self._cells else "no search found a rate within the objective"

    async def _run_cell(self, cell: Cell) -> None:
        """One in which the server was lost, and came back, runs again."""
        site = self._sites[cell.arm.target]

        async def run() -> Ran | None:
            self._display.cell_started(cell)
            if cell.discarded:
                await self._runner.heat_up(cell)
                return None
            return await self._runner.run(cell)

        block = "the heat-up block" if cell.discarded else f"block {cell.block}"
        what = f"{cell.arm.name} under {cell.load.name} in {block}"
        try:
            ran = await self._patience.see_through(site, what, run)
        except SweepOver as over:
            if isinstance(over.__cause__, CellLost):
                self._keep(over.__cause__.ran, site)
            raise
        if ran is not None:
            self._keep(ran, site)
        self._display.cell_done(cell, ran.result if ran else None)
        if step := self._wall.step():
            self._gathering.note(step)

    async def _heat_up(self, site: Site) -> None:
        """Every arm of a server."""
        for cell in self._cells:
            if cell.discarded and cell.arm.target == site.name:
                await self._runner.heat_up(cell)

    def _keep(self, ran: Ran, site: Site) -> None:
        self._gathering.keep(ran.result, ran.records, site.witness.readings(), site.summary())

    async def _search(self, limit_seconds: float) -> None:
        """Find each arm's rate, and put it into the plan."""
        plan = self._gathering.plan
        ceilings = {
            one.name: ceiling.requests_per_second / 2
            for one in plan.arms
            if (ceiling := self._gathering.ceiling(one)) is not None
        }

        async def trial(cell: Cell) -> LoopResult:
            what = f"the search for {cell.arm.name}"
            site = self._sites[cell.arm.target]
            return await self._patience.see_through(site, what, partial(self._runner.trial, cell))

        searches = await Searching(
            plan, trial, self._runner.scheduled_requests, self._display, ceilings, self._is_interrupted
        ).run(self._gathering.results.searches, self._gathering.keep_searches, limit_seconds)
        if self._interrupted:
            return
        for one in searches:
            self._display.say(f"search   {one.arm}: {one.ended}")
        plan = replace(plan, own_loads=loads_found(plan, searches))
        planned = sum(not cell.discarded for cell in schedule.cells(plan))
        self._gathering.use_plan(plan, planned, searches)
        self._folder.write_text(PLAN_FILE, write_plan(self._options, plan))
        self._runner = self._make_runner()

    def _make_runner(self) -> CellRunner:
        plan = self._gathering.plan
        return CellRunner(plan, self._dataset, self._sites, self._loading, self._clock.origin_ns)

    def _is_interrupted(self) -> bool:
        return self._interrupted

    def _interrupt(self) -> None:
        self._interrupted = True
        self._display.say("stopping: the running cell ends and its energy is settled; again to stop at once")
        self._loading.stop(INTERRUPTED)


def _searched(results: Results) -> bool:
    """Whether every search came to its end."""
    return bool(results.searches) and all(one.ended for one in results.searches)
