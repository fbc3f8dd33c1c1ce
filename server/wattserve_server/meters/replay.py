"""The replay meter: plays a recorded meter back, for tests, demonstrations and the study of a sensor.

Knows the recording and the clock. What it says was measured elsewhere or earlier and has nothing to do with
what this server does now: sharing it among requests is a simulation, whatever the recorded meter was. So its
figures are SIMULATED, its name says that it is a replay and of what, and its note says how good the recorded
figures were.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.errors import MeterError
from wattserve_server.meters.recording import read_recording


class ReplayMeter:
    """The first read is the recording's first instant. The value at an instant is that of the last recorded
    reading at or before it; where that one failed, reading fails with the recorded words. After the end,
    reading fails and says so. The same instants give the same readings, always.
    """

    def __init__(self, path: Path, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Raises ConfigError, naming the line, for a file that is no whole recording."""
        recording = read_recording(path)
        header, recorded = recording.header, recording.header.source
        self.wraps_at: Energy | None = header.wraps_at
        self.idle_watts: float | None = header.idle_watts
        self.most_watts: float | None = None
        self.poll_period_s = header.poll_period_s
        self.source = Source(
            name=f"replay of {recorded.name}",
            method=f"replayed {recorded.method}",
            quality=Quality.NONE if recorded.quality is Quality.NONE else Quality.SIMULATED,
            note=(
                f"recorded {header.started}, {recorded.quality.value} then; played back here, where it has "
                f"nothing to do with what this server draws ({recorded.note})"
            ),
            boundary=f"what was recorded, not this server's device: {recorded.boundary}",
            counts_server=True,  # whoever's work it was: nothing in it speaks of neighbours of this server
        )
        self._lines, self._end_ns = recording.lines, recording.end_ns
        self._instants_ns = [line.at_ns for line in recording.lines]
        self._clock_ns = clock_ns
        self._start_ns: int | None = None
        self._closed = False

    def read(self) -> Reading:
        if self._closed:
            raise MeterError("the replay meter is closed")
        at_ns = self._clock_ns()
        if self._start_ns is None:
            self._start_ns = at_ns
        recorded_ns = self._instants_ns[0] + at_ns - self._start_ns
        if recorded_ns > self._end_ns:
            raise MeterError(f"the recording has ended after {self._end_ns / 1e9:.3g} s: it is not repeated")
        line = self._lines[bisect_right(self._instants_ns, recorded_ns) - 1]
        if line.energy is None:
            raise MeterError(line.error)
        return Reading(at_ns, line.energy)

    def neighbours(self) -> int | None:
        return None  # who used the recorded device is not recorded

    def others_at_work(self) -> float | None:
        return None

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        self._closed = True
