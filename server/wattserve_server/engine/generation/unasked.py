"""Steps that nobody asked for: by which a variant is warmed up, and by which its law is learned."""

from __future__ import annotations

import numpy as np

from wattserve_server.energy.receipt import Window, Work
from wattserve_server.energy.trials import StepShape
from wattserve_server.engine.generation.cache import CachePool
from wattserve_server.engine.generation.lane import StepLane
from wattserve_server.engine.generation.stepper import Part
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError


class UnaskedStep:
    """A step of one shape, which can be run again and again: its caches hold keys and values of nothing, and
    are never advanced."""

    def __init__(self, lane: StepLane, variant: Variant, shape: StepShape) -> None:
        self._lane, self._variant, self._shape = lane, variant, shape
        facts = variant.model.facts
        pool = CachePool(0, facts.max_tokens)  # of its own, which bounds nothing: its tokens take no bytes
        rng = np.random.default_rng(0)
        self._parts, work = [], []
        for _ in range(shape.sequences):
            cache = pool.open()
            cache.pretend(shape.cached, shape.tokens)
            ids = rng.integers(0, facts.vocabulary_size, shape.tokens, dtype=np.int64)
            self._parts.append(Part(ids, cache, shape.work.logits, decodes=bool(shape.work.read)))
            work.append(shape.work)
        self._work: tuple[Work, ...] = tuple(work)

    def run(self, is_first_run: bool = False) -> Window:
        """On the lane's thread. Raises ConfigError where it fails."""
        window, logits, failure = self._lane.run_step(
            self._variant, self._parts, self._work, is_first_run=is_first_run
        )
        self._lane.run_log.finish(window)
        name = self._variant.name
        if failure is not None:
            raise ConfigError(
                f"variant {name!r} failed its warm-up on {self._shape}: {type(failure).__name__}: {failure}"
            ) from failure
        if logits is None or not all(np.isfinite(rows).all() for rows in logits):
            raise ConfigError(
                f"variant {name!r} answered with NaN or infinity on {self._shape} of warm-up; its weights "
                "are broken or overflow in this precision"
            )
        return window
