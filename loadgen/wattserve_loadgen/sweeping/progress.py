"""What the user sees while a sweep runs: a live bar on a terminal, one plain line per cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wattserve_loadgen import words
from wattserve_loadgen.model.cells import CellResult
from wattserve_loadgen.plan.schedule import Cell, load_seconds

_SETTLING_GUESS_S = 0.5


@dataclass(frozen=True)
class Tick:
    """How the running cell is doing. Good for a screen, not for results."""

    rate_per_second: float | None  # None: it is warming up
    p50_ns: int | None
    p99_ns: int | None
    watts: float | None  # what the meter counts, idle and all

    @property
    def joules_per_request(self) -> float | None:
        """The whole meter over the answers."""
        if self.watts is None or not self.rate_per_second:
            return None
        return self.watts / self.rate_per_second


class Display:
    """Where a sweep reports to. This one shows nothing; the others show what they can."""

    def say(self, line: str) -> None:
        """Any line of text."""

    def begin(self, cells: Sequence[Cell]) -> None:
        """These cells will run."""

    def cell_started(self, cell: Cell) -> None: ...

    def tick(self, tick: Tick) -> None:
        """About the running cell, every second."""

    def cell_done(self, cell: Cell, result: CellResult | None) -> None:
        """It is over; without a result its figures do not count."""

    def cell_passed(self, cell: Cell) -> None:
        """It was measured before the sweep was resumed."""

    def end(self) -> None: ...


def several(*displays: Display) -> Display:
    """One that passes on whatever it is told."""

    def to_each(name: str) -> Callable[..., None]:
        def tell(*about: object) -> None:
            for display in displays:
                getattr(display, name)(*about)

        return tell

    together = Display()
    for name in filter(lambda name: not name.startswith("_"), vars(Display)):
        setattr(together, name, to_each(name))
    return together


class TimeLeft:
    """Guesses what is left of a sweep from what settling has cost so far."""

    def __init__(self, cells: Sequence[Cell], clock: Callable[[], float] = time.monotonic) -> None:
        self._cells = cells
        self._clock = clock
        self._cell_started = clock()
        self.over = 0  # cells
        self._run = 0  # of them, those that ran
        self._aside_s = 0.0  # beside their load, of those that ran

    def cell_done(self) -> None:
        now = self._clock()
        self._aside_s += now - self._cell_started - load_seconds(self._cells[self.over])
        self.over += 1
        self._run += 1
        self._cell_started = now

    def cell_passed(self) -> None:
        self.over += 1
        self._cell_started = self._clock()

    def seconds(self) -> float:
        """Load still to come, plus the time beside the load that cells have taken on average."""
        left = self._cells[self.over :]
        aside_s = max(0.0, self._aside_s / self._run) if self._run else _SETTLING_GUESS_S
        whole = sum(map(load_seconds, left)) + aside_s * len(left)
        return max(0.0, whole - (self._clock() - self._cell_started))


def describe_cell(cell: Cell) -> str:
    block = "heat-up" if cell.discarded else f"block {cell.block}"
    return f"{block:<8} {cell.arm.name:<16} {cell.load.name:<17}"


def describe_tick(tick: Tick) -> str:
    """`812/s  p50 18.3 ms  p99 31 ms  64.8 W  79.8 mJ/request`, as far as known."""
    if tick.rate_per_second is None:
        return "warming up"
    parts = [
        words.rate(tick.rate_per_second),
        f"p50 {words.milliseconds(tick.p50_ns)}",
        f"p99 {words.milliseconds(tick.p99_ns)}",
    ]
    joules = tick.joules_per_request
    if tick.watts is not None and joules is not None:
        parts += [f"{words.significant(tick.watts)} W", f"{words.energy(joules * 1e6)}/request with idle"]
    return "  ".join(parts)


def describe_result(result: CellResult) -> str:
    """`812/s  p50 18.3 ms  p99 –  12.4 mJ/request`, and what went wrong."""
    latency = result.latency
    parts = [
        f"{words.rate(result.rate_per_second):>9}",
        f"p50 {words.milliseconds(latency.p50_ns):>8}",
        f"p99 {words.milliseconds(latency.p99_ns):>8}",
    ]
    energy = result.energy.active_uj_per_request
    parts.append(
        f"{words.energy(energy)}/request" if energy is not None else f"no joules: {result.energy.reason}"
    )
    if result.failed:
        parts.append(f"{result.failed} failed: {result.failure_example}")
    if result.stopped:
        parts.append(f"ended early: {result.stopped}")
    return "  ".join(parts)


class _Screen(Display):
    """What is printed above everything else, and what is left to do."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._left = TimeLeft(())
        self._total = 0

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def begin(self, cells: Sequence[Cell]) -> None:
        self._left = TimeLeft(cells)
        self._total = len(cells)

    def cell_done(self, cell: Cell, result: CellResult | None) -> None:
        self._left.cell_done()

    def cell_passed(self, cell: Cell) -> None:
        self._left.cell_passed()


class PlainDisplay(_Screen):
    """One line per cell, for logs and pipes."""

    def cell_done(self, cell: Cell, result: CellResult | None) -> None:
        super().cell_done(cell, result)
        self._line(cell, "(not counted)" if result is None else describe_result(result))

    def cell_passed(self, cell: Cell) -> None:
        super().cell_passed(cell)
        self._line(cell, "already measured")

    def _line(self, cell: Cell, outcome: str) -> None:
        left = words.duration(self._left.seconds())
        self.say(f"[{cell.position:>3}/{self._total}] {describe_cell(cell)} {outcome}  · {left} left")


class LiveDisplay(_Screen):
    """Below the lines of finished cells: a bar, the running cell, its figures. Three lines of 80 columns.

    It draws only when told to, once a second: a drawing thread would show up in the latencies.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._cell = self._figures = ""

    def begin(self, cells: Sequence[Cell]) -> None:
        super().begin(cells)
        self._live.start()

    def cell_started(self, cell: Cell) -> None:
        self._cell, self._figures = " ".join(describe_cell(cell).split()), ""
        self._draw()

    def tick(self, tick: Tick) -> None:
        self._figures = describe_tick(tick)
        self._draw()

    def cell_done(self, cell: Cell, result: CellResult | None) -> None:
        super().cell_done(cell, result)
        if result is not None:
            self.say(f"{describe_cell(cell)} {describe_result(result)}")
        self._draw()

    def end(self) -> None:
        self._live.stop()

    def _draw(self) -> None:
        left = f"{self._left.over}/{self._total} cells  {words.duration(self._left.seconds())} left"
        head = Table.grid(padding=(0, 2))
        head.add_row(ProgressBar(total=max(1, self._total), completed=self._left.over, width=24), Text(left))
        lines = [Text(self._cell, style="bold"), Text(self._figures, style="cyan")]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        self._live.update(Group(head, *lines), refresh=True)


def make_display() -> Display:
    """Live on a terminal, plain elsewhere."""
    console = Console()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)
