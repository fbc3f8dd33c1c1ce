"""The simulated meter: a declared power law behind a counter that steps like NVML's, for demos and tests.

Knows how long batches have run. Knows nothing about hardware: its joules follow from the law alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wattserve_server.energy.reading import Quality, Reading, Source
from wattserve_server.energy.units import Energy
from wattserve_server.errors import MeterError

DEFAULT_IDLE_WATTS = 40.0
DEFAULT_BUSY_WATTS = 110.0

_FJ_PER_MJ = 10**12


class SimulatedMeter:
    """`idle_watts` all the time, and `busy_watts` on top while a batch runs.

    The counter shows the energy as of the last multiple of `update_period_s` since the start, in whole
    millijoules. Busy time is only known when the meter is read, so at such a multiple it is interpolated
    between the readings around it.

    busy_ns: nanoseconds during which a batch ran so far, a running one up to now; must never decrease.
    """

    wraps_at: Energy | None = None
    poll_period_s: float = 0.02

    def __init__(
        self,
        busy_ns: Callable[[], int],
        *,
        idle_watts: float = DEFAULT_IDLE_WATTS,
        busy_watts: float = DEFAULT_BUSY_WATTS,
        update_period_s: float = 0.1,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.idle_watts: float | None = idle_watts
        self.source = Source(
            name="simulated",
            method="apportioned simulation",
            quality=Quality.SIMULATED,
            note=(
                f"{idle_watts:g} W idle + {busy_watts:g} W while a batch runs, declared, not measured; "
                f"published every {update_period_s:g} s in whole millijoules"
            ),
            boundary="an imagined device that runs this server's batches; no hardware",
        )
        # Whole microwatts x nanoseconds are whole femtojoules, so that sums are exact.
        self._idle_uw = round(idle_watts * 1e6)
        self._busy_uw = round(busy_watts * 1e6)
        self._period_ns = round(update_period_s * 1e9)
        self._clock_ns = clock_ns
        self._busy_ns = busy_ns
        self._start_ns = self._read_at_ns = self._step_at_ns = clock_ns()
        self._start_busy_ns = self._read_busy_ns = busy_ns()
        self._energy = Energy(0)
        self._closed = False

    def read(self) -> Reading:
        if self._closed:
            raise MeterError("the simulated meter is closed")
        at_ns, busy_ns = self._clock_ns(), self._busy_ns()
        step_at_ns = at_ns - (at_ns - self._start_ns) % self._period_ns
        if step_at_ns > self._step_at_ns:
            self._step_at_ns = step_at_ns
            self._energy = self._energy_at_step(at_ns, busy_ns)
        self._read_at_ns, self._read_busy_ns = at_ns, busy_ns
        return Reading(at_ns, self._energy)

    def neighbours(self) -> int:
        return 0  # nobody else is simulated

    def close(self) -> None:
        self._closed = True

    def _energy_at_step(self, at_ns: int, busy_ns: int) -> Energy:
        since_read_ns = self._step_at_ns - self._read_at_ns
        busy_since_read_ns = (busy_ns - self._read_busy_ns) * since_read_ns // (at_ns - self._read_at_ns)
        busy_at_step_ns = self._read_busy_ns - self._start_busy_ns + busy_since_read_ns
        energy_fj = busy_at_step_ns * self._busy_uw + (self._step_at_ns - self._start_ns) * self._idle_uw
        return Energy.from_millijoules(energy_fj // _FJ_PER_MJ)
