"""The engine: from items to output rows and receipts, for one model on one device or several.

Everything here but the lanes' threads lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from wattserve_server.energy.attribution import split_exact
from wattserve_server.energy.costlaw import LawView, provisional_uj
from wattserve_server.energy.receipt import Outcome
from wattserve_server.energy.trials import TrialPlan
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.lane import Lane
from wattserve_server.engine.loader import Loader, LoadingRules
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.policy import NORMAL_PRIORITY, BatchLimits
from wattserve_server.engine.request import Request
from wattserve_server.engine.roster import Resident, Roster
from wattserve_server.engine.runlog import RunLog
from wattserve_server.engine.runner import BatchResult
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.errors import ExpiredError, InferenceError

GATHER_NS = 1_000_000
"""For how long requests that come are gathered, at the most, while the event loop has other work."""

AT_REST_NS = 30_000
"""A pass of the event loop that took no longer had nothing else to do."""

OnBatch = Callable[[BatchResult], None]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Besides those of a batch, which depend on the device. max_queue: sequences that may wait for each
    device; max_request: of one request."""

    batch: Mapping[torch.device, BatchLimits]
    max_queue: int
    max_request: int


@dataclass(frozen=True, slots=True)
class Metering:
    """How a device's energy is accounted for. law: its cost laws, for provisional figures."""

    run_log: RunLog
    law: Callable[[], LawView]


