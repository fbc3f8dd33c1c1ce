"""The runner: the one thread of a device that runs batches, one after the other.

Windows of one device therefore never overlap. The same thread warms the variants up, so that what
the runtime keeps per thread (thread teams, caches, handles) is warm where it is used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.window import Window
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.request import Sequence
from wattserve_server.engine.runlog import RunLog
from wattserve_server.errors import InferenceError

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch that has run. rows: float32 [sequences, width], or None when it failed with `error`. finite: of
    each row, whether it holds neither NaN nor infinity."""

    sequences: list[Sequence]
    window: Window
    rows: NDArray[np.float32] | None
    finite: NDArray[np.bool_]
    error: InferenceError | None

    @property
    def not_finite(self) -> int:
        """Sequences answered with NaN or infinity."""
        return len(self.finite) - int(self.finite.sum())


class Runner:
    """on_done is called on the runner's thread with every batch's result; on_death once, should a bug end the
    thread: nothing will run any more."""

    def __init__(
        self,
        batcher: Batcher,
        run_log: RunLog,
        on_done: Callable[[BatchResult], None],
        on_death: Callable[[Exception], None],
    ) -> None:
        self._batcher = batcher
        self._run_log = run_log
        self._on_done = on_done
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name="wattserve-runner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, chore: Callable[[], Result]) -> Future[Result]:
        """Have the runner's thread call it between two batches. The future holds what it returns or
        raises."""
        done: Future[Result] = Future()

        def call() -> None:
            try:
                done.set_result(chore())
            except BaseException as error:  # it belongs to whoever asked
                done.set_exception(error)

        self._batcher.add_chore(call)
        return done

    def stop(self) -> None:
        """End the thread after the batch it is running."""
        self._batcher.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while (work := self._batcher.take()) is not None:
                if isinstance(work, list):
                    self._on_done(self._run_batch(work))
                else:
                    work()
                del work  # else the last batch, and the variant that a chore holds, would live until the next
        except Exception as error:
            log.exception("the runner's thread has died")
            self._on_death(error)

    def _run_batch(self, batch: list[Sequence]) -> BatchResult:
        variant = batch[0].request.resident.variant
        rows: NDArray[np.float32] | None = None
        error: InferenceError | None = None
        started_ns = rested_ns = 0
        try:
            inputs = variant.prepare([sequence.item for sequence in batch])
            started_ns, rested_ns = self._run_log.start()
            rows = variant.run(inputs)
        except Exception as failure:  # whatever a model may raise: the server outlives it
            log.exception("variant %s failed on a batch of %d", variant.name, len(batch))
            error = InferenceError(f"variant {variant.name!r} failed on a batch: {type(failure).__name__}")
            if not started_ns:
                started_ns, rested_ns = self._run_log.start()
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
        finite: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        if rows is not None:
            finite = np.asarray(np.isfinite(rows).all(axis=1))
        return BatchResult(batch, window, rows, finite, error)
