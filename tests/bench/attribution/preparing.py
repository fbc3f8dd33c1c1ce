"""What the server runs of a variant before it is asked for it: its warm-up, and its calibration."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.attribution.world import VariantLaw, Workload, World
from wattserve_server.energy.trials import SHORTEST, plan_trials

CALIBRATION_BUDGET_S = 4.0
"""Per variant, the server's default."""

VERIFYING_S = 0.3
"""For so long the profiler looks at a variant, which is metered as one token."""

FIRST_RUN_COSTS = 3.0
"""How many times as much the first run of a shape takes as those after it."""

USUAL = 32
"""Tokens of a usual sequence, of which a full batch is warmed up."""


@dataclass(frozen=True, slots=True)
class Run:
    """One batch that nobody asked for, or several in a row.

    costs: how many times as much as usual. is_first: of its shape, as the server tells it. for_s: it is
    repeated until it has taken so long. pause_s: how long the device rests after it.
    """

    lengths: tuple[int, ...]
    costs: float = 1.0
    is_first: bool = False
    for_s: float = 0.0
    pause_s: float = 0.0


def calibration(world: World, workload: Workload) -> list[Run]:
    """The trials of one variant, by the server's own plan."""
    high, most = workload.lengths.high, workload.max_batch
    counter = world.counter
    plan = plan_trials(high, most, most * high, counter.period_s, CALIBRATION_BUDGET_S, counter.declared_s)
    return [Run((length,) * count, for_s=plan.trial_s, pause_s=plan.pause_s) for count, length in plan.shapes]


def warm_up(law: VariantLaw, workload: Workload) -> list[Run]:
    """The profiler's look, then every shape twice, as `engine.warmup` does it."""
    high, most = workload.lengths.high, workload.max_batch
    shapes = [(1, SHORTEST)]
    while shapes[-1][1] < high:
        shapes.append((1, min(2 * shapes[-1][1], high)))
    shapes += [(most, min(USUAL, high)), (most, high)]
    runs = [Run((1,), costs=VERIFYING_S / float(law.seconds(1, 1)), is_first=True)]
    for count, length in shapes:
        runs += [Run((length,) * count, costs, is_first=True) for costs in (FIRST_RUN_COSTS, 1.0)]
    return runs
