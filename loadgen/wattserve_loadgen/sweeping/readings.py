"""The clock of a sweep, and the readings of cumulative energy meters placed on it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

_PAUSE_NS = 1_000_000_000  # between the last stamp of a sweep and the first of its continuation


class SweepClock:
    """Seconds since the start of the sweep, on `time.perf_counter`.

    All stamps and readings count from one start, also after a resume.
    """

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

    def at(self, perf_counter_s: float) -> float:
        return perf_counter_s - self.origin_ns / 1e9

    def perf_counter_at(self, seconds: float) -> float:
        """The other way round."""
        return seconds + self.origin_ns / 1e9


@dataclass
class Readings:
    """One meter's readings in the order of their instants: seconds since the start of the sweep, joules
    since whenever the meter began to count.
    """

    target: str
    device: str
    seconds: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    idle_watts: list[float | None] = field(default_factory=list)
    saved: int = 0  # how many of them the results folder holds already

    def add(self, seconds: float, joules: float, idle_watts: float | None = None) -> None:
        """A reading; one that is not newer than the last is the same one, seen again."""
        if not self.seconds or (seconds > self.seconds[-1] and joules != self.joules[-1]):
            self.seconds.append(seconds)
            self.joules.append(joules)
            self.idle_watts.append(idle_watts)

    def arrays(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        return np.array(self.seconds, dtype=np.float64), np.array(self.joules, dtype=np.float64)

    def watts(self, over_s: float) -> float | None:
        """Mean power over the last `over_s` or so; None with fewer than two readings, or when the counter
        was set back in between.
        """
        if len(self.seconds) < 2:
            return None
        since = len(self.seconds) - 2
        while since > 0 and self.seconds[-1] - self.seconds[since] < over_s:
            since -= 1
        grown = self.joules[-1] - self.joules[since]
        return grown / (self.seconds[-1] - self.seconds[since]) if grown >= 0 else None

    def unsaved(self) -> list[dict[str, Any]]:
        """The readings that are new since the last call, as lines of readings.jsonl."""
        start, self.saved = self.saved, len(self.seconds)
        return [
            {
                "target": self.target,
                "device": self.device,
                "seconds": round(self.seconds[place], 6),
                "joules": round(self.joules[place], 6),
                "idle_watts": self.idle_watts[place],
            }
            for place in range(start, self.saved)
        ]
