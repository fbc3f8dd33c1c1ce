"""The counter itself: how often it is updated, how steadily, and what a read takes, idle and busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattserve_server.verify.readings import Spell
from wattserve_server.verify.rig import Rig, work

PACE_S = 0.002


@dataclass(frozen=True)
class CounterBeat:
    """Times in seconds; None where the counter did not show it."""

    reads: int
    updates: int
    period_s: float | None  # median; None of a counter that changes with every read
    jitter_s: float | None  # standard deviation, the spacing of the reads in it
    read_cost_p50_s: float | None
    read_cost_p99_s: float | None
    watts: float | None


@dataclass(frozen=True)
class Sensor:
    idle: CounterBeat
    busy: CounterBeat

    @property
    def period_s(self) -> float | None:
        return self.busy.period_s or self.idle.period_s


async def measure_sensor(rig: Rig, seconds: float) -> Sensor:
    """Takes about `seconds`; the reader is left at its fine pace's end as it was set before."""
    rig.read_every(PACE_S)
    since_ns = rig.now_ns()
    await rig.rest(seconds / 2)
    idle = beat_of(rig.readings.spell(since_ns, rig.now_ns()))
    since_ns = rig.now_ns()
    await work(rig, rig.variants[0], rig.shapes[-1], seconds / 2)
    return Sensor(idle, beat_of(rig.readings.spell(since_ns, rig.now_ns())))


def beat_of(spell: Spell) -> CounterBeat:
    edges = spell.edges()
    spans_s = np.diff(edges.at_s)
    is_timed = spell.is_stepped and len(spans_s) > 0
    has_reads = len(spell.cost_s) > 0
    return CounterBeat(
        reads=len(spell.at_s),
        updates=len(edges.at_s),
        period_s=float(np.median(spans_s)) if is_timed else None,
        jitter_s=float(np.std(spans_s)) if is_timed else None,
        read_cost_p50_s=float(np.quantile(spell.cost_s, 0.5)) if has_reads else None,
        read_cost_p99_s=float(np.quantile(spell.cost_s, 0.99)) if has_reads else None,
        watts=spell.watts(),
    )
