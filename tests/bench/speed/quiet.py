"""Whether the machine was ours: how many cores others kept busy during a turn.

It matters more than it seems: plain torch's threads spin at their barriers, and a foreign process on one of
their cores slows them many times over, which would flatter whatever is compared with them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.bench.speed.figures import Figures

FOREIGN = ".foreign_cores"
"""How the figure's name ends."""

QUIET_CORES = 0.1

PROC = Path("/proc")
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat's first line: user, nice, system, irq, softirq, steal. Not idle or iowait; guests
are in user already."""


class Watch:
    """From when it is made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._busy = _busy_ticks()
        self._ours = ticks_below(os.getpid())

    def foreign_cores(self) -> float:
        """Cores that were busy, on average, but not with this process or those below it that are alive."""
        ours = ticks_below(os.getpid())
        mine = sum(ticks - self._ours.get(pid, 0) for pid, ticks in ours.items())
        busy = _busy_ticks() - self._busy
        took = (time.monotonic() - self._begun) * os.sysconf("SC_CLK_TCK")
        return max(0.0, (busy - mine) / took)


def is_disturbed(figures: Figures, turns: Sequence[str]) -> bool:
    """Whether others kept more than QUIET_CORES busy in most rounds of any of the turns."""
    watched = [figures[turn + FOREIGN] for turn in turns]
    return any(statistics.median(cores) > QUIET_CORES for cores in watched)


def summary(figures: Figures) -> str:
    """Of all turns, for the table; warns where the machine was not quiet."""
    cores = [value for name, values in figures.items() if name.endswith(FOREIGN) for value in values]
    if not cores:
        return "unknown"
    median, most = np.quantile(cores, (0.5, 0.9))
    words = f"{median:.2f} (median of all turns), {most:.2f} (one turn in ten had more)"
    return words if most <= QUIET_CORES else f"{words}: NOT QUIET"


def _busy_ticks() -> int:
    fields = (PROC / "stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    return sum(int(fields[column]) for column in _BUSY)


def ticks_below(root: int) -> dict[int, int]:
    """User and system time of a process and of every one below it, by pid."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in PROC.glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {root}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {pid: ticks[pid] for pid in ours if pid in ticks}
