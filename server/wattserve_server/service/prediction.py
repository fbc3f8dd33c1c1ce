"""The way of a prediction through the server, whatever protocol it came by: accepted, run, counted.

A protocol makes an `Asked` of its message, gets an `Answered`, and makes its reply of that.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.reading import Source
from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.policy import NORMAL_PRIORITY
from wattserve_server.engine.roster import HostedVariant
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.tasks.tokens import Tokenizer
from wattserve_server.errors import CutError, NotPossibleHere, OverloadedError, UnavailableError
from wattserve_server.meters.composite import joined
from wattserve_server.meters.sampler import Sampler
from wattserve_server.meters.together import Together
from wattserve_server.service.caller import Caller
from wattserve_server.service.checks import check_ids
from wattserve_server.service.methods import NO_DEADLINES, Deadlines
from wattserve_server.service.quota import Quotas
from wattserve_server.service.source import source_message
from wattserve_server.service.status import REACTIONS, Reaction, reaction_of, when_cut
from wattserve_server.telemetry.observer import Observer, Times

SETTLEMENT_LIMIT_S = 10.0  # for how long a call waits for settled energy at the most

IN_FLIGHT = 1024  # requests of one stream without an answer yet: the server reads no more until some have one


@dataclass(frozen=True, slots=True)
class DeviceMeter:
    """The energy figures of a device, or of what several share. Its parts are by name."""

    device: str
    sampler: Together  # those that are booked
    info: pb.MeterInfo  # what MeterInfo says, except for what changes
    booked: Mapping[str, Sampler]  # whose ledgers its own is the sum of
    charging: Mapping[str, Sampler]  # whose joules are on its device's receipts


@dataclass(slots=True)
class Host:
    """What answers requests, once there is something that can."""

    engine: Engine
    meters: dict[str, DeviceMeter]  # by device, that of the default variant first
    tokenizer: Tokenizer | None
    info: pb.ServerInfo  # what GetServerInfo says, except for what changes

    def source_of(self, receipt: Receipt) -> pb.EnergySource:
        """The source of a receipt's figures: that of the meter now, which says it where it was another."""
        return source_message(joined(tuple(self.sources_of(receipt).values())))

    def sources_of(self, receipt: Receipt) -> dict[str, Source]:
        """The same for each of its parts."""
        return {part: sampler.source for part, sampler in self.meters[receipt.device].charging.items()}

    async def until_settled(self, *receipts: Receipt) -> None:
        """Wait, but no longer than the settlement limit: then the receipts are given as they are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLEMENT_LIMIT_S):
                for receipt in receipts:
                    await self.engine.book.until_final(receipt)


@dataclass(slots=True)
class Serving:
    """Whether the server takes requests, and how many it is working on."""

    host: Host | None = None  # until the model is warm
    draining: asyncio.Event = field(default_factory=asyncio.Event)  # set once the server shuts down
    is_cut: bool = False  # once what is not done is told so
    _accepted: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_accepting(self) -> bool:
        """Whether a new request would be accepted."""
        return self.host is not None and not self.draining.is_set()

    def get(self) -> Host:
        """Raises UnavailableError while there is nothing to serve yet."""
        if self.host is None:
            raise UnavailableError("the server is starting: its model is not warm yet")
        return self.host

    def check_not_draining(self) -> None:
        """Raises UnavailableError when the server shuts down."""
        if self.draining.is_set():
            raise UnavailableError("the server is shutting down")

    @contextmanager
    def accept(self) -> Iterator[Host]:
        """As `get`, for a new request, which is being worked on until the block ends."""
        self.check_not_draining()
        host = self.get()
        self._accepted += 1
        try:
            yield host
        finally:
            self._accepted -= 1
            if not self._accepted:
                self._idle.set()

    async def until_idle(self) -> None:
        """Wait until no accepted request is being worked on. For a server that accepts no more."""
        while self._accepted:
            self._idle.clear()
            await self._idle.wait()


class Options(NamedTuple):
    """How a request wants to be treated."""

    request_id: str = ""
    priority: int = NORMAL_PRIORITY
    waits_for_energy: bool = False
    timeout_ns: int | None = None  # for which it may wait in the queue, besides the call's own deadline
    truncates: bool = False  # texts that are too long are cut, not refused


class Asked(NamedTuple):
    """What a request asks for, checked."""

    options: Options
    place: str  # where in the request the items or texts are
    items: Sequence[Item] = ()
    texts: Sequence[str] = ()  # instead of items, which they become once they are tokenised
    variant_field: str = "variant"  # where the request names its variant


class Answered(NamedTuple):
    """What a request that has run is told."""

    receipt: Receipt
    rows: list[NDArray[np.float32]]  # the model's output, one row for each sequence
    times: Times
    cut_tokens: Sequence[int] = ()  # of each text, where any was cut


class AcceptedRequest:
    """One request that was accepted. `hosted` is its variant, from when it is known on."""

    def __init__(self, left_s: float | None, caller: Caller) -> None:
        self.caller = caller
        self.begun_ns = time.monotonic_ns()
        self.left_s = left_s
        self.deadline_ns = None if left_s is None else self.begun_ns + int(left_s * 1e9)
        self.host: Host
        self.hosted: HostedVariant | None = None
        self.answered: Answered | None = None

    @property
    def variant(self) -> str:
        """Its variant's name; empty while it is not known to name one that exists."""
        return "" if self.hosted is None else self.hosted.choice.name

    def choose(self, hosted: HostedVariant, priority: int = NORMAL_PRIORITY) -> None:
        """Its variant is known. Raises OverloadedError, before anything else is done for it."""
        self.hosted = hosted
        self.host.engine.check_room(hosted, self.deadline_ns, priority, self.caller.name)

    async def answer(self, asked: Asked) -> Answered:
        """Raises WattserveError."""
        assert self.hosted is not None
        engine, options = self.host.engine, asked.options
        items, cut_tokens, tokenize_ns = asked.items, [0], 0
        if asked.texts:
            items, cut_tokens = await self._encode(asked)
            tokenize_ns = time.monotonic_ns() - self.begun_ns
        waits_until_ns = None if options.timeout_ns is None else self.begun_ns + options.timeout_ns
        try:
            ran = await engine.predict(
                items,
                self.hosted,
                options.request_id,
                self.deadline_ns,
                options.priority,
                waits_until_ns,
                self.caller.tenant,
                self.caller.name,
            )
        except NotPossibleHere as error:
            error.field = error.field or asked.variant_field
            raise
        ran_ns = time.monotonic_ns()
        if options.waits_for_energy:
            await self.host.until_settled(ran.receipt)
        times = Times(
            tokenize_ns=tokenize_ns,
            queue_ns=ran.queue_ns,
            compute_ns=ran.compute_ns,
            output_ns=max(0, ran_ns - ran.accepted_ns - ran.queue_ns - ran.compute_ns),
            total_ns=time.monotonic_ns() - self.begun_ns,
        )
        self.answered = Answered(ran.receipt, ran.rows, times, cut_tokens if any(cut_tokens) else ())
        return self.answered

    async def _encode(self, asked: Asked) -> tuple[Sequence[Item], list[int]]:
        if self.host.tokenizer is None:
            name = self.host.engine.model.name
            raise NotPossibleHere(f"{name} has no tokenizer: send token ids", asked.place)
        facts = self.host.engine.model.facts
        most = facts.max_tokens if asked.options.truncates else None
        sequences, cut_tokens = await self.host.tokenizer.encode(asked.texts, most, asked.place)
        check_ids(sequences, facts, asked.place, remedy="; shorten it, or ask for truncate")
        return sequences, cut_tokens


