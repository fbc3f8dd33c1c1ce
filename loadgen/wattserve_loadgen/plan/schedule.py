"""The plan of a sweep: which cells run, in which order, with which rows.

A *cell* is one arm under one load for some seconds. A *block* runs every cell once, in its own random order,
so that whatever drifts (temperature, a noisy neighbour) meets all arms alike. Block 0 heats up the machine
and is thrown away. Pure, and the same for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import Arm, Load, check_loads, closed

HEAT_UP_BLOCK = 0
MOST_BLOCKS = 1000
LOOK, FULL = "look", "full"
FEWEST_BLOCKS, FEWEST_BLOCKS_TO_PUBLISH = 3, 5


@dataclass(frozen=True)
class Plan:
    """What a sweep will do. Seconds are wall-clock seconds of one cell."""

    preset: str  # `look`, `quick` or `full`
    arms: tuple[Arm, ...]  # what is compared, in this order; the first is the baseline
    loads: tuple[Load, ...]  # of every arm
    blocks: int  # repetitions of the plan, the heat-up block not counted
    seconds: float  # the window of one cell
    warmup_seconds: float  # under load before each window; not counted, not drained
    heat_up_seconds: float  # the window of one cell of block 0
    publish_seconds: float  # the window, summed over blocks, below which a point is too short to publish
    seed: int  # of the order of cells and rows
    least_requests: int = 0  # in the windows of a point; a closed loop goes on until it has them
    objective: str = ""  # e.g. p99<50ms: what goodput and searches are held against
    own_loads: dict[str, list[Load]] = field(default_factory=dict)  # of one arm: what a search found

    @property
    def baseline(self) -> Arm:
        """The arm that ratios are relative to."""
        return self.arms[0]

    @property
    def withholds(self) -> bool:
        """Whether a point with a verdict loses its figures; only a look still shows them."""
        return self.preset != LOOK

    @property
    def fewest_blocks(self) -> int:
        """Of a point: 3 are enough only for what is labelled as less than a full sweep (rule 6)."""
        return FEWEST_BLOCKS_TO_PUBLISH if self.preset == FULL else FEWEST_BLOCKS

    def loads_of(self, arm: Arm) -> tuple[Load, ...]:
        return (*self.loads, *self.own_loads.get(arm.name, ()))

    def pairs(self) -> list[tuple[Arm, Load]]:
        """Every point of the plan, arm by arm."""
        return [(arm, load) for arm in self.arms for load in self.loads_of(arm)]

    def cell_requests(self) -> int:
        """The least requests of one cell, so that the point has `least_requests`."""
        return -(-self.least_requests // self.blocks)


@dataclass(frozen=True)
class Cell:
    """One stretch of load. `position` counts from 1 over the sweep."""

    position: int
    block: int
    arm: Arm
    load: Load
    warmup_seconds: float
    seconds: float

    @property
    def discarded(self) -> bool:
        return self.block == HEAT_UP_BLOCK


def _preset(
    name: str,
    concurrencies: tuple[int, ...],
    blocks: int,
    seconds: float,
    warmup: float,
    heat_up: float,
    publish: float,
) -> Plan:
    loads = tuple(closed(one) for one in concurrencies)
    return Plan(name, (), loads, blocks, seconds, warmup, heat_up, publish, seed=0)


_LOADS = (1, 2, 4, 8, 16, 32)
PRESETS: dict[str, Plan] = {
    LOOK: _preset(LOOK, (1, 4, 16), blocks=3, seconds=2, warmup=0.3, heat_up=0.4, publish=600),
    "quick": _preset("quick", _LOADS, blocks=3, seconds=12, warmup=1, heat_up=1, publish=30),
    FULL: _preset(FULL, _LOADS, blocks=5, seconds=125, warmup=3, heat_up=5, publish=600),
}


def make_plan(
    preset: str,
    arms: Sequence[Arm],
    *,
    loads: Sequence[Load] | None = None,
    blocks: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    least_requests: int = 0,
    objective: str = "",
) -> Plan:
    """A preset with the given parts replaced; PlanError when a part makes no sense."""
    base = PRESETS[preset]
    plan = replace(
        base,
        arms=tuple(arms),
        loads=base.loads if loads is None else tuple(loads),
        blocks=base.blocks if blocks is None else blocks,
        seconds=base.seconds if seconds is None else seconds,
        seed=seed,
        least_requests=least_requests,
        objective=objective,
    )
    check_plan(plan)
    return plan


def check_plan(plan: Plan) -> None:
    """PlanError when a part makes no sense."""
    if not plan.arms:
        raise PlanError("no variant to measure")
    names = [arm.name for arm in plan.arms]
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise PlanError(f"variant {twice[0]} is listed twice")
    for loads in (plan.loads, *plan.own_loads.values()):
        check_loads(loads)
    if not 1 <= plan.blocks <= MOST_BLOCKS:
        raise PlanError(f"{plan.blocks} blocks: a plan takes 1 to {MOST_BLOCKS}")
    if not 0 < plan.seconds <= 86_400:
        raise PlanError(f"{plan.seconds:g} seconds: a cell takes more than 0 and at most 86400")


def cells(plan: Plan) -> list[Cell]:
    """Every cell in the order in which it runs, the heat-up block first."""
    planned: list[Cell] = []
    for block in range(HEAT_UP_BLOCK, plan.blocks + 1):
        pairs = plan.pairs()
        random.Random(f"cells:{plan.seed}:{block}").shuffle(pairs)
        discarded = block == HEAT_UP_BLOCK
        for arm, load in pairs:
            planned.append(
                Cell(
                    position=len(planned) + 1,
                    block=block,
                    arm=arm,
                    load=load,
                    warmup_seconds=0.0 if discarded else plan.warmup_seconds,
                    seconds=plan.heat_up_seconds if discarded else plan.seconds,
                )
            )
    return planned


def row_order(plan: Plan, block: int, rows: int) -> list[int]:
    """The order in which a block's cells replay the dataset, repeated from its start when it runs out.

    It depends on the block alone: every arm and load meets the same requests.
    """
    order = list(range(rows))
    random.Random(f"rows:{plan.seed}:{block}").shuffle(order)
    return order


def row_groups(order: Sequence[int], sequences: int) -> list[list[int]]:
    """The rows of each request: `sequences` of them, going round."""
    count = len(order)
    if sequences == 1:
        return [[row] for row in order]
    return [
        [order[(start + step) % count] for step in range(sequences)] for start in range(0, count, sequences)
    ]


def load_seconds(cell: Cell) -> float:
    """How long a cell puts load on the server; settling its receipts comes on top."""
    return cell.warmup_seconds + cell.seconds
