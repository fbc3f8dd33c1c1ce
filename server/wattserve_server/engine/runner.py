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
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.window import Window
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.out_of_memory import (
    LearnedLimits,
    as_far_as_it_came,
    free_unused,
    halves,
    memory_shortage,
    too_large,
    wait_for,
)
from wattserve_server.engine.request import Sequence
from wattserve_server.engine.runlog import RunLog
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import InferenceError, WattserveError

log = logging.getLogger(__name__)

Result = TypeVar("Result")

SPLIT_BATCH = (
    "its batch ran out of memory and was run in parts; what the failed attempt used is in the warm-up "
    "account, not in this figure"
)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch that has run, or a part of one that was split. rows: float32 [sequences, width], or None when
    it failed with `error`. finite: of each row, whether it holds neither NaN nor infinity. warning: for the
    receipts of its sequences; empty when there is nothing to say."""

    sequences: list[Sequence]
    window: Window
    rows: NDArray[np.float32] | None
    finite: NDArray[np.bool_]
    error: WattserveError | None
    warning: str = ""

    @property
    def not_finite(self) -> int:
        """Sequences answered with NaN or infinity."""
        return len(self.finite) - int(self.finite.sum())


class Runner:
    """on_done is called on the runner's thread with every batch's result (of one that was split, with every
    part's); on_death once, should a bug end the
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
        self._limits = LearnedLimits(batcher)
        self._ns_per_token: dict[str, float] = {}  # by variant, of its fastest batch
        self._thread = threading.Thread(target=self._run, name="wattserve-runner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, chore: Callable[[], Result]) -> Future[Result]:
        """Have the runner's thread call it between two batches. The future holds what it returns or
        raises."""
        done: Future[Result] = Future()

        def call() -> None:
            if not done.set_running_or_notify_cancel():  # whoever asked has left
                return
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
                    self._run_batch(work)
                else:
                    work()
                del work  # else the last batch, and the variant that a chore holds, would live until the next
        except Exception as error:
            log.exception("the runner's thread has died")
            self._on_death(error)

    def _run_batch(self, batch: list[Sequence]) -> None:
        """Report the batch, or, where memory does not suffice for it, its parts one by one."""
        self._limits.forget_old()
        variant = batch[0].request.resident.variant
        parts = [batch]
        failed: list[int] = []
        worked: list[int] = []
        while parts:
            part = parts.pop()
            result, shortage = self._try(variant, part)
            tokens = result.window.computed_tokens
            if shortage:
                spent = as_far_as_it_came(result.window, self._ns_per_token.get(variant.name))
                if len(part) > 1:
                    failed.append(tokens)
                    # Its lines belong to the windows of the parts: each is charged once.
                    self._run_log.finish(replace(spent, lines=(), is_first_run=True))
                    parts += reversed(halves(part))
                    continue
                longest = result.window.padded_length
                error = too_large(variant.name, variant.device, longest)
                result = replace(result, window=spent, error=error)
            elif result.rows is not None:
                worked.append(tokens)
                rate = result.window.duration_ns / tokens
                self._ns_per_token[variant.name] = min(rate, self._ns_per_token.get(variant.name, rate))
            self._run_log.finish(result.window)
            self._on_done(replace(result, warning=SPLIT_BATCH) if failed else result)
        if failed:
            self._limits.learn(variant.name, failed, worked)

    def _try(self, variant: Variant, batch: list[Sequence]) -> tuple[BatchResult, str]:
        """Run a batch; with its result, what the allocator said where memory did not suffice."""
        rows: NDArray[np.float32] | None = None
        error: InferenceError | None = None
        shortage = ""
        started_ns = rested_ns = packed_rows = 0
        padded_length = max(sequence.length for sequence in batch)
        try:
            prepared = variant.prepare([sequence.item for sequence in batch])
            padded_length, packed_rows = prepared.length, prepared.packed_rows
            started_ns, rested_ns = self._run_log.start()
            rows = variant.run(prepared)
        except Exception as failure:  # whatever a model may raise: the server outlives it
            shortage = memory_shortage(failure)
            if shortage:
                log.warning(
                    "variant %s ran out of memory on a batch of %d, in rows of %d tokens: %s",
                    variant.name, len(batch), padded_length, shortage,
                )  # fmt: skip
                wait_for(variant.device)
            else:
                log.exception("variant %s failed on a batch of %d", variant.name, len(batch))
                error = InferenceError(
                    f"variant {variant.name!r} failed on a batch: {type(failure).__name__}"
                )
            if not started_ns:
                started_ns, rested_ns = self._run_log.start()
        window = Window(
            variant=variant.name,
            start_ns=started_ns,
            end_ns=time.monotonic_ns(),
            lengths=tuple(sequence.length for sequence in batch),
            padded_length=padded_length,
            lines=tuple(sequence.line for sequence in batch),
            rested_ns=rested_ns,
            packed_rows=packed_rows,
        )
        if shortage:
            free_unused(variant.device, generation=1)  # the failure, and what its traceback held, is gone
        finite: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        if rows is not None:
            finite = np.asarray(np.isfinite(rows).all(axis=1))
        return BatchResult(batch, window, rows, finite, error), shortage
