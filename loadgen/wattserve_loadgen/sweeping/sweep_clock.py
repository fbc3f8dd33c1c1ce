"""The clock of a sweep: all its stamps and readings count from one start, also after a resume."""

from __future__ import annotations

import time

_PAUSE_NS = 1_000_000_000  # between the last stamp of a sweep and the first of its continuation


class SweepClock:
    """Seconds since the start of the sweep, on `time.perf_counter`."""

    def __init__(self) -> None:
        self.origin_ns = time.perf_counter_ns()
        self.began = 0.0  # when this run of the sweep began; 0 unless it goes on with an older one

    def __call__(self) -> float:
        return (time.perf_counter_ns() - self.origin_ns) / 1e9

    def continue_after(self, last_ns: int) -> None:
        """Go on with an older sweep whose last stamp was `last_ns`."""
        began_ns = last_ns + _PAUSE_NS
        self.origin_ns = time.perf_counter_ns() - began_ns
        self.began = began_ns / 1e9

    def at(self, perf_counter_seconds: float) -> float:
        return perf_counter_seconds - self.origin_ns / 1e9

    def perf_counter_at(self, seconds: float) -> float:
        """The other way round."""
        return seconds + self.origin_ns / 1e9
