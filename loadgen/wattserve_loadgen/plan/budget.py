"""A plan within a time, and what a plan is good for, in words. Pure.

What is given up first costs the answer least: longer windows, more blocks, loads in between, and last the
variants at the end of the list. The baseline and its twin stay, without which nothing is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from wattserve_common.stats import SAMPLE_FLOORS
from wattserve_common.words import counted
from wattserve_loadgen import words
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.plan.schedule import FEWEST_BLOCKS_TO_PUBLISH, FULL, PRESETS, Plan, cells, load_seconds

LEAST_LOADS = 2
_LEAST_WINDOW_SECONDS = 1.0  # of a plan that is too short to publish anyway
SPARE = 1.02  # a window ends with its last answer, not to the millisecond
_STEP_SECONDS = 0.1


def plan_seconds(plan: Plan, aside_seconds_per_cell: float) -> float:
    """How long a plan takes, with what each cell takes beside its load: settling, reading, writing."""
    planned = cells(plan)
    return sum(map(load_seconds, planned)) + aside_seconds_per_cell * len(planned)


def fit(plan: Plan, budget_seconds: float, *, aside_seconds_per_cell: float) -> tuple[Plan, list[str]]:
    """The best part of a plan that fits, and sentences that say what was left out. PlanError names the least
    time that would do.
    """
    smallest = plan
    for step in _steps(plan):
        smallest = replace(step, seconds=_floor_seconds(plan, step.blocks))
        spare = budget_seconds - plan_seconds(smallest, aside_seconds_per_cell)
        if spare >= 0:
            fitted = replace(step, seconds=_stretched(smallest, spare, step.seconds))
            return fitted, _left_out(plan, fitted)
    needed = math.ceil(plan_seconds(smallest, aside_seconds_per_cell))
    raise PlanError(
        f"--budget: {budget_seconds:g} s are too few (a number alone is seconds, 10m ten minutes); the least"
        f" that works is"
        f" {words.duration(needed)}, for {_listed(arm.name for arm in smallest.arms)} under"
        f" {_listed(load.name for load in smallest.loads)} in {smallest.blocks} blocks"
        + ("; or choose --preset quick" if plan.preset == FULL else "")
    )


def describe(
    plan: Plan,
    *,
    aside_seconds_per_cell: float,
    search_s: float = 0,
    left_out: Sequence[str] = (),
    against: Sequence[str] = (),
) -> str:
    """What `--dry-run` prints: the cells, the time, and what each point will be good for. `search_s`: the
    most that a search will take; `against`: what speaks against figures already now.
    """
    loads = [load.name for load in plan.loads]
    if search_s:
        loads.append(f"the rates that a search finds, which takes at most {words.duration(search_s)}")
    lines = [
        f"arms: {', '.join(_arm_text(plan, index) for index in range(len(plan.arms)))}",
        f"loads: {_listed(loads)}",
        *(
            f"loads of {name} alone: {_listed(load.name for load in own)}"
            for name, own in plan.own_loads.items()
        ),
        *_cells_text(plan, aside_seconds_per_cell),
        f"seed: {plan.seed}",
        *(f"left out: {part}" for part in left_out),
        "each point:",
        *(f"  {line}" for line in [*_worth(plan), *against]),
    ]
    return "\n".join(lines)


def _cells_text(plan: Plan, aside_seconds_per_cell: float) -> list[str]:
    """How many cells, how long they take, and the order of the first block."""
    each = f"{plan.warmup_seconds:g} s of warm-up and a window of {plan.seconds:g} s each"
    points, planned = len(plan.pairs()), cells(plan)
    if not points:
        return [f"cells: {plan.blocks} blocks; {each}"]
    whole = words.duration(plan_seconds(plan, aside_seconds_per_cell))
    return [
        f"cells: {points * plan.blocks} in {plan.blocks} blocks of {points}, after a heat-up block that is"
        f" not counted; {each}",
        f"time: {whole}, of it {words.duration(sum(map(load_seconds, planned)))} under load",
        "order of block 1:",
        *(f"  {cell.arm.name}, {cell.load.name}" for cell in planned if cell.block == 1),
    ]


def _steps(plan: Plan) -> Iterator[Plan]:
    """The plan with less and less in it; windows are still those asked for."""
    yield plan
    for blocks in range(plan.blocks - 1, plan.fewest_blocks - 1, -1):
        plan = replace(plan, blocks=blocks)
        yield plan
    asked, loads = plan.loads, sorted(plan.loads, key=lambda load: load.order)
    for count in range(len(loads) - 1, LEAST_LOADS - 1, -1):
        kept = {loads[round(index * (len(loads) - 1) / (count - 1))] for index in range(count)}
        plan = replace(plan, loads=tuple(load for load in asked if load in kept))
        yield plan
    for last in reversed(plan.arms):
        if last != plan.baseline and not last.twin_of:
            own = {name: loads for name, loads in plan.own_loads.items() if name != last.name}
            plan = replace(plan, arms=tuple(arm for arm in plan.arms if arm != last), own_loads=own)
            yield plan


def _floor_seconds(asked: Plan, blocks: int) -> float:
    """The shortest window that leaves a point in so many blocks what was asked for: enough to be shown, or,
    where that was not asked for either, one second."""
    whole = asked.blocks * asked.seconds
    if whole < asked.publish_seconds:
        return min(asked.seconds, _LEAST_WINDOW_SECONDS)
    least = min(whole, asked.publish_seconds * SPARE) / blocks
    floor = round(math.ceil(round(least / _STEP_SECONDS, 6)) * _STEP_SECONDS, 3)
    return min(asked.seconds, floor) if blocks == asked.blocks else floor


def _stretched(plan: Plan, spare_seconds: float, most_seconds: float) -> float:
    """The window when the spare time is shared among the cells, in tenths of a second."""
    counted = plan.blocks * len(plan.pairs())
    if plan.seconds >= most_seconds or not counted:
        return plan.seconds
    steps = math.floor(round(spare_seconds / counted / _STEP_SECONDS, 6))
    return min(most_seconds, round(plan.seconds + steps * _STEP_SECONDS, 3))


def _left_out(plan: Plan, fitted: Plan) -> list[str]:
    said = []
    if fitted.seconds != plan.seconds:
        said.append(f"windows are {fitted.seconds:g} s instead of {plan.seconds:g} s")
    if fitted.blocks < plan.blocks:
        said.append(f"{fitted.blocks} blocks instead of {plan.blocks}: wider intervals")
    loads = [load.name for load in plan.loads if load not in fitted.loads]
    if loads:
        said.append(f"loads that are not measured: {', '.join(loads)}")
    arms = [arm.name for arm in plan.arms if arm not in fitted.arms]
    if arms:
        said.append(f"variants that are not measured: {', '.join(arms)}")
    return said


def _arm_text(plan: Plan, index: int) -> str:
    arm = plan.arms[index]
    if arm.twin_of:
        return f"{arm.name} (the same as {arm.twin_of}: how far two equal arms differ)"
    return f"{arm.name} (the baseline)" if index == 0 else arm.name


def _worth(plan: Plan) -> list[str]:
    measured = plan.blocks * plan.seconds
    text = f"{measured:g} s of windows"
    publish = PRESETS[FULL].publish_seconds
    if not plan.withholds:
        lines = [f"{text}: too short to publish, as a look always is"]
    elif measured >= publish:
        lines = [f"{text}: enough to publish ({publish:g} s)"]
    elif measured >= PRESETS["quick"].publish_seconds:
        lines = [f"{text}: enough for a quick look that is labelled so, {publish:g} s are needed to publish"]
    else:
        lines = [f"{text}: too short to publish"]
    if plan.blocks < FEWEST_BLOCKS_TO_PUBLISH:
        lines.append(
            f"{counted(plan.blocks, 'block')}: intervals are wide; figures to publish need"
            f" {FEWEST_BLOCKS_TO_PUBLISH}"
        )
    if plan.least_requests:
        lines.append(
            f"at least {plan.least_requests} requests: a slow server takes longer than the time above"
        )
    expected = {load.name: rate * measured for load in plan.loads if (rate := _mean_rate(load))}
    lines += [
        f"{name}: about {requests:,.0f} requests, enough for {_carried(requests)}"
        for name, requests in expected.items()
    ]
    floors = ", ".join(f"p{percent:g} {count:,}" for percent, count in SAMPLE_FLOORS.items())
    lines.append(f"percentiles need this many independent requests, else they are not shown: {floors}")
    return lines


def _mean_rate(load: Load) -> float | None:
    """Requests per second, where the load itself says how many."""
    if load.rate is None:
        return None
    return load.rate if load.rate_end is None else (load.rate + load.rate_end) / 2


def _carried(requests: float) -> str:
    """The percentiles that so many requests carry when they are independent."""
    carried = [f"p{percent:g}" for percent, floor in SAMPLE_FLOORS.items() if requests >= floor]
    return f"{carried[-1]} at best" if carried else "no percentile"


def _listed(names: Iterable[str]) -> str:
    return "; ".join(names)
