"""Notices when somebody sets the wall clock during a sweep. Durations are on the monotonic clock and do not
suffer; instants in wall-clock time, as in Grafana, do.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_STEP_SECONDS = 0.5


class ClockWatch:
    """`wall` and `monotonic` in nanoseconds."""

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, monotonic: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offset_ns = wall() - monotonic()

    def step(self) -> str:
        """How the wall clock stepped since the last call, in words; "" when it did not."""
        offset_ns = self._wall() - self._monotonic()
        seconds = (offset_ns - self._offset_ns) / 1e9
        self._offset_ns = offset_ns
        if abs(seconds) < _STEP_SECONDS:
            return ""
        return (
            f"The client's wall clock was set {'forward' if seconds > 0 else 'back'} by {abs(seconds):.1f} s;"
            " latencies and energies are on monotonic clocks and do not suffer."
        )
