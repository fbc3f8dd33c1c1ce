"""What makes a variant ready to run on its lane: tuned, verified, warmed up."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from wattserve_common.machine import usable_cores
from wattserve_server.energy.receipt import Window
from wattserve_server.energy.trials import SHORTEST, step_shapes
from wattserve_server.engine.generation.lane import StepLane
from wattserve_server.engine.generation.unasked import UnaskedStep
from wattserve_server.engine.lane import Lane
from wattserve_server.engine.out_of_memory import memory_shortage, wait_for
from wattserve_server.engine.policy import BatchCost, BatchLimits
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants import tuning, verification
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError

log = logging.getLogger(__name__)

Result = TypeVar("Result")

WARM_TOKENS = 2048  # that warm-up pretends to have in the cache, of all sequences

USUAL = 32  # tokens of a usual sequence

FRONT_END_S = 0.0003  # that a request costs outside of its batch, of a core: here and in a client beside it


async def tune(lane: Lane, variant: Variant, threads: int) -> None:
    """Make it fast. threads: that compute its batches; 0: as many as pay."""
    await lane.do(functools.partial(_tune, lane, variant, threads))


async def verify(lane: Lane, variant: Variant) -> None:
    """Have the profiler look. Raises ConfigError for a variant that is not what it says."""
    look = functools.partial(verification.verify, variant)
    variant.verification = await lane.do(functools.partial(_as_warm_up, lane, variant, look))


async def warm_up(lane: Lane, variant: Variant) -> None:
    """Run every shape twice, other variants' batches in between; its first run may compile, tune or allocate.
    Raises ConfigError when one fails, except for a batch that is too large for the memory: then batches will
    be smaller."""
    begun = time.monotonic()
    if isinstance(lane, StepLane):
        await _warm_steps_up(lane, variant)
        variant.warmup_seconds = time.monotonic() - begun
        return
    shapes = warmup_shapes(variant.model.facts.max_tokens, lane.batcher.limits)
    seconds: list[float] = []
    for count, length in tuple(shapes):
        items = await asyncio.to_thread(examples, variant, count, length)
        run = functools.partial(run_unasked, lane, variant, items, is_first_run=True)
        try:
            await lane.do(run)
            window = await lane.do(run)
        except ConfigError as error:
            if count == 1 or not memory_shortage(error):
                raise
            shapes.remove((count, length))
            lane.batcher.limit_tokens(variant.name, count * length // 2)
            log.warning("%s; its batches have no more than half of that", error)
        else:
            seconds.append(window.duration_ns / 1e9)
    packing = variant.packing
    cost = BatchCost(
        overhead_tokens(shapes, seconds),
        packs=packing is not None,
        row_tokens=0 if packing is None else packing.limit,
        width=0 if packing is None else packing.width,
    )
    tokens, duration_s = max(
        ((count * length, took_s) for (count, length), took_s in zip(shapes, seconds, strict=True)),
        default=(0, 0.0),
    )
    lane.batcher.set_cost(variant.name, cost, tokens, round(duration_s * 1e9))
    variant.warmup_seconds = time.monotonic() - begun
    variant.warmup_shapes = len(shapes)


async def _warm_steps_up(lane: StepLane, variant: Variant) -> None:
    limits = lane.batcher.limits
    tokens = min(variant.model.facts.max_tokens, WARM_TOKENS)
    shapes = step_shapes(tokens, limits.max_sequences, limits.max_tokens, WARM_TOKENS)
    for shape in shapes:
        step = await asyncio.to_thread(UnaskedStep, lane, variant, shape)
        for _ in range(2):
            await lane.do(functools.partial(step.run, is_first_run=True))
    variant.warmup_shapes = len(shapes)


def _tune(lane: Lane, variant: Variant, threads: int) -> None:
    _as_warm_up(lane, variant, functools.partial(tuning.tune, variant))
    if variant.device.type != "cpu":
        return
    variant.threads = threads or 1
    if not threads:
        count, length = usual_shape(variant.model.facts.max_tokens, lane.batcher.limits)
        try:
            items = examples(variant, count, length)
            run_unasked(lane, variant, items, is_first_run=True)
            window = run_unasked(lane, variant, items, is_first_run=True)
        except ConfigError as error:
            if not memory_shortage(error):
                raise
            variant.threads = usable_cores()  # the warm-up finds out what fits
        else:
            variant.threads = threads_worth(usable_cores(), window.duration_ns / 1e9 / count)


def _as_warm_up(lane: Lane, variant: Variant, work: Callable[[], Result]) -> Result:
    """Batches that are not run one by one are metered like any other: as warm-up."""
    started_ns, rested_ns = lane.run_log.start()
    try:
        return work()
    finally:
        wait_for(variant.device)
        window = Window(variant.name, started_ns, time.monotonic_ns(), (1,), 1, (), True, rested_ns)
        lane.run_log.finish(window)


def run_unasked(lane: Lane, variant: Variant, items: list[Item], is_first_run: bool = False) -> Window:
    """A batch of one length that nobody asked for. Raises ConfigError where it fails."""
    window, rows, failure = lane.run(variant, items, is_first_run=is_first_run)
    lane.run_log.finish(window)
    shape = f"{len(items)} x {window.lengths[0]} tokens"
    if failure is not None:
        raise ConfigError(
            f"variant {variant.name!r} failed its warm-up on {shape}: {type(failure).__name__}: {failure}"
        ) from failure
    if rows is None or not np.isfinite(rows).all():
        raise ConfigError(
            f"variant {variant.name!r} answered with NaN or infinity on {shape} of warm-up; its weights are "
            "broken or overflow in this precision"
        )
    return window


def examples(variant: Variant, count: int, length: int) -> list[Item]:
    model = variant.model
    return [model.task.example(model.facts, model.tokenizer, length, seed) for seed in range(count)]


def warmup_shapes(max_tokens: int, limits: BatchLimits) -> list[tuple[int, int]]:
    """(sequences, length) pairs: alone at powers of two up to the limit, and the fullest batches of usual and
    of longest sequences."""
    lengths: list[int] = []
    length = SHORTEST
    while length < max_tokens:
        lengths.append(length)
        length *= 2
    shapes = [(1, length) for length in (*lengths, max_tokens)]
    full = (usual_shape(max_tokens, limits), fullest(max_tokens, limits))
    return list(dict.fromkeys((*shapes, *full)))


def usual_shape(max_tokens: int, limits: BatchLimits) -> tuple[int, int]:
    """(sequences, length) of a full batch of usual sequences."""
    return fullest(min(USUAL, max_tokens), limits)


def fullest(length: int, limits: BatchLimits) -> tuple[int, int]:
    """(sequences, length) of the largest batch at that length."""
    return max(1, min(limits.max_sequences, limits.max_tokens // length)), length


def threads_worth(cores: int, sequence_s: float) -> int:
    """How many threads should compute a batch, of a model of which a sequence takes one of them `sequence_s`.

    n threads finish n / sequence_s sequences in a second, which take n / sequence_s * FRONT_END_S of a core
    to bring and to answer. More threads than the cores have left would wait for each other at every barrier.
    """
    return max(1, round(cores / (1 + FRONT_END_S / sequence_s)))


def overhead_tokens(shapes: Sequence[tuple[int, int]], seconds: Sequence[float]) -> float:
    """What starting a batch costs, in computed tokens: the fixed part of a straight line through
    the times over the part per token. Relative errors count, so that small batches are heard."""
    tokens = np.array([count * length for count, length in shapes], dtype=float)
    times = np.array(seconds)
    if len(set(tokens)) < 2:
        return 0.0
    per_token, fixed = np.polyfit(tokens, times, 1, w=1 / times)
    if per_token <= 0:
        return float(tokens.max())
    return float(min(max(fixed / per_token, 0.0), tokens.max()))
