"""The engine: from items to output rows and receipts, for one model on one device or several.

Everything here but the lanes' threads lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from wattserve_server.energy.attribution import BY_TIME, split_exact
from wattserve_server.energy.costlaw import foreseen_uj, provisional_uj
from wattserve_server.energy.receipt import Outcome, Window, Work
from wattserve_server.energy.trials import TrialPlan
from wattserve_server.engine.alarms import Alarms
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.generation.cache import CachePools
from wattserve_server.engine.generation.lane import StepLane, StepResult, steps_of
from wattserve_server.engine.generation.members import NO_ROW, Member, end_tokens, member_of
from wattserve_server.engine.generation.port import FinishReason, TokenIds, Wish
from wattserve_server.engine.generation.running import RunningGeneration
from wattserve_server.engine.generation.scheduler import StepBatcher
from wattserve_server.engine.generation.text import TextStream
from wattserve_server.engine.gputime import timing_of
from wattserve_server.engine.lane import BatchResult, Lane, Laws, RunLog
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import NO_ORDER, Answer, Order, Request, earlier
from wattserve_server.engine.roster import HostedVariant, Loader, LoadingRules, Resident, Roster
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.worktime import NoWorkClock, WorkClock, served_on, work_of_this_task
from wattserve_server.errors import (
    ExpiredError,
    InferenceError,
    InvalidRequest,
    LaneLostError,
    WattserveError,
)

log = logging.getLogger(__name__)

# For how long requests that come are gathered, at the most, while the event loop has other work. Where it has
# no rest at all, it is what callers wait for, and each batch less leaves it time for more of them.
GATHER_NS = 5_000_000

# The event loop is at rest after so many passes that took no longer: they had nothing else to do. One alone
# may stand between two events of the same call, of which grpc's own thread brings it the second.
AT_REST_NS = 30_000
AT_REST_PASSES = 2

OnBatch = Callable[[Window, bool, int], None]  # whether it failed; how many rows hold NaN or infinity


@dataclass(frozen=True, slots=True)
class EngineLimits:
    batch: Mapping[torch.device, BatchLimits]
    max_queue: int  # sequences that may wait for each device; for several that share a queue in it
    max_request: int  # sequences of one request
    max_queue_ns: float = float("inf")  # for which a request may have to wait when it comes
    cache_bytes: int = 1 << 30  # of the keys and values that the generations of a variant hold


@dataclass(frozen=True, slots=True)
class Metering:
    """How a device's energy is accounted for."""

    run_log: RunLog
    laws: Mapping[str, Laws]  # by the part of the machine whose counter taught them
    trials: TrialPlan | None = None  # from which it learns what a variant costs; None: it does not
    goes_by_cpu: bool = True  # whether one of its counters is a model of CPU time


