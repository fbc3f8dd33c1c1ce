"""Telling the operator, on stderr, how far the demo model is: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Report = Callable[[str, float], None]
"""Called with what is being done and which share of all the work is behind, 0 to 1."""


@contextmanager
def progress_on_stderr(title: str) -> Iterator[Report]:
    if sys.stderr.isatty():
        with _bar(title) as report:
            yield report
    else:
        yield _Lines(title)


@contextmanager
def _bar(title: str) -> Iterator[Report]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=1.0)
        yield lambda stage, done: progress.update(task, completed=done, description=f"{title}: {stage}")


class _Lines:
    """One line for each new stage and for each further quarter of the work."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last: tuple[str, int] | None = None

    def __call__(self, stage: str, done: float) -> None:
        mark = stage, int(done * 4)
        if mark != self._last:
            self._last = mark
            print(f"{self._title}: {stage} ({done:.0%})", file=sys.stderr, flush=True)
