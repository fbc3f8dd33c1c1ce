"""Runs a plan against its servers: cell after cell, with everything measured on disk before the next one
starts. It knows no percentile and no HTML.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from wattserve_common.dataset import Dataset
from wattserve_common.dataset import load as load_dataset
from wattserve_loadgen.drive.job import LoopResult
from wattserve_loadgen.drive.processes import WorkerError
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.figures.verdicts import foreseen
from wattserve_loadgen.model.results import Ceiling, Results
from wattserve_loadgen.model.server_info import remarks, sensor_period_seconds
from wattserve_loadgen.plan import budget, schedule
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.plan.plan_file import write_plan
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.results.folder import PLAN_FILE, ResultsFolder
from wattserve_loadgen.results.parquet import write_parquet
from wattserve_loadgen.results.readings import last_instant
from wattserve_loadgen.results.records import read_records
from wattserve_loadgen.results.validate import validate_folder
from wattserve_loadgen.sweeping import first_results, planning
from wattserve_loadgen.sweeping.cells import CellLost, CellOutcome, CellRunner
from wattserve_loadgen.sweeping.checks import check_same_sweep
from wattserve_loadgen.sweeping.environment import ClockWatch
from wattserve_loadgen.sweeping.held_out import check_held_out, score
from wattserve_loadgen.sweeping.live import LiveMetrics
from wattserve_loadgen.sweeping.progress import Display, several
from wattserve_loadgen.sweeping.readings import SweepClock
from wattserve_loadgen.sweeping.results_so_far import ResultsSoFar
from wattserve_loadgen.sweeping.searches import Searching, loads_found
from wattserve_loadgen.sweeping.servers import (
    Site,
    SweepOver,
    open_sites,
    plain_variants,
    see_through,
)

_INTERRUPTIONS = {signal.SIGINT: "interrupted by the user", signal.SIGTERM: "interrupted by SIGTERM"}


async def run_sweep(options: SweepOptions, display: Display) -> Results | None:
    """Checks, then every cell. If something ends it early, the results so far are written and returned.
    None for a dry run.
    """
    dataset = load_dataset(options.dataset)
    held_out = None if options.held_out is None else load_dataset(options.held_out)
    async with AsyncExitStack() as stack:
        if options.metrics_port is not None and not options.dry_run:
            live = LiveMetrics(options.metrics_port)
            stack.callback(live.close)
            display = several(display, live)
            display.say(f"metrics of the running cell: http://127.0.0.1:{live.port}/metrics")
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadgen-")))
        clock = SweepClock()
        sites = await open_sites(options, stack, scratch, clock, display.say)
        plan = planning.plan_of(options, sites, dataset)
        if held_out is not None:
            check_held_out(held_out, dataset, sites)
        left_out: list[str] = []
        search_s = planning.search_limit_s(plan) if options.find_max else 0.0
        if options.budget_s is not None:
            plan, left_out, search_s = planning.fit_budget(plan, options.budget_s, find_max=options.find_max)
        if options.dry_run:
            against = [*foreseen(plan, planning.slowest_sensor_seconds(sites), ())]
            text = budget.describe(
                plan,
                aside_seconds_per_cell=planning.ASIDE_S,
                search_s=search_s,
                left_out=left_out,
                against=against,
            )
            display.say(text)
            return None
        folder = ResultsFolder(options.out, force=options.force, resume=options.resume)
        stack.enter_context(folder.alone())
        before = folder.resume() if options.resume else None
        if before is not None:
            check_same_sweep(before, options, plan, dataset, sites)
            plan = before.plan
        ceilings, notes = await planning.ceilings_of(options, plan, sites, dataset, display.say)
        if before is None:
            folder.start()
            results = first_results.first_results(options, plan, sites, dataset, ceilings)
        else:
            folder.go_on(before)
            results = first_results.resumed_results(before, sites, ceilings)
        results = replace(results, notes=list(dict.fromkeys([*results.notes, *left_out, *notes])))
        folder.write_text(PLAN_FILE, write_plan(options, plan))
        periods = {arm.name: sensor_period_seconds(sites[arm.target].witness.meter()) for arm in plan.arms}
        kept = ResultsSoFar(results, dataset, folder, periods, ceilings)
        if before is not None:
            last_ns = kept.restore(read_records(folder.path))
            last_reading_ns = round(last_instant(folder.path) * 1e9)
            clock.continue_after(max(last_ns, last_reading_ns))
        return await _Sweep(options, dataset, sites, kept, folder, clock, display, ceilings, held_out).run(
            search_s
        )


class _Sweep:
    """The state of one sweep between its cells."""

    def __init__(
        self,
        options: SweepOptions,
        dataset: Dataset,
        sites: dict[str, Site],
        kept: ResultsSoFar,
        folder: ResultsFolder,
        clock: SweepClock,
        display: Display,
        ceilings: dict[str, Ceiling],
        held_out: Dataset | None = None,
    ) -> None:
        self._options, self._sites, self._kept, self._folder = options, sites, kept, folder
        self._display, self._ceilings, self._held_out = display, ceilings, held_out
        self._wall = ClockWatch()
        self._cells: list[Cell] = []
        self._interrupted = ""  # by what
        self._runner = CellRunner(
            kept.plan,
            dataset,
            sites,
            display,
            clock.origin_ns,
            deadline_s=options.deadline_s,
            processes=options.processes,
        )
        self._see_through = partial(
            see_through,
            limit_s=options.wait_for_server_s,
            stopped=lambda: self._interrupted,
            heat_up=self._heat_up,
            tell=display.say,
            note=kept.note,
        )

    async def run(self, search_s: float) -> Results:
        """`search_s`: the most that a search may take."""
        self._kept.refresh()
        for line in first_results.first_lines(self._kept.results, self._sites, search_s):
            self._display.say(line)
        try:
            with first_signal(self._interrupt):
                ended = await self._run_all(search_s)
        except SweepOver as over:
            ended = str(over)
        except WorkerError as error:
            ended = f"a process of the client was lost: {error}"
        except ResultsError as error:
            raise ResultsError(
                f"{error}; the finished cells are kept: go on with --resume once that is repaired"
            ) from None
        finally:
            self._display.end()
        for name, site in self._sites.items():  # a variant that was loaded late says more by now
            variants = planning.variants_on(self._kept.plan.arms, name)
            self._kept.remark(remarks(plain_variants(site.info), variants))
        results = replace(self._kept.results, ended=ended)
        self._folder.write(results)
        results = replace(results, checks=validate_folder(self._folder.path))
        self._folder.write(results)
        if self._options.parquet:
            write_parquet(self._folder.path)
        return results

    async def _run_all(self, search_s: float) -> str:
        """How the sweep ended; or SweepOver."""
        searches = self._kept.results.searches
        searched = bool(searches) and all(search.ended for search in searches)
        if self._options.find_max and not searched:
            await self._search(search_s)
        self._cells = schedule.cells(self._kept.plan)
        self._display.begin(self._cells)
        if self._held_out is not None and not self._kept.results.perplexity:
            await self._score(self._held_out)
        done = {cell.position for cell in self._kept.results.cells}
        for cell in self._cells:
            if self._interrupted:
                break
            if cell.position in done:
                self._display.cell_passed(cell)
            else:
                await self._run_cell(cell)
        whole = sum(not cell.stopped for cell in self._kept.results.cells)
        missing = self._kept.results.cells_planned - whole
        if self._interrupted and (missing or not self._cells):
            return self._interrupted
        if missing:
            return f"{missing} cells ended early: their points are in the results, with a verdict"
        return "complete" if self._cells else "no search found a rate within the objective"

    async def _run_cell(self, cell: Cell) -> None:
        """One in which the server was lost, and came back, runs again."""
        site = self._sites[cell.arm.target]

        async def run() -> CellOutcome | None:
            self._display.cell_started(cell)
            if cell.discarded:
                await self._runner.heat_up(cell)
                return None
            return await self._runner.run(cell)

        block = "the heat-up block" if cell.discarded else f"block {cell.block}"
        what = f"{cell.arm.name} under {cell.load.name} in {block}"
        try:
            outcome = await self._see_through(site, what, run)
        except SweepOver as over:
            if isinstance(over.__cause__, CellLost):
                self._keep(over.__cause__.outcome, site)
            raise
        if outcome is not None:
            self._keep(outcome, site)
        self._display.cell_done(cell, outcome.result if outcome else None)
        if step := self._wall.step():
            self._kept.note(step)

    async def _heat_up(self, site: Site) -> None:
        """Every arm of a server."""
        for cell in self._cells:
            if cell.discarded and cell.arm.target == site.name:
                await self._runner.heat_up(cell)

    def _keep(self, outcome: CellOutcome, site: Site) -> None:
        self._kept.keep(outcome.result, outcome.records, site.witness.readings(), site.summary())

    async def _score(self, held_out: Dataset) -> None:
        """Perplexity, before the first cell: nothing of it is in a cell's accounts."""
        arms = self._kept.plan.arms
        self._display.say(f"perplexity of {len(held_out.rows)} rows that are held out, by each variant")
        site = self._sites[arms[0].target]
        action = partial(score, held_out, arms, self._sites)
        perplexity = await self._see_through(site, "perplexity", action)
        self._kept.change(perplexity=perplexity, held_out=str(held_out.folder))

    async def _search(self, limit_s: float) -> None:
        """Find each arm's rate, and put it into the plan."""
        plan = self._kept.plan

        async def trial(cell: Cell) -> LoopResult:
            site = self._sites[cell.arm.target]
            action = partial(self._runner.trial, cell)
            return await self._see_through(site, f"the search for {cell.arm.name}", action)

        searches = await Searching(
            plan,
            trial,
            self._display,
            {arm: ceiling.requests_per_second / 2 for arm, ceiling in self._ceilings.items()},
            lambda: bool(self._interrupted),
        ).run(self._kept.results.searches, lambda searches: self._kept.change(searches=searches), limit_s)
        if self._interrupted:
            return
        for search in searches:
            self._display.say(f"search   {search.arm}: {search.ended}")
        plan = replace(plan, own_loads=loads_found(plan, searches))
        planned = sum(not cell.discarded for cell in schedule.cells(plan))
        self._kept.change(plan=plan, cells_planned=planned, searches=searches)
        self._folder.write_text(PLAN_FILE, write_plan(self._options, plan))
        self._runner.plan = plan

    def _interrupt(self, number: signal.Signals) -> None:
        self._interrupted = _INTERRUPTIONS[number]
        text = "the running cell ends and its energy is settled; another Ctrl-C stops at once"
        self._display.say(f"stopping: {text}")
        self._runner.stop(self._interrupted)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does. Of the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def first_signal(then: Callable[[signal.Signals], None]) -> Iterator[None]:
    """The first signal calls `then` with itself in the running event loop; the next one raises
    KeyboardInterrupt, except SIGTERM after SIGTERM: `timeout` sends it twice.
    """
    loop = asyncio.get_running_loop()

    def release() -> None:
        for number in _INTERRUPTIONS:
            if loop.remove_signal_handler(number):
                signal.signal(number, signal.default_int_handler)

    def on_first(number: signal.Signals) -> None:
        release()
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
        then(number)

    for number in _INTERRUPTIONS:
        loop.add_signal_handler(number, on_first, number)
    try:
        yield
    finally:
        release()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
