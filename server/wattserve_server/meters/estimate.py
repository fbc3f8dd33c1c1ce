"""The estimate meter: joules from CPU time and configured watts, for machines without a sensor.

Knows this process's CPU time and two assumed constants. Knows nothing about the hardware: what it says is
a comparison between requests, not a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wattserve_server.energy.reading import Quality, Reading, Source
from wattserve_server.energy.units import Energy
from wattserve_server.errors import MeterError

# Rated package power divided by cores is 4 to 7 W for current server processors (for example 350 W / 56 and
# 360 W / 96), 8 to 15 W for desktops: 7.5 W is in the middle, and at the upper end of servers.
DEFAULT_WATTS_PER_CORE = 7.5
# A share of a host's idle draw, about that of one lightly loaded small machine.
DEFAULT_IDLE_WATTS = 5.0

_FJ_PER_UJ = 10**9


class EstimateMeter:
    """CPU time of this process x watts per core + wall time x idle watts, exact in integers.

    watts_per_core: what one logical CPU draws above idle while it is busy.
    idle_watts: drawn all the time, busy or not; declared to the ledger as such.
    clock_ns, cpu_ns: wall time and CPU time of the process, in nanoseconds, neither ever decreasing.
    """

    wraps_at: Energy | None = None
    poll_period_s: float = 0.02

    def __init__(
        self,
        *,
        watts_per_core: float = DEFAULT_WATTS_PER_CORE,
        idle_watts: float = DEFAULT_IDLE_WATTS,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self.idle_watts: float | None = idle_watts
        self.source = Source(
            name="estimate",
            method="apportioned estimate",
            quality=Quality.ESTIMATED,
            note=f"{watts_per_core:g} W per busy core + {idle_watts:g} W idle, configured, not measured",
            boundary="only the CPU time of this process on this host; no other process and no accelerator",
            counts_server=True,
        )
        # Whole microwatts x nanoseconds are whole femtojoules, so that sums are exact.
        self._core_uw = round(watts_per_core * 1e6)
        self._idle_uw = round(idle_watts * 1e6)
        self._clock_ns = clock_ns
        self._cpu_ns = cpu_ns
        self._start_ns = clock_ns()
        self._start_cpu_ns = cpu_ns()
        self._closed = False

    def read(self) -> Reading:
        if self._closed:
            raise MeterError("the estimate meter is closed")
        at_ns = self._clock_ns()
        cpu_ns = self._cpu_ns() - self._start_cpu_ns
        energy_fj = cpu_ns * self._core_uw + (at_ns - self._start_ns) * self._idle_uw
        return Reading(at_ns, Energy(energy_fj // _FJ_PER_UJ))

    def neighbours(self) -> int:
        return 0  # only this process is in the figure

    def close(self) -> None:
        self._closed = True
