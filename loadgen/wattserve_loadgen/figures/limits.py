"""Limits on each answer of a language model, such as `ttft<200ms,tpot<20ms`: what its goodput counts.

Pure. `slo` has objectives of percentiles, of which a search can find the highest rate.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.figures.slo import limit_ns
from wattserve_loadgen.model.cells import Record

TIMES: dict[str, Callable[[Record], float | None]] = {
    "ttft": lambda record: record.ttft_ns,
    "tpot": lambda record: None if record.generation is None else record.generation.time_per_token_ns,
    "latency": lambda record: record.latency_ns,
}
_FORM = re.compile(
    rf"({'|'.join(TIMES)})\s*(<=?)\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zµ]*)", re.IGNORECASE
)


@dataclass(frozen=True)
class Limit:
    """On one time of each request."""

    name: str  # of TIMES
    limit_ns: int
    strict: bool

    def holds(self, record: Record) -> bool:
        """A single token has no time per token, and is within any limit on it."""
        value = TIMES[self.name](record)
        return value is None or value < self.limit_ns or (value == self.limit_ns and not self.strict)


def parse_limits(text: str) -> tuple[Limit, ...]:
    """In the order written; none where the text has objectives of percentiles. PlanError where it has both,
    or a limit twice.
    """
    parts = [part.strip() for part in text.split(",")]
    forms = [_FORM.fullmatch(part) for part in parts]
    if not any(forms):
        return ()
    limits: list[Limit] = []
    for part, form in zip(parts, forms, strict=True):
        if form is None:
            raise PlanError(
                f"--slo {text}: {part!r} is no limit on each answer ({', '.join(TIMES)}); objectives of"
                " percentiles stand without such"
            )
        name = form[1].lower()
        if any(limit.name == name for limit in limits):
            raise PlanError(f"--slo {text}: {name} has two limits; give one")
        limits.append(Limit(name, limit_ns(part, form[3], form[4]), strict=form[2] == "<"))
    return tuple(limits)
