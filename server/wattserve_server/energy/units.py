"""`Energy`: an integer number of microjoules.

Integers, so that sums are exact: a ledger that adds up to the meter must not round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, order=True)
class Energy:
    """An amount of energy in whole microjoules; negative only as a difference."""

    uj: int

    @classmethod
    def from_joules(cls, joules: float) -> Self:
        return cls(round(joules * 1e6))

    @classmethod
    def from_millijoules(cls, millijoules: int) -> Self:
        """NVML's unit."""
        return cls(millijoules * 1000)

    @property
    def joules(self) -> float:
        return self.uj / 1e6

    def __add__(self, other: Energy) -> Energy:
        return Energy(self.uj + other.uj)

    def __sub__(self, other: Energy) -> Energy:
        return Energy(self.uj - other.uj)

    def __bool__(self) -> bool:
        return self.uj != 0


ZERO = Energy(0)
