"""What other processes do on this host's processors: the CPU time of the whole machine, less this server's.

Knows Linux's /proc/stat. Knows nothing of meters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PROC_STAT = Path("/proc/stat")

# Of the first line, in order: user, nice, system, idle, iowait, irq, softirq. After them come time that a
# hypervisor took away, and what guests ran, which user time holds already.
_BUSY = (0, 1, 2, 5, 6)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """CPU seconds of this process, and of those children that have ended."""
    return sum(os.times()[:4])


class OthersOnHost:
    """How many cores others keep busy.

    The kernel counts in ticks of 10 ms: over a second 0.02 cores and less are noise. What it does for this
    server outside its processes, such as taking packets in, counts as others'.
    """

    def __init__(
        self,
        proc_stat: Path = PROC_STAT,
        *,
        own_s: Callable[[], float] = own_cpu_s,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._proc_stat, self._own_s, self._clock_ns = proc_stat, own_s, clock_ns
        self._last = self._count()

    def at_work(self) -> float | None:
        """The mean since the last call, or since the beginning. None where /proc/stat cannot be read, and
        where no time has passed."""
        last, self._last = self._last, self._count()
        if last is None or self._last is None or self._last[0] <= last[0]:
            return None
        return max(0.0, (self._last[1] - last[1]) / ((self._last[0] - last[0]) / 1e9))

    def _count(self) -> tuple[int, float] | None:
        """The instant, and CPU seconds of others until then."""
        try:
            with self._proc_stat.open() as file:
                ticks = [int(word) for word in file.readline().split()[1:]]
            return self._clock_ns(), sum(ticks[at] for at in _BUSY) / _TICKS_PER_S - self._own_s()
        except (OSError, ValueError, IndexError):
            return None
