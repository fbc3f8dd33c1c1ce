"""Verdicts: a figure with its 95 % interval, held against a bound. Pure.

A bound is held where the whole interval lies within it, missed where the whole interval lies beyond it, and
undecided where the interval straddles it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    HELD = "held"
    MISSED = "MISSED"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured"


HELD, MISSED, UNDECIDED, INTERRUPTED = 0, 1, 3, 130  # exit codes; 2 is a user's mistake

LONGEST_S = 24 * 3600.0  # what would take longer to decide is not worth telling in seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """`value`, `low`, `high` and `bound` are in `unit`; None where there is no such figure."""

    name: str
    status: Status
    why: str  # in words, for every status
    unit: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    decides_s: float | None = None  # how long the whole command would have to take to decide it


def not_measured(name: str, why: str) -> Verdict:
    return Verdict(name, Status.NOT_MEASURED, why)


def within(
    name: str,
    value: float,
    low: float | None,
    high: float | None,
    bound: float,
    unit: str,
    took_s: float,
) -> Verdict:
    """Whether a figure lies no further than `bound` from 0.

    low, high: its 95 % interval; None where there is none. took_s: how long the command took.
    """
    said = (
        f"{value:.3g} {unit}"
        if low is None or high is None
        else f"{value:.3g} {unit} [{low:.3g}, {high:.3g}]"
    )
    limit = f"±{bound:g} {unit}"
    if low is None or high is None:
        why = f"{said}: too few blocks for an interval; the bound is {limit}"
        return Verdict(name, Status.UNDECIDED, why, unit, value, None, None, bound, 3 * took_s)
    if -bound <= low and high <= bound:
        return Verdict(name, Status.HELD, f"{said}, within {limit}", unit, value, low, high, bound)
    if low > bound or high < -bound:
        return Verdict(name, Status.MISSED, f"{said}, beyond {limit}", unit, value, low, high, bound)
    # An interval shrinks with the root of the time: until it reaches no further than the bound.
    half, distance = (high - low) / 2, abs(abs(value) - bound)
    decides_s = took_s * (half / distance) ** 2 if distance > 0 else math.inf
    if decides_s > LONGEST_S:
        why = f"{said} straddles {limit}, and lies so near that no reasonable time decides it"
        return Verdict(name, Status.UNDECIDED, why, unit, value, low, high, bound)
    why = f"{said} straddles {limit}; --seconds {math.ceil(decides_s)} would decide it"
    return Verdict(name, Status.UNDECIDED, why, unit, value, low, high, bound, decides_s)


def exit_code(verdicts: Sequence[Verdict], is_interrupted: bool = False) -> int:
    statuses = {verdict.status for verdict in verdicts}
    if Status.MISSED in statuses:
        return MISSED
    if is_interrupted:
        return INTERRUPTED
    return UNDECIDED if Status.UNDECIDED in statuses else HELD


def conclusion(verdicts: Sequence[Verdict], is_interrupted: bool) -> str:
    """One line: the bounds missed by name, else those undecided, else that all are held."""
    missed = [verdict.name for verdict in verdicts if verdict.status is Status.MISSED]
    undecided = [verdict for verdict in verdicts if verdict.status is Status.UNDECIDED]
    held = [verdict.name for verdict in verdicts if verdict.status is Status.HELD]
    parts = []
    if missed:
        parts.append(f"MISSED: {', '.join(missed)}")
    if undecided:
        times = [verdict.decides_s for verdict in undecided]
        longest = max((time for time in times if time is not None), default=None)
        would = f" (--seconds {math.ceil(longest)} would decide)" if longest is not None else ""
        parts.append(f"undecided: {', '.join(verdict.name for verdict in undecided)}{would}")
    if is_interrupted:
        parts.append("INTERRUPTED: what was not reached is not measured")
    parts.append(f"held: {', '.join(held) or 'nothing'}")
    return "; ".join(parts)