class Unkeyed:
    """What callers without a key have in flight, by their names.

    most: predictions of one of them.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._in_flight: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._in_flight)

    @contextmanager
    def prediction(self, name: str) -> Iterator[None]:
        """One that is in flight until the block ends. Raises OverloadedError."""
        if self._in_flight[name] >= self._most:
            raise OverloadedError(
                f"{name} has {self._in_flight[name]} predictions in flight, as many as a caller without a "
                "key may (the server's --max-peer-in-flight)",
                "peer_in_flight",
            )
        self._in_flight[name] += 1
        try:
            yield
        finally:
            self._in_flight[name] -= 1
            if not self._in_flight[name]:
                del self._in_flight[name]


class Predictor:
    """One per server: every prediction goes through it and is counted once."""

    def __init__(
        self,
        serving: Serving,
        observer: Observer,
        quotas: Quotas,
        deadlines: Deadlines = NO_DEADLINES,
        unkeyed: Unkeyed | None = None,
    ) -> None:
        """quotas: of callers with keys. unkeyed: those without."""
        self._serving = serving
        self._observer = observer
        self._quotas = quotas
        self._deadlines = deadlines
        self._unkeyed = unkeyed or Unkeyed()

    @contextmanager
    def accept(self, left_s: float | None, caller: Caller) -> Iterator[AcceptedRequest]:
        """A request, counted when the block ends, by how it does. left_s: until its caller's deadline. What
        goes wrong in the block after the request has run names its receipt.

        Raises UnavailableError, or OverloadedError where the caller, or his tenant, has used up what he may.
        """
        own_s = self._deadlines.own_s(left_s)
        left_s = left_s if own_s is None else own_s
        prediction = AcceptedRequest(left_s, caller)
        quota = (
            self._unkeyed.prediction(caller.name) if caller.key is None else self._quotas.prediction(caller)
        )
        try:
            with self._serving.accept() as prediction.host, quota:
                yield prediction
        except asyncio.CancelledError:  # grpc ends the handler so when the caller's deadline passes, too
            own_left_s = None
            if prediction.deadline_ns is not None:
                own_left_s = (prediction.deadline_ns - time.monotonic_ns()) / 1e9
            reaction, why = when_cut(own_left_s, left_s)
            if self._serving.is_cut:
                reaction, why = REACTIONS[CutError], "the server has shut down"
            self._failed(prediction, reaction, why)
            raise
        except Exception as error:
            if prediction.answered is not None:
                error.receipt_id = prediction.answered.receipt.receipt_id  # type: ignore[attr-defined]
            limit = error.limit if isinstance(error, OverloadedError) else ""
            self._failed(prediction, reaction_of(error), str(error), limit)
            raise
        answered = prediction.answered
        assert answered is not None
        self._observer.answered(prediction.variant, len(answered.rows), answered.times, answered.receipt)
        self._observer.tenant_asked(caller.tenant, "OK")

    def refused(self, error: OverloadedError) -> None:
        """What was refused is no prediction."""
        self._observer.refused(error.limit)

    def _failed(self, prediction: AcceptedRequest, reaction: Reaction, message: str, limit: str = "") -> None:
        duration_ns = time.monotonic_ns() - prediction.begun_ns
        code, reason = reaction.code.name, reaction.reason
        self._observer.failed(prediction.variant, code, reason, message, duration_ns, limit)
        self._observer.tenant_asked(prediction.caller.tenant, code)


Request = TypeVar("Request")
Reply = TypeVar("Reply")


async def answers(
    requests: AsyncIterator[Request],
    answer: Callable[[Request], Coroutine[Any, Any, Reply]],
    serving: Serving,
    in_order: bool,
) -> AsyncIterator[Reply]:
    """A stream's replies: in the order of the requests, or as they finish. Each is made by a task of its own.

    answer: never raises; an error is a reply. When the server shuts down nothing more is read, what was read
    is answered, and UnavailableError ends the stream. What `requests` raises ends it in the same way.
    """
    done: asyncio.Queue[asyncio.Task[Reply] | None] = asyncio.Queue()
    room = asyncio.Semaphore(IN_FLIGHT)
    running: set[asyncio.Task[Reply]] = set()

    async def read() -> None:
        async for request in requests:
            await room.acquire()
            task = asyncio.create_task(answer(request))
            running.add(task)
            task.add_done_callback(running.discard)
            if in_order:
                done.put_nowait(task)
            else:
                task.add_done_callback(done.put_nowait)

    async def read_all() -> None:
        draining = asyncio.create_task(serving.draining.wait())
        try:
            await asyncio.wait((reader, draining), return_when=asyncio.FIRST_COMPLETED)
            was_cut_short = not reader.done()
            reader.cancel()
            if running:
                await asyncio.wait(running)
            if was_cut_short:
                serving.check_not_draining()
            else:
                reader.result()
        finally:
            draining.cancel()
            done.put_nowait(None)

    reader = asyncio.create_task(read())
    feeder = asyncio.create_task(read_all())
    for task in (reader, feeder):  # whoever leaves early does not ask how they ended
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        while (answered := await done.get()) is not None:
            yield await answered
            room.release()
        await feeder
    finally:
        reader.cancel()  # first, or it might begin one more
        with suppress(asyncio.CancelledError):
            await asyncio.wait((reader,))
        feeder.cancel()
        for answered in tuple(running):
            answered.cancel()
