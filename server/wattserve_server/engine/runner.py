"""The runner: the one thread of a device that runs batches, one after the other.

Windows of one device therefore never overlap. The same thread warms the variants up, so that what
the runtime keeps per thread (thread teams, caches, handles) is warm where it is used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.trials import TrialPlan
from wattserve_server.energy.window import Window
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.request import Sequence
from wattserve_server.engine.runlog import RunLog
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.engine.warmup import overhead_tokens, warmup_sequence, warmup_shapes
from wattserve_server.errors import ConfigError, InferenceError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch that has run. rows: float32 [sequences, width], or None when it failed with `error`."""

    sequences: list[Sequence]
    window: Window
    rows: NDArray[np.float32] | None
    error: InferenceError | None


class Runner:
    """on_done is called on the runner's thread with every batch's result; on_death once, should a bug
    end the thread: nothing will run any more."""

    def __init__(
        self,
        model: LoadedModel,
        variants: Mapping[str, Variant],
        batcher: Batcher,
        run_log: RunLog,
        on_done: Callable[[BatchResult], None],
        on_death: Callable[[Exception], None],
    ) -> None:
        self._model = model
        self._variants = variants
        self._batcher = batcher
        self._run_log = run_log
        self._on_done = on_done
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name="wattserve-runner", daemon=True)
        self._calibration: TrialPlan | None = None
        self._warm: Future[None] = Future()

    def start(self, calibration: TrialPlan | None = None) -> Future[None]:
        """Start the thread; the future is done when every variant is warm and, given a plan, calibrated, or
        holds a ConfigError."""
        self._calibration = calibration
        self._thread.start()
        return self._warm

    def stop(self) -> None:
        """End the thread after the batch it is running."""
        self._batcher.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            for variant in self._variants.values():
                self._warm_up(variant)
            if self._calibration is not None:
                for variant in self._variants.values():
                    self._calibrate(variant, self._calibration)
        except ConfigError as error:
            self._warm.set_exception(error)
            return
        except Exception as error:
            self._warm.set_exception(ConfigError(f"the warm-up failed: {type(error).__name__}: {error}"))
            return
        self._warm.set_result(None)
        try:
            while (batch := self._batcher.take()) is not None:
                self._on_done(self._run_batch(batch))
        except Exception as error:
            log.exception("the runner's thread has died")
            self._on_death(error)

    def _run_batch(self, batch: list[Sequence]) -> BatchResult:
        variant = self._variants[batch[0].request.variant]
        rows: NDArray[np.float32] | None = None
        error: InferenceError | None = None
        started_ns, rested_ns = self._run_log.start()
        try:
            rows = variant.run([sequence.ids for sequence in batch])
        except Exception as failure:  # whatever a model may raise: the server outlives it
            log.exception("variant %s failed on a batch of %d", variant.name, len(batch))
            error = InferenceError(f"variant {variant.name!r} failed on a batch: {type(failure).__name__}")
        window = Window(
            variant=variant.name,
            start_ns=started_ns,
            end_ns=time.monotonic_ns(),
            lengths=tuple(sequence.length for sequence in batch),
            padded_length=max(sequence.length for sequence in batch),
            lines=tuple(sequence.line for sequence in batch),
            rested_ns=rested_ns,
        )
        self._run_log.finish(window)
        return BatchResult(batch, window, rows, error)

    def _warm_up(self, variant: Variant) -> None:
        begun = time.monotonic()
        shapes = warmup_shapes(self._model.max_tokens, self._batcher.limits)
        seconds: list[float] = []
        for count, length in shapes:
            ids = [warmup_sequence(self._model, length, seed) for seed in range(count)]
            for _ in range(2):  # the first run of a shape may compile, tune or allocate
                window = self._try_out(variant, ids, is_first_run=True)
            seconds.append(window.duration_ns / 1e9)
        self._batcher.set_overhead_tokens(variant.name, overhead_tokens(shapes, seconds))
        variant.warmup_seconds = time.monotonic() - begun
        variant.warmup_shapes = len(shapes)

    def _calibrate(self, variant: Variant, plan: TrialPlan) -> None:
        """Run each shape for as long as the sensor needs, so that the variant's cost law can be learned."""
        for count, length in plan.shapes:
            ids = [warmup_sequence(self._model, length, seed) for seed in range(count)]
            until = time.monotonic() + plan.trial_s
            while True:
                self._try_out(variant, ids, is_first_run=False)
                if time.monotonic() >= until:
                    break
            time.sleep(plan.pause_s)

    def _try_out(self, variant: Variant, ids: list[NDArray[np.int64]], is_first_run: bool) -> Window:
        """Run a batch of one length that nobody asked for. Raises ConfigError where it fails."""
        count, length = len(ids), len(ids[0])
        failure: Exception | None = None
        rows: NDArray[np.float32] | None = None
        started_ns, rested_ns = self._run_log.start()
        try:
            rows = variant.run(ids)
        except Exception as error:
            failure = error
        window = Window(
            variant=variant.name,
            start_ns=started_ns,
            end_ns=time.monotonic_ns(),
            lengths=(length,) * count,
            padded_length=length,
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
