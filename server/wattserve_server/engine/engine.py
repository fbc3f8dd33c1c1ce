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
from wattserve_server.energy.costlaw import provisional_uj
from wattserve_server.energy.receipt import Window
from wattserve_server.energy.trials import TrialPlan
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.gputime import timing_of
from wattserve_server.engine.lane import BatchResult, Lane, Laws, RunLog
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.policy import NORMAL_PRIORITY, BatchLimits
from wattserve_server.engine.queued import Answer, Request
from wattserve_server.engine.roster import HostedVariant, Loader, LoadingRules, Resident, Roster
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.errors import ExpiredError, InferenceError

# For how long requests that come are gathered, at the most, while the event loop has other work.
GATHER_NS = 1_000_000

AT_REST_NS = 30_000  # a pass of the event loop that took no longer had nothing else to do

OnBatch = Callable[[Window, bool, int], None]  # whether it failed; how many rows hold NaN or infinity


@dataclass(frozen=True, slots=True)
class EngineLimits:
    batch: Mapping[torch.device, BatchLimits]
    max_queue: int  # sequences that may wait for each device
    max_request: int  # sequences of one request
    max_queue_ns: float = float("inf")  # for which a request may have to wait when it comes


@dataclass(frozen=True, slots=True)
class Metering:
    """How a device's energy is accounted for."""

    run_log: RunLog
    laws: Mapping[str, Laws]  # by the part of the machine whose counter taught them
    trials: TrialPlan | None = None  # from which it learns what a variant costs; None: it does not


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
        soon = self._loop.call_soon_threadsafe  # what the lanes' threads call
        self.lanes = {
            device: Lane(
                Batcher(
                    limits.batch[device],
                    limits.max_queue,
                    lambda request, count: soon(self._expire, request, count),
                    limits.max_queue_ns,
                ),
                meter.run_log,
                meter.laws,
                timing_of(device),
                lambda result: soon(self._finish, result),
                on_death,
            )
            for device, meter in metering.items()
        }
        trials = {device: meter.trials for device, meter in metering.items() if meter.trials is not None}
        self.loader = Loader(model, materials, self.roster, self.lanes, rules, trials)
        self._arrivals: dict[Request, None] = {}  # to be queued soon
        self._open_requests = 0
        self.abandoned = 0  # sequences computed for callers who had left
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued(self) -> int:
        """Sequences that wait. Any thread."""
        arrived = sum(len(request.sequences) for request in tuple(self._arrivals))
        return arrived + sum(len(lane.batcher) for lane in self.lanes.values())

    @property
    def queued_callers(self) -> int:
        """Who have something waiting, for each device. Any thread."""
        return sum(lane.batcher.callers for lane in self.lanes.values())

    def wait_ns(self) -> float:
        """For how long what waits will take, on the device where that is longest. Any thread."""
        now_ns = time.monotonic_ns()
        return max(lane.batcher.wait_ns(now_ns) for lane in self.lanes.values())

    def check_room(self, hosted: HostedVariant, deadline_ns: int | None, priority: int, caller: str) -> None:
        """Raises OverloadedError where `predict` would refuse even the smallest request: before anything is
        done for one."""
        if hosted.resident is not None:
            lane = self.lanes[hosted.choice.device]
            lane.batcher.check_room(hosted.choice.name, priority, deadline_ns, caller)

    def start(self) -> None:
        """Start the devices' threads. What runs on them has to be loaded."""
        for lane in self.lanes.values():
            lane.start()

    def stop(self) -> None:
        """End the devices' threads after their batches. Blocks for that long."""
        for lane in self.lanes.values():
            lane.stop()

    async def until_idle(self) -> None:
        """Wait until every accepted request has ended."""
        await self._idle.wait()

    def hosted(self, name: str) -> HostedVariant:
        """The variant that a request asks for; the default one for an empty name. Raises NotFound."""
        return self.roster.named(name or self.default_variant)

    async def predict(
        self,
        items: Sequence[Item],
        hosted: HostedVariant,
        request_id: str = "",
        deadline_ns: int | None = None,
        priority: int = NORMAL_PRIORITY,
        waits_until_ns: int | None = None,
        tenant: str = "",
        caller: str = "",
    ) -> Answer:
        """Run checked items. waits_until_ns: when it leaves the queue, if not at its deadline. tenant: whose
        the receipt is. caller: among whom the device is shared.

        Raises NotPossibleHere for a variant that is not in memory and cannot be; OverloadedError,
        ExpiredError or InferenceError. When the caller is cancelled, what waits leaves the queue and what
        has started is still charged.
        """
        accepted_ns = time.monotonic_ns()  # before a lazy load, which is waiting like any other
        ends_ns = [end_ns for end_ns in (deadline_ns, waits_until_ns) if end_ns is not None]
        resident = hosted.resident or await self._loaded(hosted, min(ends_ns, default=None))
        variant = resident.variant
        lane = self.lanes[variant.device]
        receipt = self.book.open(request_id, variant.name, str(variant.device), tuple(lane.laws), tenant)
        receipt.split_rule = lane.split_rule
        receipt.proxy, receipt.is_unverified = variant.kind.proxy, not variant.verification.verified
        answer: asyncio.Future[Answer] = self._loop.create_future()
        request = Request(receipt, resident, lane, accepted_ns, deadline_ns, answer, priority, caller)
        request.waits_until_ns = waits_until_ns
        for item in items:
            request.add(item, self.model.task.length(item))
        resident.enter()
        self._open_requests += 1
        self._idle.clear()
        self._queue_soon(request)
        expiry = None  # the lane looks between two batches only
        if (leaves_ns := request.leaves_ns) is not None:
            expiry = self._loop.call_at(leaves_ns / 1e9, self._expire_waiting, request)
        try:
            return await answer
        except asyncio.CancelledError:
            self._leave(request, self._withdraw(request))
            raise
        finally:
            if expiry is not None:
                expiry.cancel()

    def _queue_soon(self, request: Request) -> None:
        """Queue it once the event loop is at rest. Among its work may be more requests: one by one, each
        would wake the lane's thread, to fight the event loop for the interpreter's lock over a batch of
        one."""
        if not self._arrivals:
            now_ns = time.monotonic_ns()
            self._loop.call_soon(self._queue_arrivals, now_ns, now_ns)
        self._arrivals[request] = None

    def _queue_arrivals(self, first_ns: int, last_pass_ns: int) -> None:
        """first_ns: when the first of them came. last_pass_ns: when the event loop was here last."""
        now_ns = time.monotonic_ns()
        if now_ns - last_pass_ns > AT_REST_NS and now_ns - first_ns < GATHER_NS:
            self._loop.call_soon(self._queue_arrivals, first_ns, now_ns)
            return
        arrivals, self._arrivals = self._arrivals, {}
        for request in arrivals:
            try:
                for evicted in request.lane.batcher.put(request):
                    self._leave(*evicted)
            except Exception as error:  # it belongs to whoever asked
                self._leave(request, request.remaining, error)

    def _withdraw(self, request: Request) -> int:
        """Take its sequences out of the queue, or from those to be queued; how many there were."""
        if request in self._arrivals:
            del self._arrivals[request]
            return request.remaining
        return request.lane.batcher.withdraw(request)

    def _leave(self, request: Request, count: int, error: Exception | None = None) -> None:
        """`count` of its sequences are done with, without having run."""
        if request.leave(count, error):
            self._end(request)

    def _end(self, request: Request) -> None:
        request.end()
        self.book.ended(request.receipt)
        request.resident.leave()
        self._open_requests -= 1
        if not self._open_requests:
            self._idle.set()

    async def _loaded(self, hosted: HostedVariant, deadline_ns: int | None) -> Resident:
        """What runs it, loaded within the deadline."""
        try:
            async with asyncio.timeout_at(None if deadline_ns is None else deadline_ns / 1e9):
                return await self.loader.ready(hosted)
        except TimeoutError:
            name = hosted.choice.name
            raise ExpiredError(f"the deadline passed while variant {name!r} was loaded") from None

    def _expire_waiting(self, request: Request) -> None:
        if count := self._withdraw(request):
            self._expire(request, count)

    def _expire(self, request: Request, count: int) -> None:
        error = ExpiredError(
            "the deadline passed while the request waited in the queue, or would have while it ran"
        )
        self._leave(request, count, error)

    def _finish(self, result: BatchResult) -> None:
        window = result.window
        lane = result.sequences[0].request.lane
        costs = list(zip(*(provisional_uj(laws.law, window) for laws in lane.laws.values()), strict=True))
        padded = (
            split_exact(window.computed_tokens, window.lengths)
            if window.packed_rows
            else [window.padded_length] * len(window.lengths)
        )
        for request in {sequence.request for sequence in result.sequences}:
            if result.warning and result.warning not in request.receipt.warnings:
                request.receipt.warnings.append(result.warning)
            request.ran_in(window)
        finite = result.finite.tolist()
        for position, sequence in enumerate(result.sequences):
            line, request = sequence.line, sequence.request
            self.abandoned += request.answer.cancelled()
            line.ran(padded[position], window.duration_ns, costs[position])
            if result.rows is None:
                is_over = request.leave(1, result.error)
            elif finite[position]:
                is_over = request.finish(sequence.index, result.rows[position])
            else:  # never returned as if it were an answer
                error = InferenceError(
                    f"variant {request.variant!r} answered with NaN or infinity for sequence {sequence.index}"
                )
                is_over = request.leave(1, error)
            if is_over:
                self._end(request)
        self._on_batch(window, result.rows is None, result.not_finite)
