"""Readings of a cumulative energy meter, placed on the client's monotonic clock."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


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

    def watts(self, seconds: float) -> float | None:
        """Mean power over the last `seconds` or so; None with fewer than two readings, or when the counter
        was set back in between.
        """
        if len(self.seconds) < 2:
            return None
        since = len(self.seconds) - 2
        while since > 0 and self.seconds[-1] - self.seconds[since] < seconds:
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


def last_instant(path: Path) -> float:
    """The latest of a file of such lines, in seconds since the start of the sweep; 0 without any."""
    with path.open(encoding="utf-8") as file:
        return max((float(json.loads(line)["seconds"]) for line in file), default=0.0)
