"""Latency objectives such as `p99<50ms`: whether a sample meets them, breaks them or cannot tell.

Pure; knows nothing of rates, loads or servers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from wattserve_common.stats import SAMPLE_FLOORS
from wattserve_loadgen import words
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.figures.percentiles import quantile_of

FAILED_LIMIT = 0.01  # of the requests sent
ACHIEVED_LIMIT = 0.99  # of the rate asked for: below, it was not at that rate
_NEVER = np.iinfo(np.int64).max  # the latency of a request that was not answered
_UNIT_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_FORM = re.compile(
    r"p([0-9]+(?:\.[0-9]+)?)\s*(<=?)\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zµ]*)", re.IGNORECASE
)

Verdict = Literal["met", "broken", "undecided"]
_WORST: tuple[Verdict, ...] = ("broken", "undecided")


@dataclass(frozen=True)
class Objective:
    """`percent` of the requests are answered in at most `limit_ns`, or in less where it is `strict`."""

    percent: float
    limit_ns: int
    strict: bool = True

    @property
    def text(self) -> str:
        """As it is written: `p99<50ms`."""
        unit = next(name for name in ("s", "ms", "us") if self.limit_ns % _UNIT_NS[name] == 0 or name == "us")
        sign = "<" if self.strict else "<="
        return f"p{self.percent:g}{sign}{self.limit_ns / _UNIT_NS[unit]:.12g}{unit}"

    @property
    def longest_ns(self) -> int:
        """The longest latency within it."""
        return self.limit_ns - 1 if self.strict else self.limit_ns


@dataclass(frozen=True)
class Held:
    """An objective against a sample."""

    verdict: Verdict
    text: str  # the bound that decided, of 99 % confidence; or why none could


@dataclass(frozen=True)
class Judgement:
    """`verdict` is met when every objective is surely met, broken when one is surely not."""

    verdict: Verdict
    text: str  # what decided


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """`p99<50ms,p50<10ms` in the order written; PlanError says what cannot be read."""
    objectives: list[Objective] = []
    for part in text.split(","):
        objective = _objective(part.strip(), text)
        if any(other.percent == objective.percent for other in objectives):
            raise PlanError(f"--slo {text}: p{objective.percent:g} has two limits; give one")
        objectives.append(objective)
    return tuple(objectives)


def judge(
    objectives: Sequence[Objective],
    values: npt.NDArray[np.int64],
    effective: float | None,
    failed: int,
    sent: int,
) -> Judgement:
    """`values`: response times in nanoseconds of the answered requests, in the order of sending, of which
    `effective` are worth counting.

    Of `sent` requests those without an answer count as infinitely late; `failed` are those known to have
    failed.
    """
    answered = len(values)
    if failed < 0 or answered + failed > sent:
        raise ValueError(f"{answered} answered and {failed} failed of {sent} sent")
    if failed > FAILED_LIMIT * sent:
        return Judgement("broken", f"{failed:,} of {sent:,} requests failed")
    late = np.full(sent - answered, _NEVER, dtype=np.int64)
    sample = np.concatenate([np.asarray(values, dtype=np.int64), late])
    worth = None if effective is None or answered == 0 else effective * sent / answered
    held = [_held(objective, sample, worth) for objective in objectives]
    verdicts = [one.verdict for one in held]
    verdict: Verdict = next((worst for worst in _WORST if worst in verdicts), "met")
    return Judgement(verdict, "; ".join(one.text for one in held))


def goodput_share(objectives: Sequence[Objective], values: npt.NDArray[np.int64], sent: int) -> float | None:
    """The share of `sent` requests that were answered within the limit of the highest percentile, meant
    for nearly all of them; None when none was sent.
    """
    if sent == 0:
        return None
    longest = max(objectives, key=lambda objective: objective.percent).longest_ns
    return int(np.count_nonzero(values <= longest)) / sent


def _objective(part: str, text: str) -> Objective:
    if not part:
        raise PlanError(f"--slo {text!r}: an objective is missing; write for example p99<50ms")
    form = _FORM.fullmatch(part)
    if form is None:
        raise PlanError(f"--slo: {part!r} is not an objective; write for example p99<50ms")
    percent, sign = float(form[1]), form[2]
    if percent not in SAMPLE_FLOORS:
        known = " ".join(f"p{one:g}" for one in SAMPLE_FLOORS)
        raise PlanError(f"--slo {part}: p{form[1]} is not measured; choose from {known}")
    return Objective(percent, limit_ns(part, form[3], form[4]), strict=sign == "<")


def limit_ns(part: str, number: str, unit: str) -> int:
    """`50` and `ms` of the objective `part`; PlanError names it."""
    name = unit.lower().replace("µ", "u")
    if name not in _UNIT_NS:
        complaint = f"the unit {unit!r} is unknown" if unit else "it has no unit"
        raise PlanError(f"--slo {part}: {complaint}; write us, ms or s")
    limit = round(float(number) * _UNIT_NS[name])
    if not 1_000 <= limit <= 86_400 * 10**9:
        raise PlanError(f"--slo {part}: a limit is at least 1us and at most 86400s")
    return limit


def _held(objective: Objective, sample: npt.NDArray[np.int64], worth: float | None) -> Held:
    quantile, name = quantile_of(sample, worth, objective.percent), f"p{objective.percent:g}"
    low, high = quantile.low_ns, quantile.high_ns
    if high is not None and high <= objective.longest_ns:
        return Held("met", f"{name} at most {words.milliseconds(high)}")
    if low is not None and low > objective.longest_ns:
        above = "among requests without an answer" if low == _NEVER else f"above {words.milliseconds(low)}"
        return Held("broken", f"{name} {above}")
    if high is None:
        independent = f"{len(sample):,} requests are worth {worth or 0:,.0f} independent ones"
        needed = f"{SAMPLE_FLOORS[objective.percent]:,} are needed"
        return Held("undecided", f"{name} not known: {independent}, {needed}")
    if high == _NEVER:
        return Held("undecided", f"{name} not known: too many requests have no answer")
    return Held("undecided", f"{name} between {words.milliseconds(low or 0)} and {words.milliseconds(high)}")