class Engine:
    """choices: the variants that there may be. metering: of every device among them. `on_batch` sees every
    finished batch; `on_death` is told, on another thread, when a bug has ended a device's thread."""

    def __init__(
        self,
        model: LoadedModel,
        materials: Materials,
        choices: Sequence[Choice],
        default_variant: str,
        rules: LoadingRules,
        limits: EngineLimits,
        book: ReceiptBook,
        metering: Mapping[torch.device, Metering],
        on_batch: OnBatch,
        on_death: Callable[[Exception], None],
    ) -> None:
        self.model = model
        self.roster = Roster(choices)
        self.default_variant = default_variant
        self.limits = limits
        self.book = book
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self.lanes = {
            device: Lane(
                Batcher(limits.batch[device], limits.max_queue, self._expire_soon),
                meter.run_log,
                meter.law,
                self._finish_soon,
                on_death,
            )
            for device, meter in metering.items()
        }
        self.loader = Loader(model, materials, self.roster, self.lanes, rules)
        self._arrivals: dict[Request, Lane] = {}  # to be queued soon
        self._open_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued(self) -> int:
        """Sequences that wait. Any thread."""
        arrived = sum(len(request.sequences) for request in tuple(self._arrivals))
        return arrived + sum(len(lane.batcher) for lane in self.lanes.values())

    def start(self) -> None:
        """Start the devices' threads. What runs on them has to be loaded."""
        for lane in self.lanes.values():
            lane.start()

    async def calibrate(self, plans: Mapping[torch.device, TrialPlan]) -> None:
        """Have the meters listen to every ready variant of a device that has a plan, one at a time."""
        for variant in self.roster.ready:
            if variant.device in plans:
                await self.lanes[variant.device].calibrate(variant, plans[variant.device])

    def stop(self) -> None:
        """End the devices' threads after their batches. Blocks for that long."""
        for lane in self.lanes.values():
            lane.stop()

    async def until_idle(self) -> None:
        """Wait until every accepted request has ended."""
        await self._idle.wait()

    def variant_named(self, name: str) -> str:
        """The variant that a request asks for; the default one for an empty name. Raises NotFound."""
        return self.roster.named(name or self.default_variant).choice.name

    async def predict(
        self,
        items: Sequence[Item],
        variant: str,
        request_id: str = "",
        deadline_ns: int | None = None,
        priority: int = NORMAL_PRIORITY,
    ) -> Request:
        """Run checked items; the request, with its rows and its receipt.

        Raises NotFound; NotPossibleHere for a variant that is not in memory and cannot be; OverloadedError,
        ExpiredError or InferenceError. When the caller is cancelled, what waits leaves the queue and what
        has started is still charged.
        """
        accepted_ns = time.monotonic_ns()  # before a lazy load, which is waiting like any other
        resident = self.roster.named(variant).resident
        if resident is None:
            resident = await self._loaded(variant, deadline_ns)
        ready = resident.variant
        lane = self.lanes[ready.device]
        receipt = self.book.open(request_id, variant, str(ready.device))
        receipt.split_rule = lane.law().split_rule
        receipt.proxy, receipt.is_unverified = ready.kind.proxy, not ready.verification.verified
        answer = self._loop.create_future()
        request = Request(receipt, variant, resident, accepted_ns, deadline_ns, answer, priority)
        for item in items:
            request.add(item, self.model.task.length(item))
        resident.enter()
        self._open_requests += 1
        self._idle.clear()
        self._queue_soon(lane, request)
        expiry = None  # the runner looks between two batches only
        if deadline_ns is not None:
            expiry = self._loop.call_at(deadline_ns / 1e9, self._expire_waiting, lane, request)
        try:
            await request.answer
        except asyncio.CancelledError:
            request.is_cancelled = True
            self._leave(request, self._withdraw(lane, request))
            raise
        finally:
            if expiry is not None:
                expiry.cancel()
        if request.error is not None:
            raise request.error
        return request

    def _queue_soon(self, lane: Lane, request: Request) -> None:
        """Queue it once the event loop is at rest. Among its work may be more requests: one by one, each
        would wake the runner's thread, to fight the event loop for the interpreter's lock over a batch of
        one."""
        if not self._arrivals:
            now_ns = time.monotonic_ns()
            self._loop.call_soon(self._queue_arrivals, now_ns, now_ns)
        self._arrivals[request] = lane

    def _queue_arrivals(self, first_ns: int, last_pass_ns: int) -> None:
        """first_ns: when the first of them came. last_pass_ns: when the event loop was here last."""
        now_ns = time.monotonic_ns()
        if now_ns - last_pass_ns > AT_REST_NS and now_ns - first_ns < GATHER_NS:
            self._loop.call_soon(self._queue_arrivals, first_ns, now_ns)
            return
        arrivals, self._arrivals = self._arrivals, {}
        for request, lane in arrivals.items():
            try:
                lane.batcher.put(request)
            except Exception as error:  # it belongs to whoever asked
                request.error = error
                self._leave(request, request.remaining)

    def _withdraw(self, lane: Lane, request: Request) -> int:
        """Take its sequences out of the queue, or from those to be queued; how many there were."""
        if self._arrivals.pop(request, None) is not None:
            return request.remaining
        return lane.batcher.withdraw(request)

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
        request.resident.leave()
        self._open_requests -= 1
        if not self._open_requests:
            self._idle.set()
        if not request.answer.done():
            request.answer.set_result(None)

    async def _loaded(self, variant: str, deadline_ns: int | None) -> Resident:
        """What runs it, loaded within the deadline."""
        try:
            async with asyncio.timeout_at(None if deadline_ns is None else deadline_ns / 1e9):
                return await self.loader.ready(variant)
        except TimeoutError:
            raise ExpiredError(f"the deadline passed while variant {variant!r} was loaded") from None

    def _expire_waiting(self, lane: Lane, request: Request) -> None:
        if count := self._withdraw(lane, request):
            self._expire(request, count)

    def _expire_soon(self, request: Request, count: int) -> None:
        self._loop.call_soon_threadsafe(self._expire, request, count)

    def _expire(self, request: Request, count: int) -> None:
        request.error = ExpiredError("the deadline passed while the request waited in the queue")
        self._leave(request, count)

    def _finish_soon(self, result: BatchResult) -> None:
        self._loop.call_soon_threadsafe(self._finish, result)

    def _finish(self, result: BatchResult) -> None:
        window = result.window
        lane = self.lanes[self.roster.named(window.variant).choice.device]
        costs = provisional_uj(lane.law(), window)
        duration_ns, finite = window.duration_ns, result.finite.tolist()
        padded = (
            split_exact(window.computed_tokens, window.lengths)
            if window.packed_rows
            else [window.padded_length] * len(window.lengths)
        )
        for request in {sequence.request for sequence in result.sequences}:
            if result.warning and result.warning not in request.receipt.warnings:
                request.receipt.warnings.append(result.warning)
            if window.start_ns > request.last_started_ns:
                request.last_started_ns, request.last_compute_ns = window.start_ns, duration_ns
            request.compute_ns += duration_ns
        for position, sequence in enumerate(result.sequences):
            line, request = sequence.line, sequence.request
            line.batch_size = len(result.sequences)  # less than was taken where the batch was split
            line.padded_tokens = padded[position]
            line.compute_ns = duration_ns
            line.provisional_uj = costs[position]
            if result.rows is None:
                request.error = result.error
            else:
                request.rows[sequence.index] = result.rows[position]
                if not finite[position]:  # never returned as if it were an answer
                    request.error = InferenceError(
                        f"variant {request.variant!r} answered with NaN or infinity "
                        f"for sequence {sequence.index}"
                    )
            self._leave(request, 1)
        self._on_batch(result)
