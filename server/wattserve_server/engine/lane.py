"""A lane: one device's queue and thread, and what makes a variant ready to run there."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.costlaw import LawView
from wattserve_server.energy.trials import TrialPlan
from wattserve_server.energy.window import Window
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.device import usable_cores
from wattserve_server.engine.out_of_memory import memory_shortage
from wattserve_server.engine.policy import BatchCost
from wattserve_server.engine.runlog import RunLog
from wattserve_server.engine.runner import BatchResult, Runner
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.tuning import tune
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.variants.verification import Verification, verify
from wattserve_server.engine.warmup import overhead_tokens, threads_worth, usual_shape, warmup_shapes
from wattserve_server.errors import ConfigError

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Lane:
    """law: the device's cost laws, for provisional figures."""

    def __init__(
        self,
        batcher: Batcher,
        run_log: RunLog,
        law: Callable[[], LawView],
        on_done: Callable[[BatchResult], None],
        on_death: Callable[[Exception], None],
    ) -> None:
        self.batcher = batcher
        self.law = law
        self._run_log = run_log
        self._runner = Runner(batcher, run_log, on_done, on_death)

    def start(self) -> None:
        self._runner.start()

    def stop(self) -> None:
        """End the thread after its batch. Blocks for that long."""
        self._runner.stop()

    async def tune(self, variant: Variant, threads: int) -> None:
        """Make it fast. threads: that compute its batches; 0: as many as pay."""
        await self._do(functools.partial(self._tune, variant, threads))

    async def verify(self, variant: Variant) -> None:
        """Have the profiler look. Raises ConfigError for a variant that is not what it says."""
        variant.verification = await self._do(functools.partial(self._verify, variant))

    async def warm_up(self, variant: Variant) -> None:
        """Run every shape twice, other variants' batches in between. Raises ConfigError when one fails, but
        for a batch that is too large for the memory: then batches will be smaller."""
        begun = time.monotonic()
        shapes = warmup_shapes(variant.model.facts.max_tokens, self.batcher.limits)
        seconds: list[float] = []
        for count, length in tuple(shapes):
            try:
                window = await self._do(functools.partial(self._warm_up_shape, variant, count, length))
            except ConfigError as error:
                if count == 1 or not memory_shortage(error):
                    raise
                shapes.remove((count, length))
                self.batcher.limit_tokens(variant.name, count * length // 2)
                log.warning("%s; its batches have no more than half of that", error)
            else:
                seconds.append(window.duration_ns / 1e9)
        packing = variant.packing
        self.batcher.set_cost(
            variant.name,
            BatchCost(
                overhead_tokens(shapes, seconds),
                packs=packing is not None,
                width=0 if packing is None else packing.width,
            ),
        )
        variant.warmup_seconds = time.monotonic() - begun
        variant.warmup_shapes = len(shapes)

    async def calibrate(self, variant: Variant, plan: TrialPlan) -> None:
        """Run each shape for as long as the sensor needs, so that the variant's cost law can be learned."""
        for count, length in plan.shapes:
            await self._do(functools.partial(self._try_for, variant, count, length, plan.trial_s))
            await asyncio.sleep(plan.pause_s)

    async def _do(self, chore: Callable[[], Result]) -> Result:
        return await asyncio.wrap_future(self._runner.do(chore))

    def _warm_up_shape(self, variant: Variant, count: int, length: int) -> Window:
        """Twice: the first run of a shape may compile, tune or allocate."""
        items = _examples(variant, count, length)
        self._run(variant, items, is_first_run=True)
        return self._run(variant, items, is_first_run=True)

    def _try_for(self, variant: Variant, count: int, length: int, seconds: float) -> None:
        items = _examples(variant, count, length)
        until = time.monotonic() + seconds
        while True:
            self._run(variant, items, is_first_run=False)
            if time.monotonic() >= until:
                break

    def _tune(self, variant: Variant, threads: int) -> None:
        self._as_warm_up(variant, functools.partial(tune, variant))
        if variant.device.type != "cpu":
            return
        variant.threads = threads or 1
        if not threads:
            count, length = usual_shape(variant.model.facts.max_tokens, self.batcher.limits)
            try:
                window = self._warm_up_shape(variant, count, length)
            except ConfigError as error:
                if not memory_shortage(error):
                    raise
                variant.threads = usable_cores()  # the warm-up finds out what fits
            else:
                variant.threads = threads_worth(usable_cores(), window.duration_ns / 1e9 / count)

    def _verify(self, variant: Variant) -> Verification:
        return self._as_warm_up(variant, functools.partial(verify, variant))

    def _as_warm_up(self, variant: Variant, work: Callable[[], Result]) -> Result:
        """Batches that are not run one by one are metered like any other: as warm-up."""
        started_ns, rested_ns = self._run_log.start()
        try:
            return work()
        finally:
            self._run_log.finish(
                Window(variant.name, started_ns, time.monotonic_ns(), (1,), 1, (), True, rested_ns)
            )

    def _run(self, variant: Variant, items: list[Item], is_first_run: bool) -> Window:
        """A batch of one length that nobody asked for. Raises ConfigError where it fails."""
        count, length = len(items), variant.model.task.length(items[0])
        failure: Exception | None = None
        rows: NDArray[np.float32] | None = None
        batch = variant.prepare(items)
        started_ns, rested_ns = self._run_log.start()
        try:
            rows = variant.run(batch)
        except Exception as error:
            failure = error
        window = Window(
            variant=variant.name,
            start_ns=started_ns,
            end_ns=time.monotonic_ns(),
            lengths=(length,) * count,
            padded_length=batch.length,
            is_first_run=is_first_run,
            rested_ns=rested_ns,
        )
        self._run_log.finish(window)
        if failure is not None:
            raise ConfigError(
                f"variant {variant.name!r} failed its warm-up on {count} x {length} tokens: "
                f"{type(failure).__name__}: {failure}"
            ) from failure
        if rows is None or not np.isfinite(rows).all():
            raise ConfigError(
                f"variant {variant.name!r} answered with NaN or infinity on {count} x {length} "
                "tokens of warm-up; its weights are broken or overflow in this precision"
            )
        return window


def _examples(variant: Variant, count: int, length: int) -> list[Item]:
    model = variant.model
    return [model.task.example(model.facts, model.tokenizer, length, seed) for seed in range(count)]
