"""Idle draw: by state (before the model, at rest, by the time since work), and by how often it is read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from wattserve_common.stats import Interval, mean_interval
from wattserve_server.energy.costlaw import REST_S
from wattserve_server.verify.rig import Rig, work

PACES_S = (0.005, 0.01, 0.05, 0.2)
SAMPLER_S = 0.2  # the server's own reads meanwhile: so few that they hardly count
BLOCKS = 4  # of each pace at the most
SETTLE_S = 0.5  # after work the counter still shows work


@dataclass(frozen=True)
class Idle:
    """Watts; None where the counter did not change twice in the time."""

    at_rest_w: float | None
    by_rest_w: dict[str, float | None]  # by the time since work
    by_pace_w: dict[float, Interval | None] = field(default_factory=dict)  # by seconds between reads

    @property
    def reading_adds_w(self) -> tuple[float, float] | None:
        """How much more is drawn at the fastest pace than at the slowest, and the half of its interval."""
        fast, slow = self.by_pace_w.get(PACES_S[0]), self.by_pace_w.get(PACES_S[-1])
        if fast is None or slow is None or fast.high is None or slow.high is None:
            return None
        half = ((fast.high - fast.mean) ** 2 + (slow.high - slow.mean) ** 2) ** 0.5
        return fast.mean - slow.mean, half


async def measure_idle(rig: Rig, seconds: float) -> Idle:
    """Takes about `seconds`."""
    since_ns = rig.now_ns()
    await rig.rest(0.15 * seconds)
    at_rest_w = rig.readings.spell(since_ns, rig.now_ns()).watts()
    await work(rig, rig.variants[0], rig.shapes[-1], 0.05 * seconds)
    ended_ns = rig.now_ns()
    await rig.rest(0.3 * seconds)
    by_rest_w = watts_by_rest(rig, ended_ns)
    by_pace_w = await _by_pace(rig, 0.5 * seconds, random.Random(0))
    return Idle(at_rest_w, by_rest_w, by_pace_w)


def watts_by_rest(rig: Rig, ended_ns: int) -> dict[str, float | None]:
    """Of a rest that lasts until now, without the moments in which the counter still shows work."""
    bounds_s = [SETTLE_S, *(bound for bound in REST_S if bound > SETTLE_S)]
    now_s = (rig.now_ns() - ended_ns) / 1e9
    bounds_s = [bound for bound in bounds_s if bound < now_s] + [now_s]
    found: dict[str, float | None] = {}
    for low_s, high_s in pairwise(bounds_s):
        since_ns, until_ns = (ended_ns + round(bound_s * 1e9) for bound_s in (low_s, high_s))
        found[f"{low_s:g} to {high_s:.3g} s"] = rig.readings.spell(since_ns, until_ns).watts()
    return found


async def _by_pace(rig: Rig, seconds: float, chance: random.Random) -> dict[float, Interval | None]:
    blocks = max(2, min(BLOCKS, int(seconds / (len(PACES_S) * 2))))
    block_s = seconds / (blocks * len(PACES_S))
    watts: dict[float, list[float]] = {pace_s: [] for pace_s in PACES_S}
    rig.sample_every(SAMPLER_S)
    try:
        for _ in range(blocks):
            for pace_s in _shuffled(PACES_S, chance):
                rig.read_every(pace_s)
                since_ns = rig.now_ns()
                await rig.rest(block_s)
                drawn_w = rig.readings.spell(since_ns, rig.now_ns()).watts()
                if drawn_w is not None:
                    watts[pace_s].append(drawn_w)
    finally:
        rig.read_every(PACES_S[0])
        rig.sample_every(None)
    return {pace_s: mean_interval(values) for pace_s, values in watts.items()}


def _shuffled(values: Sequence[float], chance: random.Random) -> list[float]:
    return chance.sample(values, len(values))
