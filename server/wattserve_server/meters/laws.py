"""Meters that follow a law: declared watts times a measured time, where there is no sensor or none is wanted.

They know how long something was busy. They know nothing about the hardware: what they say is a comparison
between requests, not a measurement.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.errors import MeterError

_FJ_PER_UJ = 10**9
_FJ_PER_MJ = 10**12
_UPDATE_PERIOD_S = 0.1


class _LawMeter(ABC):
    """`idle_watts` all the time, declared to the ledger as such, and `busy_watts` on top while busy."""

    wraps_at: Energy | None = None
    most_watts: float | None = None
    poll_period_s: float = 0.02
    source: Source

    def __init__(
        self, idle_watts: float, busy_watts: float, busy_ns: Callable[[], int], clock_ns: Callable[[], int]
    ) -> None:
        self.idle_watts: float | None = idle_watts
        # Whole microwatts x nanoseconds are whole femtojoules, so that sums are exact.
        self._idle_uw, self._busy_uw = round(idle_watts * 1e6), round(busy_watts * 1e6)
        self._clock_ns, self._busy_ns = clock_ns, busy_ns
        self._start_ns, self._start_busy_ns = clock_ns(), busy_ns()
        self._closed = False

    def read(self) -> Reading:
        if self._closed:
            raise MeterError(f"the {self.source.name} meter is closed")
        at_ns, busy_ns = self._clock_ns(), self._busy_ns()
        return Reading(at_ns, self._energy_at(at_ns, busy_ns))

    def neighbours(self) -> int:
        return 0  # nobody else is in the figure

    def others_at_work(self) -> float:
        return 0.0

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        self._closed = True

    @abstractmethod
    def _energy_at(self, at_ns: int, busy_ns: int) -> Energy: ...

    def _law_fj(self, at_ns: int, busy_ns: int) -> int:
        busy_fj = (busy_ns - self._start_busy_ns) * self._busy_uw
        return busy_fj + (at_ns - self._start_ns) * self._idle_uw


class EstimateMeter(_LawMeter):
    """CPU time of this process x watts per core + wall time x idle watts, exact in integers."""

    def __init__(
        self,
        *,
        # Above idle, for one busy logical CPU. Rated package power divided by cores is 4 to 7 W for current
        # server processors (for example 350 W / 56 and 360 W / 96), 8 to 15 W for desktops: 7.5 W is in the
        # middle, and at the upper end of servers.
        watts_per_core: float = 7.5,
        idle_watts: float = 5.0,  # about the share of a host that a lightly loaded small machine has
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,  # of the process; never decreases
    ) -> None:
        super().__init__(idle_watts, watts_per_core, cpu_ns, clock_ns)
        self.source = Source(
            name="estimate",
            method="apportioned estimate",
            quality=Quality.ESTIMATED,
            note=f"{watts_per_core:g} W per busy core + {idle_watts:g} W idle, configured, not measured",
            boundary="only the CPU time of this process on this host; no other process and no accelerator",
            counts_server=True,
            cpu_watts=watts_per_core,
        )

    def _energy_at(self, at_ns: int, busy_ns: int) -> Energy:
        return Energy(self._law_fj(at_ns, busy_ns) // _FJ_PER_UJ)


class SimulatedMeter(_LawMeter):
    """A counter that steps like NVML's, for demos and tests: busy while a batch runs.

    It shows the energy as of the last multiple of `_UPDATE_PERIOD_S` since the start, in whole millijoules.
    Busy time is only known when the meter is read, so at such a multiple it is interpolated between the
    readings around it.
    """

    def __init__(
        self,
        busy_ns: Callable[[], int],
        *,
        idle_watts: float = 40.0,
        busy_watts: float = 110.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """busy_ns: for how long batches ran so far, a running one up to now; never decreases."""
        super().__init__(idle_watts, busy_watts, busy_ns, clock_ns)
        self.source = Source(
            name="simulated",
            method="apportioned simulation",
            quality=Quality.SIMULATED,
            note=(
                f"{idle_watts:g} W idle + {busy_watts:g} W while a batch runs, declared, not measured; "
                f"published every {_UPDATE_PERIOD_S:g} s in whole millijoules"
            ),
            boundary="an imagined device that runs this server's batches; no hardware",
        )
        self._period_ns = round(_UPDATE_PERIOD_S * 1e9)
        self._read_at_ns = self._step_at_ns = self._start_ns
        self._read_busy_ns = self._start_busy_ns
        self._energy = Energy(0)

    def _energy_at(self, at_ns: int, busy_ns: int) -> Energy:
        step_at_ns = at_ns - (at_ns - self._start_ns) % self._period_ns
        if step_at_ns > self._step_at_ns:
            self._step_at_ns = step_at_ns
            part_ns, whole_ns = step_at_ns - self._read_at_ns, at_ns - self._read_at_ns
            busy_at_step_ns = self._read_busy_ns + (busy_ns - self._read_busy_ns) * part_ns // whole_ns
            self._energy = Energy.from_millijoules(self._law_fj(step_at_ns, busy_at_step_ns) // _FJ_PER_MJ)
        self._read_at_ns, self._read_busy_ns = at_ns, busy_ns
        return self._energy
