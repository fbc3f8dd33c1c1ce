"""What the independent reader has read, and how much was drawn between two instants. Pure.

Instants are seconds of the host's monotonic clock, energies joules since the first reading.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattserve_server.meters.port import counted_uj

Array = NDArray[np.float64]

STEPPED_BELOW = 0.5  # a counter that changes at fewer of its readings stands still between updates


@dataclass(frozen=True, slots=True)
class Spell:
    """The readings of a stretch of time, as arrays of one length."""

    at_s: Array
    joules: Array
    cost_s: Array  # what each read took

    def edges(self) -> Spell:
        """The readings that showed more than the one before: without the first, of which nobody knows."""
        if not len(self.at_s):
            return self
        grew = np.flatnonzero(np.diff(self.joules) > 0) + 1
        return Spell(self.at_s[grew], self.joules[grew], self.cost_s[grew])

    @property
    def is_stepped(self) -> bool:
        return len(self.edges().at_s) < STEPPED_BELOW * (len(self.at_s) - 1)

    def watts(self) -> float | None:
        """From the first update to the last one; None where there are not two."""
        edges = self.edges()
        if len(edges.at_s) < 2:
            return None
        return float((edges.joules[-1] - edges.joules[0]) / (edges.at_s[-1] - edges.at_s[0]))

    def last_edge(self) -> tuple[float, float] | None:
        """Instant and joules of the last update; None where there was none."""
        edges = self.edges()
        return (float(edges.at_s[-1]), float(edges.joules[-1])) if len(edges.at_s) else None


class Readings:
    """Grows at its end only, by one thread; any thread may look."""

    def __init__(self, wraps_at_uj: int | None) -> None:
        self._wraps_at_uj = wraps_at_uj
        self._at_ns: list[int] = []
        self._uj: list[int] = []
        self._cost_ns: list[int] = []
        self._last_uj = 0
        self.failures = 0
        self.steps_back = 0

    def add(self, at_ns: int, energy_uj: int, cost_ns: int) -> None:
        """A step back that is no wrap-around counts as nothing, and is counted."""
        gain_uj: int | None = 0
        if self._at_ns:
            gain_uj = counted_uj(self._last_uj, energy_uj, self._wraps_at_uj, at_ns - self._at_ns[-1])
        if gain_uj is None:
            self.steps_back += 1
        self._uj.append((self._uj[-1] if self._uj else 0) + (gain_uj or 0))
        self._cost_ns.append(cost_ns)
        self._last_uj = energy_uj
        self._at_ns.append(at_ns)  # the last: whoever looks finds the others as long

    def spell(self, since_ns: int, until_ns: int) -> Spell:
        first, last = bisect_left(self._at_ns, since_ns), bisect_right(self._at_ns, until_ns)
        return Spell(
            np.array(self._at_ns[first:last], dtype=float) / 1e9,
            np.array(self._uj[first:last], dtype=float) / 1e6,
            np.array(self._cost_ns[first:last], dtype=float) / 1e9,
        )

    def shown_j(self, at_ns: int) -> float | None:
        """What whoever read the counter at an instant was given: of a stepped one the value just after, for
        the instant may be that of an update. None where nobody had read that far."""
        index = bisect_left(self._at_ns, at_ns)
        if not 0 < index < len(self._at_ns):
            return None
        if self.spell(at_ns - 1_000_000_000, at_ns + 1_000_000_000).is_stepped:
            return self._uj[index] / 1e6
        return (
            float(np.interp(at_ns, self._at_ns[index - 1 : index + 1], self._uj[index - 1 : index + 1])) / 1e6
        )
