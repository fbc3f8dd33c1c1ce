"""The engine: from token ids to output rows and receipts, for one model on one device.

Everything here but the runner's thread lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.costlaw import LawView, provisional_uj
from wattserve_server.energy.receipt import Outcome
from wattserve_server.energy.trials import TrialPlan
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.request import Request
from wattserve_server.engine.runlog import RunLog
from wattserve_server.engine.runner import BatchResult, Runner
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ExpiredError, InferenceError, NotFound

OnBatch = Callable[[BatchResult], None]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Besides those of a batch. max_queue: sequences that may wait; max_request: of one request."""

    batch: BatchLimits
    max_queue: int
    max_request: int


class Engine:
    """`law` gives the cost laws for provisional figures; `on_batch` sees every finished batch;
    `on_death` is told, on another thread, when a bug has ended the runner."""

    def __init__(
        self,
        model: LoadedModel,
        variants: Mapping[str, Variant],
        default_variant: str,
        limits: EngineLimits,
        book: ReceiptBook,
        run_log: RunLog,
        law: Callable[[], LawView],
        on_batch: OnBatch,
        on_death: Callable[[Exception], None],
    ) -> None:
        self.model = model
        self.variants = variants
        self.default_variant = default_variant
        self.limits = limits
        self.book = book
        self._law = law
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._batcher = Batcher(limits.batch, limits.max_queue, self._expire_soon)
        self._runner = Runner(model, variants, self._batcher, run_log, self._finish_soon, on_death)
        self._open_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued(self) -> int:
        """Sequences that wait."""
        return len(self._batcher)

    async def start(self, calibration: TrialPlan | None = None) -> None:
        """Warm every variant up, and calibrate it if there is a plan. Raises ConfigError when one fails."""
        await asyncio.wrap_future(self._runner.start(calibration))

    def stop(self) -> None:
        """End the runner's thread after its batch. Blocks for that long."""
        self._runner.stop()

    async def until_idle(self) -> None:
        """Wait until every accepted request has ended."""
        await self._idle.wait()

    def variant_named(self, name: str) -> str:
        """The variant to run; the default one for an empty name. Raises NotFound."""
        if not name:
            return self.default_variant
        if name not in self.variants:
            raise NotFound(f"unknown variant {name!r}; loaded: {', '.join(self.variants)}", "variant")
        return name

    async def predict(
        self,
        sequences: Sequence[NDArray[np.int64]],
        variant: str,
        request_id: str = "",
        deadline_ns: int | None = None,
    ) -> Request:
        """Run checked sequences of token ids; the request, with its rows and its receipt.

        Raises OverloadedError, ExpiredError or InferenceError. When the caller is cancelled, what
        waits leaves the queue and what has started is still charged.
        """
        receipt = self.book.open(request_id, variant, str(self.variants[variant].device))
        receipt.split_rule = self._law().split_rule
        request = Request(receipt, variant, time.monotonic_ns(), deadline_ns, self._loop.create_future())
        for ids in sequences:
            request.add(ids)
        try:
            self._batcher.put(request)
        except Exception:
            receipt.end(Outcome.FAILED)
            self.book.ended(receipt)
            raise
        self._open_requests += 1
        self._idle.clear()
        try:
            await request.answer
        except asyncio.CancelledError:
            request.is_cancelled = True
            self._leave(request, self._batcher.withdraw(request))
            raise
        if request.error is not None:
            raise request.error
        return request

    def _leave(self, request: Request, count: int) -> None:
        """`count` of its sequences are done with, having run or not."""
        request.remaining -= count
        if request.remaining or request.receipt.outcome is not Outcome.OPEN:
            return
        if request.is_cancelled:
            request.receipt.end(Outcome.CANCELLED)
        else:
            request.receipt.end(Outcome.FAILED if request.error else Outcome.COMPLETED)
        self.book.ended(request.receipt)
        self._open_requests -= 1
        if not self._open_requests:
            self._idle.set()
        if not request.answer.done():
            request.answer.set_result(None)

    def _expire_soon(self, request: Request, count: int) -> None:
        self._loop.call_soon_threadsafe(self._expire, request, count)

    def _expire(self, request: Request, count: int) -> None:
        request.error = ExpiredError("the deadline passed while the request waited in the queue")
        self._leave(request, count)

    def _finish_soon(self, result: BatchResult) -> None:
        self._loop.call_soon_threadsafe(self._finish, result)

    def _finish(self, result: BatchResult) -> None:
        window = result.window
        costs = provisional_uj(self._law(), window)
        for request in {sequence.request for sequence in result.sequences}:
            request.last_started_ns = max(request.last_started_ns, window.start_ns)
            request.compute_ns += window.duration_ns
        for position, sequence in enumerate(result.sequences):
            line, request = sequence.line, sequence.request
            line.padded_tokens = window.padded_length
            line.compute_ns = window.duration_ns
            line.provisional_uj = costs[position]
            if result.rows is None:
                request.error = result.error
            else:
                row = result.rows[position]
                request.rows[sequence.index] = row
                if not np.isfinite(row).all():
                    request.error = InferenceError(
                        f"variant {request.variant!r} answered with NaN or infinity "
                        f"for sequence {sequence.index}"
                    )
            self._leave(request, 1)
        self._on_batch(result)
