"""The device's idle draw: declared by the meter, or learned from intervals without any window."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median, pstdev

NS = 1_000_000_000

MEMORY = 64
"""Idle intervals remembered. The median follows a lasting change of the idle draw (another
process on the device, a new clock) after half of them, and ignores a burst."""

EXPLAINED = 1.25
"""An interval without a window may draw this much more than idle and still be called idle."""


@dataclass(slots=True)
class IdlePower:
    """declared_watts: what the meter says the device draws when idle; None: to be learned."""

    declared_watts: float | None = None
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))

    @property
    def watts(self) -> float | None:
        if self.declared_watts is not None:
            return self.declared_watts
        return median(self._seen) if self._seen else None

    @property
    def deviation_watts(self) -> float:
        """How much the idle draw varies between intervals; 0 for a declared one, which is exact."""
        if self.declared_watts is not None or len(self._seen) < 2:
            return 0.0
        middle = median(self._seen)
        return pstdev([watts for watts in self._seen if watts <= EXPLAINED * middle] or [0.0])

    @property
    def origin(self) -> str:
        if self.declared_watts is not None:
            return "configured"
        return "measured" if self._seen else "unknown"

    def energy_uj(self, length_ns: int) -> int:
        """Idle energy over a time; 0 while the idle draw is unknown."""
        watts = self.watts
        return 0 if watts is None else int(watts * length_ns / 1000)

    def learn(self, energy_uj: int, length_ns: int) -> int:
        """An interval in which no window ran: the part of it that is idle, in microjoules."""
        if self.declared_watts is not None:
            return min(energy_uj, self.energy_uj(length_ns))
        known = self.watts
        watts = energy_uj * 1000 / length_ns
        self._seen.append(watts)
        if known is None or watts <= EXPLAINED * known:
            return energy_uj
        return min(energy_uj, int(known * length_ns / 1000))
