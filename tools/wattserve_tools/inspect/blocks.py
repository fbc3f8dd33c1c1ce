"""Timing variants side by side: blocks of runs, in a seeded order, so that drift hits all alike."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from wattserve_common.stats import Interval, percentile, ratio_interval
from wattserve_loadgen.drive.loop import no_garbage_collection
from wattserve_server.engine.variants.variant import Batch, Variant
from wattserve_tools.inspect.joules import BusyClock, Joulemeter, NoFigure, Span

# Blocks of each variant: the sample of every interval. The more there are, the finer the variants are
# interleaved, and the less a disturbance hits only one of them; below five, an interval means little.
FEWEST_ROUNDS, MOST_ROUNDS = 5, 20
_RUNS_PER_BLOCK = 10
_MEASURED_S = 10.0  # all blocks of a variant together should not take much more

# Before a block, for the caches that the variant before it has filled with its own weights.
LEAD_IN_RUNS = 3

# Runs the batch of that number; how long it took, in nanoseconds, from host to host.
Run = Callable[[int], int]


@dataclass
class Block:
    latencies_ns: list[int]  # of the timed runs
    span: Span | None  # the energy of these and of what was added to make the block long enough
    reason: str = ""  # why it has no energy

    def active_uj(self, idle_watts: float) -> float:
        """Of a run; NaN where it is not known."""
        return math.nan if self.span is None else self.span.active_uj(idle_watts) / self.span.runs


@dataclass
class Timed:
    """One variant's blocks, by round."""

    blocks: list[Block]

    @property
    def latencies_ns(self) -> NDArray[np.int64]:
        return np.array([ns for block in self.blocks for ns in block.latencies_ns], dtype=np.int64)

    @property
    def spans(self) -> list[Span]:
        return [block.span for block in self.blocks if block.span is not None]

    @property
    def reason(self) -> str:
        """Why a block has no energy; empty when all have."""
        return next((block.reason for block in self.blocks if block.reason), "")

    def percentile_ms(self, percent: float) -> float | None:
        """None where there are too few runs for it."""
        ns = percentile(self.latencies_ns, percent)
        return None if ns is None else ns / 1e6

    def energy_mj(self, batch_size: int, idle_watts: float = 0.0) -> float | None:
        """Millijoules of one sequence, less what idling would have taken; None without any figure, or
        where so little is left of it that the idle draw must have changed."""
        runs = sum(span.runs for span in self.spans)
        uj = sum(span.active_uj(idle_watts) for span in self.spans)
        return uj / runs / batch_size / 1e3 if runs and uj > 0 else None


class Work:
    """A variant and prepared batches, for it to run by their numbers; its meter, or why it has none."""

    def __init__(
        self, variant: Variant, prepared: Sequence[Batch], busy: BusyClock, meter: Joulemeter | str
    ) -> None:
        self.meter = meter
        self.warmup_runs = 0
        self._variant = variant
        self._prepared = prepared
        self._busy = busy

    def run(self, number: int) -> int:
        """See Run. Numbers beyond the last batch start again with the first."""
        batch = self._prepared[number % len(self._prepared)]
        begun_ns = time.perf_counter_ns()
        self._variant.run(batch)
        ns = time.perf_counter_ns() - begun_ns
        self._busy.add(ns)
        return ns

    def warm_up(self, runs: int) -> None:
        """Every shape once, whatever compiles or tunes for it, then on to `runs`."""
        shapes = {
            (batch.packed_rows, batch.length, *(tensor.shape for tensor in batch.inputs.values())): number
            for number, batch in enumerate(self._prepared)
        }
        for number in (*shapes.values(), *range(runs - len(shapes))):
            self.run(number)
            self.warmup_runs += 1


def run_block(run: Run, numbers: Sequence[int], meter: Joulemeter | str) -> Block:
    """Lead in, time each of the numbered batches, and repeat them all until the meter has seen enough: a
    variant's joules are then of the same batches as every other's."""
    in_turn = cycle(numbers)

    def untimed() -> None:
        run(next(in_turn))

    for _ in range(LEAD_IN_RUNS):
        untimed()
    if isinstance(meter, str) or meter.reason:
        reason = meter if isinstance(meter, str) else meter.reason
        return Block([run(number) for number in numbers], None, reason)
    lead_in_until_ns = meter.clock_ns() + meter.lead_in_s * 1e9
    while meter.clock_ns() < lead_in_until_ns:
        untimed()
    latencies_ns: list[int] = []
    try:
        start, _ = meter.edge(untimed)
        latencies_ns = [run(number) for number in numbers]
        runs = len(numbers)
        while meter.clock_ns() - start.at_ns < meter.block_s * 1e9:
            for number in numbers:
                run(number)
            runs += len(numbers)
        end, more = meter.edge(untimed)
        return Block(latencies_ns, meter.span(start, end, runs + more))
    except NoFigure as unknown:
        return Block(latencies_ns or [run(number) for number in numbers], None, str(unknown))


def rounds_for(iterations: int, block_s: float) -> int:
    """How many rounds to make of so many runs, in blocks of `block_s` at the least, for the meter."""
    wanted = min(MOST_ROUNDS, iterations // _RUNS_PER_BLOCK, int(_MEASURED_S / block_s))
    return min(iterations, max(FEWEST_ROUNDS, wanted))


def time_side_by_side(works: Sequence[Work], iterations: int, rounds: int, seed: int) -> list[Timed]:
    """`iterations` timed runs of each, in `rounds` rounds, each in an order of its own; all run the same
    batches in a round."""
    results = [Timed([]) for _ in works]
    shuffle = random.Random(seed).shuffle
    with no_garbage_collection():
        for turn in range(rounds):
            order = list(range(len(works)))
            shuffle(order)
            numbers = range(iterations * turn // rounds, iterations * (turn + 1) // rounds)
            for index in order:
                gc.collect()
                results[index].blocks.append(run_block(works[index].run, numbers, works[index].meter))
    return results


def speed_up(reference: Timed, other: Timed) -> dict[str, float | None]:
    """The ratio of the two medians over all timed runs, and the 95 % interval of the blocks' ratios."""
    pairs = [
        (float(np.median(ours.latencies_ns)), float(np.median(theirs.latencies_ns)))
        for ours, theirs in zip(reference.blocks, other.blocks, strict=True)
    ]
    ratio = float(np.median(reference.latencies_ns) / np.median(other.latencies_ns))
    return {"ratio": ratio, **_bounds(ratio_interval(pairs))}


def energy_ratio(reference: Timed, other: Timed, idle_watts: float) -> dict[str, float | None]:
    """The variant's active energy per run over fp32's, from the pairs of blocks. pairs: those in which both
    are known and above 0, of so many rounds. Without all of them there is no ratio: the missing are
    not missing at random, but low ones, and the ratio of the others would be biased."""
    pairs = [
        (theirs.active_uj(idle_watts), ours.active_uj(idle_watts))
        for ours, theirs in zip(reference.blocks, other.blocks, strict=True)
    ]
    pairs = [pair for pair in pairs if all(uj > 0 for uj in pair)]
    rounds = len(reference.blocks)
    interval = ratio_interval(pairs) if len(pairs) == rounds else None
    ratio = interval.mean if interval else None
    return {"ratio": ratio, **_bounds(interval), "pairs": len(pairs), "rounds": rounds}


def _bounds(interval: Interval | None) -> dict[str, float | None]:
    return {"low": interval.low, "high": interval.high} if interval else {"low": None, "high": None}