class Engine:
    """choices: the variants that there may be. metering: of every device among them. `on_batch` sees every
    finished batch; `on_death` is told, on another thread, when a bug has ended a device's thread, or its
    failure, and no other one runs the same."""

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
        self._on_batch, self._on_death = on_batch, on_death
        self._end_ids = end_tokens(model.config, getattr(model.weights.module, "generation_config", None))
        self._loop = asyncio.get_running_loop()
        soon = self._loop.call_soon_threadsafe  # what the lanes' threads call

        def lane(device: torch.device, meter: Metering, beside: Batcher | None) -> Lane:
            queued = (
                limits.batch[device],
                limits.max_queue,
                lambda request, count: soon(self._expire, request, count),
                limits.max_queue_ns,
            )
            work_clock = WorkClock(served_on(self._loop)) if meter.goes_by_cpu else NoWorkClock()
            told = meter.run_log, meter.laws, timing_of(device), work_clock
            died = partial(self._died, device)
            if model.task.generates:
                steps = StepBatcher(
                    *queued,
                    lambda member: self.caches.of_variant(member.request.resident.on(str(device))),
                    lambda member, error: soon(self._left, member, error),
                    beside,
                )
                return StepLane(
                    str(device), steps, *told, lambda result: soon(self._finish_step, result), died
                )
            batcher = Batcher(*queued, beside)
            return Lane(str(device), batcher, *told, lambda result: soon(self._finish, result), died)

        self.caches = CachePools(limits.cache_bytes, model.facts.max_tokens)
        self._generations: dict[Member, RunningGeneration] = {}
        self.lanes: dict[torch.device, Lane] = {}
        self._queues: list[Batcher] = []  # one batcher of each
        first_of = {device: choice.device for choice in choices for device in choice.devices}
        for device, meter in metering.items():
            first = self.lanes.get(first_of.get(device, device))
            self.lanes[device] = lane(device, meter, None if first is None else first.batcher)
            if first is None:
                self._queues.append(self.lanes[device].batcher)
        trials = {device: meter.trials for device, meter in metering.items() if meter.trials is not None}
        self.loader = Loader(model, materials, self.roster, self.lanes, rules, trials)
        self._arrivals: dict[Request, None] = {}  # to be queued soon
        self._arriving = 0  # sequences of theirs
        self._expiries = Alarms(self._expire_waiting)  # the lane looks between two batches only
        self._open_requests = 0
        self.abandoned = 0  # sequences computed for callers who had left
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued(self) -> int:
        """Sequences that wait. Any thread."""
        arrived = sum(len(request.sequences) for request in tuple(self._arrivals))
        return arrived + sum(map(len, self._queues))

    @property
    def queued_callers(self) -> int:
        """Who have something waiting, in each queue. Any thread."""
        return sum(queue.callers for queue in self._queues)

    @property
    def preemptions(self) -> int | None:
        """None for a model that does not generate. Any thread."""
        if not self.model.task.generates:
            return None
        return sum(steps_of(lane).preemptions for lane in self.lanes.values())

    def wait_ns(self) -> float:
        """For how long what waits will take, in the queue where that is longest. Any thread."""
        now_ns = time.monotonic_ns()
        return max(queue.wait_ns(now_ns) for queue in self._queues)

    def check_room(
        self, hosted: HostedVariant, deadline_ns: int | None, priority: int, caller: str, sequences: int = 1
    ) -> None:
        """Raises OverloadedError where `predict` would refuse so many sequences even if they were the
        shortest: before anything is done for them."""
        if hosted.resident is not None:
            lane = self.lanes[hosted.choice.device]
            lane.batcher.check_room(hosted.choice.name, priority, deadline_ns, caller, sequences)

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
        order: Order = NO_ORDER,
    ) -> Answer:
        """Run checked items.

        Raises NotPossibleHere for a variant that is not in memory and cannot be; OverloadedError,
        ExpiredError or InferenceError. When the caller is cancelled, what waits leaves the queue and what
        has started is still charged.
        """
        request = await self._open(hosted, order)
        for item in items:
            request.add(item, self.model.task.length(item))
        return await self._run(request)

    async def generate(
        self, prompt: TokenIds, hosted: HostedVariant, wish: Wish, order: Order
    ) -> RunningGeneration:
        """Begin to generate behind a checked prompt. Iterate over what it returns, or close it.

        Raises as `predict`; what goes wrong later, its iteration raises.
        """
        request = await self._open(hosted, order)
        end_ids = wish.stop_ids if wish.ignores_end else wish.stop_ids | self._end_ids
        longest = min(self.model.facts.max_tokens, len(prompt) + wish.max_new_tokens)
        if wish.takes_what_fits:
            pool = self.caches.of_variant(request.resident.variant)
            longest = min(longest, max(len(prompt), pool.longest - 1))
        self._check_fits(request, longest)
        tokenizer = self.model.tokenizer
        member = member_of(request, prompt, longest)
        member.wish, member.end_ids, member.longest = wish, end_ids, longest
        member.text = TextStream(tokenizer, wish.stop_strings) if wish.stop_strings else None
        running = RunningGeneration(
            request,
            member,
            TextStream(tokenizer, wish.stop_strings),
            lambda: self._let_go(request),
            lambda error: self._refuse(request, error),
        )
        self._generations[member] = running
        self._begin(request)
        return running

    async def score(self, prompts: Sequence[TokenIds], hosted: HostedVariant, order: Order) -> Answer:
        """Of checked texts: the log-probability of each token but the first, float32 [tokens - 1] each.
        Raises as `predict`."""
        request = await self._open(hosted, order)
        self._check_fits(request, max(map(len, prompts)))
        for prompt in prompts:
            member_of(request, prompt, len(prompt)).line.role = None  # nothing comes after it
        return await self._run(request)

    def foreseen_uj(self, items: Sequence[Item], hosted: HostedVariant, scores: bool = False) -> int | None:
        """What the laws say that these sequences would cost by themselves, of all parts; of a model that
        generates, what reading them as prompts, or scoring them, would. None while a law cannot tell."""
        lengths = [self.model.task.length(item) for item in items]
        device, name = hosted.choice.device, hosted.choice.name
        lane, most = self.lanes[device], self.limits.batch[device].max_sequences
        total_uj = 0
        for begin in range(0, len(lengths), most):
            batch = tuple(lengths[begin : begin + most])
            work = tuple(Work(n, n * (n + 1) // 2, n if scores else 1, begins=True) for n in batch)
            window = Window(name, 0, 0, batch, max(batch), work=work if self.model.task.generates else ())
            for laws in lane.laws.values():
                cost_uj = foreseen_uj(laws.law, window)
                if cost_uj is None:
                    return None
                total_uj += cost_uj
        return total_uj

    def _check_fits(self, request: Request, tokens: int) -> None:
        """Raises InvalidRequest for a sequence that the cache could not hold if it were alone."""
        pool = self.caches.of_variant(request.resident.variant)
        if pool.fits(tokens + 1):
            return
        request.receipt.end(Outcome.FAILED)
        self._has_left(request)
        raise InvalidRequest(
            f"prompt and answer of {tokens} tokens are more than the cache of keys and values holds (the "
            f"server's --kv-cache-bytes, {pool.limit_bytes} bytes): ask for fewer"
        )

    async def _open(self, hosted: HostedVariant, order: Order) -> Request:
        """A request without sequences. Raises as `predict`."""
        accepted_ns = time.monotonic_ns()  # before a lazy load, which is waiting like any other
        leaves_ns = earlier(order.deadline_ns, order.waits_until_ns)
        resident = hosted.resident or await self._loaded(hosted, leaves_ns)
        variant = resident.variant
        lane = self.lanes[variant.device]
        receipt = self.book.open(order.request_id, variant.name, lane.device, lane.parts, order.tenant)
        order.on_open(receipt)
        receipt.split_rule, receipt.idle_policy = lane.split_rule, lane.idle_policy
        is_bound = not hosted.choice.others
        if is_bound and receipt.idle_policy == BY_TIME:
            lane.run_log.came(receipt)
        receipt.proxy, receipt.is_unverified = variant.kind.proxy, not variant.verification.verified
        answer: asyncio.Future[Answer] = self._loop.create_future()
        request = Request(
            receipt, resident, lane, accepted_ns, order.deadline_ns, answer, order.priority, order.caller
        )
        request.is_bound, request.waits_until_ns = is_bound, order.waits_until_ns
        request.work = work_of_this_task()
        return request

    def _begin(self, request: Request) -> None:
        """Queue it."""
        request.resident.enter()
        if not self._open_requests:
            self._idle.clear()
        self._open_requests += 1
        leaves_ns = request.leaves_ns
        if leaves_ns is not None:
            request.expiry = self._expiries.set(request, leaves_ns)
        self._queue_soon(request)

    async def _run(self, request: Request) -> Answer:
        """Queue it, and wait for its answer."""
        self._begin(request)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._let_go(request)
            raise

    def _let_go(self, request: Request) -> None:
        """Its caller has left: what waits leaves the queue, and so do the members that run."""
        self._leave(request, self._withdraw(request))
        for sequence in request.sequences:
            if isinstance(sequence, Member):
                steps_of(request.lane).leave(sequence)

    def _left(self, member: Member, error: WattserveError | None) -> None:
        """It ran, and has left before its end."""
        running = self._generations.get(member)
        if running is not None and running.reason is not None:  # it had cost enough
            member.request.finish(member.index, NO_ROW)
            self._end(member.request)
        elif member.request.leave(1, error):
            self._end(member.request)

    def _finish_step(self, result: StepResult) -> None:
        window = result.window
        lane = result.members[0].request.lane
        costs = _provisional(lane, window)
        for request in {member.request for member in result.members}:
            request.ran_in(window, result.warning)
        for index, member in enumerate(result.members):
            request, line = member.request, window.lines[index]
            line.ran(window.lengths[index], window.duration_ns, costs[index])
            line.tokens += window.lengths[index]
            line.chosen += len(result.chosen[index])
            self.abandoned += request.answer.cancelled()
            running = self._generations.get(member)
            if running is not None:
                running.arrived(result.chosen[index], window.end_ns)
            if not result.has_ended[index]:
                if running is not None and running.has_cost_enough and running.reason is None:
                    running.reason = FinishReason.ENERGY
                    steps_of(lane).leave(member)
                if member.is_limited:
                    steps_of(lane).counted(member)
            elif (error := result.errors[index]) is not None:
                if request.leave(1, error):
                    self._end(request)
            elif request.finish(member.index, member.row):
                self._end(request)
        self._on_batch(window, not any(error is None for error in result.errors), 0)

    def _refuse(self, request: Request, error: WattserveError) -> bool:
        """What of it waits ends with that error; whether any of it did."""
        if not (count := self._withdraw(request)):
            return False
        self._leave(request, count, error)
        return True

    def _queue_soon(self, request: Request) -> None:
        """Queue it once the event loop is at rest. Among its work may be more requests: one by one, each
        would wake the lane's thread, to fight the event loop for the interpreter's lock over a batch of
        one. More than the queue holds is queued at once: whoever comes after them finds it full before
        anything is done for him."""
        if not self._arrivals:
            now_ns = time.monotonic_ns()
            self._loop.call_soon(self._queue_at_rest, now_ns, now_ns, 0)
        self._arrivals[request] = None
        self._arriving += request.remaining
        if self._arriving > self.limits.max_queue:
            self._queue_arrivals(time.monotonic_ns())

    def _queue_at_rest(self, first_ns: int, last_pass_ns: int, rests: int) -> None:
        """first_ns: when the first of them came. last_pass_ns: when the event loop was here last. rests: the
        passes before this one that had nothing else to do."""
        now_ns = time.monotonic_ns()
        rests = 0 if now_ns - last_pass_ns > AT_REST_NS else rests + 1
        if rests < AT_REST_PASSES and now_ns - first_ns < GATHER_NS:
            self._loop.call_soon(self._queue_at_rest, first_ns, now_ns, rests)
            return
        self._queue_arrivals(now_ns)

    def _queue_arrivals(self, now_ns: int) -> None:
        arrivals, self._arrivals, self._arriving = self._arrivals, {}, 0
        by_queue: dict[Batcher, list[Request]] = {}
        for request in arrivals:
            by_queue.setdefault(request.lane.batcher, []).append(request)
        for batcher, requests in by_queue.items():
            with batcher.undisturbed:
                has_room = batcher.have_room(requests, now_ns)
                for request in requests:
                    try:
                        for evicted in batcher.put(request, now_ns, has_room):
                            self._leave(*evicted)
                    except Exception as error:  # it belongs to whoever asked
                        self._leave(request, request.remaining, error)

    def _withdraw(self, request: Request) -> int:
        """Take its sequences out of the queue, or from those to be queued; how many there were."""
        if request in self._arrivals:
            del self._arrivals[request]
            self._arriving -= request.remaining
            return request.remaining
        return request.lane.batcher.withdraw(request)

    def _leave(self, request: Request, count: int, error: Exception | None = None) -> None:
        """`count` of its sequences are done with, without having run."""
        if request.leave(count, error):
            self._end(request)

    def _end(self, request: Request) -> None:
        for sequence in request.sequences:
            if isinstance(sequence, Member):
                self._generations.pop(sequence, None)
        request.end()
        if request.expiry is not None:
            self._expiries.clear(request, request.expiry)
        self._has_left(request)
        request.resident.leave()
        self._open_requests -= 1
        if not self._open_requests:
            self._idle.set()

    def _has_left(self, request: Request) -> None:
        receipt = request.receipt
        if request.is_bound and receipt.idle_policy == BY_TIME:
            request.lane.run_log.left(receipt)
        self.book.ended(receipt)

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

    def _died(self, device: torch.device, error: Exception) -> None:
        """On the thread of its lane, which ends. Of several lanes it leaves alone where it failed in a batch;
        an error between two is one of the queue, which they share."""
        lane = self.lanes[device]
        begun = lane.batcher.give_up() if lane.is_in_a_batch else None
        if begun is None:
            self._on_death(error)
            return
        told = f"device {device} has failed and takes no more work ({type(error).__name__}); others go on"
        lost = LaneLostError(f"{told}: send the request again")
        self._loop.call_soon_threadsafe(self._say_why, lane, str(lost))  # before a caller hears of it
        lane.let_go(lost)
        self._loop.call_soon_threadsafe(self._lane_left, lane, begun, lost)
        log.error("%s", told)

    def _say_why(self, lane: Lane, reason: str) -> None:
        for hosted in self.roster:
            if lane.device in map(str, hosted.choice.devices):
                hosted.reason = reason

    def _lane_left(self, lane: Lane, begun: Mapping[Request, int], lost: LaneLostError) -> None:
        """begun: requests of which some had run there, and how many sequences of each had not."""
        lane.give_up_chores()
        for request, count in begun.items():
            if count:
                self._leave(request, count, lost)

    def _finish(self, result: BatchResult) -> None:
        window = result.window
        lane = result.sequences[0].request.lane
        costs = _provisional(lane, window)
        padded = (
            split_exact(window.computed_tokens, window.lengths)
            if window.packed_rows
            else [window.padded_length] * len(window.lengths)
        )
        for request in {sequence.request for sequence in result.sequences}:
            request.ran_in(window, result.warning)
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


def _provisional(lane: Lane, window: Window) -> list[tuple[int | None, ...]]:
    """What each sequence cost by the law of each part, before the meter has said so. A bug in a law costs
    this figure, and nobody's answer."""
    try:
        return list(zip(*(provisional_uj(laws.law, window) for laws in lane.laws.values()), strict=True))
    except Exception:
        log.exception(
            "no provisional energy for a batch of variant %r: a bug in its cost law", window.variant
        )
        return [(None,) * len(lane.parts)] * len(window.lengths)
