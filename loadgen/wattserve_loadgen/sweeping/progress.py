"""What the user sees while a sweep runs: a live bar on a terminal, one plain line per cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from wattserve_loadgen import words
from wattserve_loadgen.plan.schedule import Cell, load_seconds
from wattserve_loadgen.results.schema import CellResult

_SETTLING_GUESS_SECONDS = 0.5


class Display(Protocol):
    """Where a sweep reports to."""

    def say(self, line: str) -> None: ...

    def begin(self, cells: Sequence[Cell]) -> None: ...

    def cell_started(self, cell: Cell) -> None: ...

    def tick(self, rate_per_second: float | None, p50_ns: int | None) -> None: ...

    def cell_done(self, cell: Cell, result: CellResult | None) -> None: ...

    def end(self) -> None: ...


class TimeLeft:
    """Guesses what is left of a sweep from what settling has cost so far."""

    def __init__(self, cells: Sequence[Cell], clock: Callable[[], float] = time.monotonic) -> None:
        self._cells = cells
        self._clock = clock
        self._started = self._cell_started = clock()
        self._done = 0
        self._aside = _SETTLING_GUESS_SECONDS

    def cell_done(self) -> None:
        self._done += 1
        self._cell_started = self._clock()
        load = sum(map(load_seconds, self._cells[: self._done]))
        self._aside = max(0.0, (self._cell_started - self._started - load) / self._done)

    def seconds(self) -> float:
        """Load still to come, plus the time beside the load that cells have taken on average."""
        left = self._cells[self._done :]
        whole = sum(map(load_seconds, left)) + self._aside * len(left)
        return max(0.0, whole - (self._clock() - self._cell_started))


def describe_cell(cell: Cell) -> str:
    block = "heat-up" if cell.discarded else f"block {cell.block}"
    return f"{block:<8} {cell.variant:<16} × {cell.concurrency:<3}"


def describe_result(result: CellResult) -> str:
    """`812/s  p50 18.3 ms  12.4 mJ/request`, and what went wrong."""
    parts = [f"{words.rate(result.rate_per_second):>9}", f"p50 {words.milliseconds(result.p50_ns):>8}"]
    energy = result.energy.active_uj_per_request
    parts.append(
        f"{words.energy(energy)}/request" if energy is not None else f"no joules: {result.energy.reason}"
    )
    if result.failed:
        parts.append(f"{result.failed} failed: {result.failure_example}")
    if result.stopped:
        parts.append(f"ended early: {result.stopped}")
    return "  ".join(parts)


class PlainDisplay:
    """One line per cell, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self._left = TimeLeft(())

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def begin(self, cells: Sequence[Cell]) -> None:
        self._total = len(cells)
        self._left = TimeLeft(cells)

    def cell_started(self, cell: Cell) -> None:
        pass

    def tick(self, rate_per_second: float | None, p50_ns: int | None) -> None:
        pass

    def cell_done(self, cell: Cell, result: CellResult | None) -> None:
        self._left.cell_done()
        outcome = "(not counted)" if result is None else describe_result(result)
        left = words.duration(self._left.seconds())
        self.say(f"[{cell.position:>3}/{self._total}] {describe_cell(cell)} {outcome}  · {left} left")

    def end(self) -> None:
        pass


class LiveDisplay:
    """A bar with the running cell's figures below the lines of finished cells.

    It draws only when told to, once a second: a drawing thread would show up in the latencies.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.fields[cell]}", style="bold"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} cells"),
            TextColumn("{task.fields[figures]}", style="cyan"),
            TextColumn("{task.fields[left]}", style="dim"),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = TaskID(0)
        self._left = TimeLeft(())

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def begin(self, cells: Sequence[Cell]) -> None:
        self._left = TimeLeft(cells)
        self._task = self._progress.add_task("", total=len(cells), cell="", figures="", left="")
        self._progress.start()

    def cell_started(self, cell: Cell) -> None:
        self._progress.update(
            self._task, cell=describe_cell(cell), figures="", left=self._time_left(), refresh=True
        )

    def tick(self, rate_per_second: float | None, p50_ns: int | None) -> None:
        figures = "warming up"
        if rate_per_second is not None:
            figures = f"{words.rate(rate_per_second)}  p50 {words.milliseconds(p50_ns)}"
        self._progress.update(self._task, figures=figures, left=self._time_left(), refresh=True)

    def cell_done(self, cell: Cell, result: CellResult | None) -> None:
        self._left.cell_done()
        if result is not None:
            self.say(f"{describe_cell(cell)} {describe_result(result)}")
        self._progress.update(self._task, advance=1, refresh=True)

    def end(self) -> None:
        self._progress.stop()

    def _time_left(self) -> str:
        return f"{words.duration(self._left.seconds())} left"


def make_display() -> Display:
    """Live on a terminal, plain elsewhere."""
    console = Console()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)
