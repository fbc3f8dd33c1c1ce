"""The plan of a sweep: which cells run, in which order, with which rows.

A *cell* is one variant at one concurrency for some seconds. A *block* runs every cell once, in its own random
order, so that whatever drifts (temperature, a noisy neighbour) meets all variants alike. Block 0 heats up the
machine and is thrown away. Pure, and the same for the same seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from wattserve_loadgen.errors import PlanError

HEAT_UP_BLOCK = 0


@dataclass(frozen=True)
class Plan:
    """What a sweep will do. Seconds are wall-clock seconds of one cell."""

    preset: str
    variants: tuple[str, ...]
    concurrencies: tuple[int, ...]
    blocks: int
    seconds: float  # the window of one cell
    warmup_seconds: float  # under load before each window; not counted, not drained
    heat_up_seconds: float  # the window of one cell of block 0
    publish_seconds: float  # the window, summed over blocks, below which a point is too short to publish
    seed: int


@dataclass(frozen=True)
class Cell:
    """One stretch of load. `position` counts from 1 over the sweep."""

    position: int
    block: int
    variant: str
    concurrency: int
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
    return Plan(name, (), concurrencies, blocks, seconds, warmup, heat_up, publish, seed=0)


_LOADS = (1, 2, 4, 8, 16, 32)
PRESETS: dict[str, Plan] = {
    "look": _preset("look", (1, 4, 16), blocks=3, seconds=2, warmup=0.3, heat_up=0.4, publish=600),
    "quick": _preset("quick", _LOADS, blocks=3, seconds=12, warmup=1, heat_up=1, publish=30),
    "full": _preset("full", _LOADS, blocks=5, seconds=125, warmup=3, heat_up=5, publish=600),
}


def make_plan(
    preset: str,
    variants: tuple[str, ...],
    *,
    concurrencies: tuple[int, ...] | None = None,
    blocks: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Plan:
    """A preset with the given parts replaced; PlanError when a part makes no sense."""
    base = PRESETS[preset]
    plan = replace(
        base,
        variants=variants,
        concurrencies=base.concurrencies if concurrencies is None else concurrencies,
        blocks=base.blocks if blocks is None else blocks,
        seconds=base.seconds if seconds is None else seconds,
        seed=seed,
    )
    for what, values in (("variant", plan.variants), ("concurrency", plan.concurrencies)):
        if not values:
            raise PlanError(f"no {what} to sweep")
        twice = [value for index, value in enumerate(values) if value in values[:index]]
        if twice:
            raise PlanError(f"{what} {twice[0]} is listed twice")
    if min(plan.concurrencies) < 1:
        raise PlanError(f"concurrency {min(plan.concurrencies)}: it must be at least 1")
    if plan.blocks < 1:
        raise PlanError(f"--blocks {plan.blocks}: at least one block must run")
    if not 0 < plan.seconds <= 86_400:
        raise PlanError(f"--seconds {plan.seconds:g}: a cell takes more than 0 and at most 86400 seconds")
    return plan


def cells(plan: Plan) -> list[Cell]:
    """Every cell in the order in which it runs, the heat-up block first."""
    planned: list[Cell] = []
    for block in range(HEAT_UP_BLOCK, plan.blocks + 1):
        pairs = [(variant, concurrency) for variant in plan.variants for concurrency in plan.concurrencies]
        random.Random(f"cells:{plan.seed}:{block}").shuffle(pairs)
        discarded = block == HEAT_UP_BLOCK
        for variant, concurrency in pairs:
            planned.append(
                Cell(
                    position=len(planned) + 1,
                    block=block,
                    variant=variant,
                    concurrency=concurrency,
                    warmup_seconds=0.0 if discarded else plan.warmup_seconds,
                    seconds=plan.heat_up_seconds if discarded else plan.seconds,
                )
            )
    return planned


def row_order(plan: Plan, block: int, rows: int) -> list[int]:
    """The order in which a block's cells replay the dataset, repeated from its start when it runs out.

    It depends on the block alone: every variant and concurrency meets the same requests.
    """
    order = list(range(rows))
    random.Random(f"rows:{plan.seed}:{block}").shuffle(order)
    return order


def load_seconds(cell: Cell) -> float:
    """How long a cell puts load on the server; settling its receipts comes on top."""
    return cell.warmup_seconds + cell.seconds
