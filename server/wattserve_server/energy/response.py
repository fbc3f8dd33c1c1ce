"""How a device answers a batch: when the energy that the batch used shows in the counter.

Pure mathematics of one batch: its energy is drawn evenly over its window, smeared by the device's rise
and decay (a first-order time constant), and counted a lag later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DECAYS = 3.5
"""After this many time constants 97 % of a batch's energy has been drawn."""

LEAST_S = 1e-6
"""A batch is taken to last at least this long."""


@dataclass(frozen=True, slots=True)
class Response:
    """lag_s: from drawing to being counted. ramp_s: time constant of rise and decay. Both in seconds."""

    lag_s: float = 0.0
    ramp_s: float = 0.0

    @property
    def reach_s(self) -> float:
        """How long after its window's end nearly all of a batch's energy has been counted."""
        return self.lag_s + DECAYS * self.ramp_s

    def counted(self, at_s: Array | float, start_s: Array, end_s: Array) -> Array:
        """Which fraction of a window's energy the counter holds at an instant; broadcasts."""
        end_s = np.maximum(end_s, start_s + LEAST_S)
        duration = end_s - start_s
        since_start = np.maximum(at_s - self.lag_s - start_s, 0.0)
        since_end = np.maximum(at_s - self.lag_s - end_s, 0.0)
        fraction = (self._drawn(since_start) - self._drawn(since_end)) / duration
        return np.clip(fraction, 0.0, 1.0)

    def _drawn(self, for_s: Array) -> Array:
        """The integral of the answer to a unit step, this long after it."""
        if self.ramp_s <= 0.0:
            return for_s
        return for_s + self.ramp_s * np.expm1(-for_s / self.ramp_s)
