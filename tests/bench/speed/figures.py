"""What rounds say: medians and quartiles, and whether a goal is reached. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Figures = Mapping[str, Sequence[float]]
"""By name, one figure per round."""

REACHED, MISSED, NOT_SHOWN = "reached", "missed", "not shown"
DISTURBED = "not shown: others used the cores"

LEAST_ROUNDS = 3
"""With fewer, quartiles say nothing, and neither does a verdict."""


class BenchError(Exception):
    """Something that was to be measured did not work: there is no figure."""


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles."""

    low: float
    middle: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Quartiles lie on the values or between two of them, linearly. One value is its own spread."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def per_round(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Ratios of what ran in the same round."""
    return [a / b for a, b in zip(above, below, strict=True)]


@dataclass(frozen=True)
class Goal:
    """is_floor: whether more is better. words: when it applies, if not always."""

    limit: float
    is_floor: bool
    words: str = ""

    def verdict(self, values: Sequence[float]) -> str:
        """Not shown where the quartiles lie on both sides of it, or are of too few rounds."""
        found = spread(values)
        worst, best = (found.low, found.high) if self.is_floor else (found.high, found.low)
        if len(values) < LEAST_ROUNDS:
            return NOT_SHOWN
        if self._holds(worst):
            return REACHED
        return NOT_SHOWN if self._holds(best) else MISSED

    def _holds(self, value: float) -> bool:
        return value >= self.limit if self.is_floor else value <= self.limit


@dataclass(frozen=True)
class Line:
    """One line of the table. turns: whose figures it is made of, by name. form: how its values are written,
    e.g. ``.2f``. detail: what they are made of. is_disturbed: whether others used the cores in its turns."""

    row: str
    what: str
    values: Sequence[float]
    turns: tuple[str, ...]
    goals: tuple[Goal, ...] = ()
    form: str = ".2f"
    unit: str = ""
    detail: str = ""
    is_disturbed: bool = False

    def verdict(self, goal: Goal) -> str:
        return DISTURBED if self.is_disturbed else goal.verdict(self.values)
