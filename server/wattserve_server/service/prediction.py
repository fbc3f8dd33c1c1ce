"""The way of a prediction through the server, whatever protocol it came by: accepted, run, counted.

A protocol makes an `Asked` of its message, gets an `Answered`, and makes its reply of that.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.reading import Source
from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.generation.port import TokenIds
from wattserve_server.engine.policy import NORMAL_PRIORITY
from wattserve_server.engine.queued import Order
from wattserve_server.engine.roster import HostedVariant
from wattserve_server.engine.tasks import Item
from wattserve_server.engine.tasks.tokens import REMEDY, Tokenizer
from wattserve_server.errors import CutError, NotPossibleHere, OverloadedError, RequestError, UnavailableError
from wattserve_server.meters.sampler import Sampler
from wattserve_server.meters.together import Together
from wattserve_server.service.budgets import Budgets
from wattserve_server.service.caller import Caller
from wattserve_server.service.checks import check_ids, check_scored
from wattserve_server.service.methods import NO_DEADLINES, Deadlines
from wattserve_server.service.quota import Quotas
from wattserve_server.service.spending import Spending
from wattserve_server.service.status import REACTIONS, reaction_of, when_cut
from wattserve_server.service.stored import StoredAccounts
from wattserve_server.telemetry.observer import Observer, Times

UNBOUNDED = Spending()  # by any budget; it holds nothing

SETTLEMENT_LIMIT_S = 10.0  # for how long a call waits for settled energy at the most


@dataclass(frozen=True, slots=True)
class DeviceMeter:
    """The energy figures of a device, or of what several share. Its parts are by name."""

    device: str
    sampler: Together  # those that are booked
    info: pb.MeterInfo  # what MeterInfo says, except for what changes
    booked: Mapping[str, Sampler]  # whose ledgers its own is the sum of


@dataclass(slots=True)
class Host:
    """What answers requests, once there is something that can."""

    engine: Engine
    meters: dict[str, DeviceMeter]  # by device, that of the default variant first
    tokenizer: Tokenizer | None
    info: pb.ServerInfo  # what GetServerInfo says, except for what changes
    stored: StoredAccounts | None = None  # those of the account book, where there is one
    charging: dict[str, Mapping[str, Sampler]] = field(
        default_factory=dict
    )  # whose joules are on receipts, by device and part

    def sources_of(self, receipt: Receipt) -> dict[str, Source]:
        """The sources of a receipt's figures, by part: those of the meters now, which say it where they were
        others."""
        return {part: sampler.source for part, sampler in self.charging[receipt.device].items()}

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

    def begin(self) -> Host:
        """As `get`, for a new request, which is being worked on until `end`."""
        self.check_not_draining()
        host = self.get()
        self._accepted += 1
        return host

    def end(self) -> None:
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
    max_energy_uj: int | None = None  # it is refused where the laws say that it will cost more
    limit_field: str = "max_energy_uj"  # where the request says that


class Asked(NamedTuple):
    """What a request asks for, checked."""

    options: Options
    place: str  # where in the request the items or texts are
    items: Sequence[Item] = ()
    texts: Sequence[str] = ()  # instead of items, which they become once they are tokenised
    variant_field: str = "variant"  # where the request names its variant
    scores: bool = False  # how likely the model finds its sequences, rather than what it makes of them


class Told(Protocol):
    """What is told to a request that has run, as far as it is counted."""

    @property
    def receipt(self) -> Receipt: ...
    @property
    def times(self) -> Times: ...
    @property
    def sequences(self) -> int: ...


class Answered(NamedTuple):
    """What a request that has run is told."""

    receipt: Receipt
    rows: list[NDArray[np.float32]]  # the model's output, one row for each sequence
    times: Times
    cut_tokens: Sequence[int] = ()  # of each text, where any was cut
    items: Sequence[Item] = ()  # that have run

    @property
    def sequences(self) -> int:
        return len(self.rows)


class AcceptedRequest:
    """One request, accepted when the block begins and counted when it ends, by how it does. `hosted` is its
    variant, from when it is known on. What goes wrong in the block once the request has run names its
    receipt.

    Entering raises UnavailableError, or OverloadedError where the caller, or his tenant, has used up what he
    may.
    """

    __slots__ = (
        "_counted",
        "_last_token_ns",
        "_predictor",
        "answered",
        "begun_ns",
        "caller",
        "deadline_ns",
        "host",
        "hosted",
        "left_s",
        "receipt",
        "spending",
    )

    def __init__(self, predictor: Predictor, left_s: float | None, caller: Caller) -> None:
        self._predictor = predictor
        self.caller = caller
        self.begun_ns = time.monotonic_ns()
        self.left_s = left_s
        self.deadline_ns = None if left_s is None else self.begun_ns + int(left_s * 1e9)
        self.host: Host
        self.hosted: HostedVariant | None = None
        self.receipt: Receipt | None = None  # once there is one
        self.answered: Told | None = None
        self.spending = predictor.spending_of(caller)
        self._last_token_ns: int | None = None  # when a generation's last tokens came

    def __enter__(self) -> AcceptedRequest:
        try:
            self.host = self._predictor.begin(self.caller)
        except Exception as error:
            self._predictor.failed(self, error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, way: object) -> None:
        self._predictor.end(self.caller)
        if self.spending is not None:
            self.spending.ended(self.receipt)
        if error is None:
            self._predictor.succeeded(self)
        else:
            self._predictor.failed(self, error)

    @property
    def variant(self) -> str:
        """Its variant's name; empty while it is not known to name one that exists."""
        return "" if self.hosted is None else self.hosted.choice.name

    def choose(self, hosted: HostedVariant, priority: int = NORMAL_PRIORITY, sequences: int = 1) -> None:
        """Its variant is known. sequences: how many it says it has. Raises OverloadedError, before anything
        else is done for it."""
        self.hosted = hosted
        self._counted = max(1, min(sequences, self.host.engine.limits.max_request))
        if self.spending is not None:
            self.spending.check()
        self.host.engine.check_room(hosted, self.deadline_ns, priority, self.caller.name, self._counted)

    async def answer(self, asked: Asked) -> Answered:
        """Raises WattserveError."""
        assert self.hosted is not None
        engine, options = self.host.engine, asked.options
        items, tokenize_ns = asked.items, 0
        cut_tokens: Sequence[int] = ()
        count = len(asked.texts or items)
        if count > self._counted:  # for those there was room when its variant was known
            engine.check_room(self.hosted, self.deadline_ns, options.priority, self.caller.name, count)
        if asked.texts:
            most = self.host.engine.model.facts.max_tokens if options.truncates else None
            remedy = "; shorten it" if asked.scores else REMEDY
            items, cut_tokens = await self.encoded(asked.texts, most, asked.place, remedy)
            tokenize_ns = time.monotonic_ns() - self.begun_ns
        if asked.scores:
            check_scored(items, asked.place)
        order = self.order(options)
        self.allow(items, options.max_energy_uj, options.limit_field, asked.scores)
        try:
            if asked.scores:
                ran = await engine.score(items, self.hosted, order)
            else:
                ran = await engine.predict(items, self.hosted, order)
        except RequestError as error:
            is_its_variant = isinstance(error, NotPossibleHere)
            error.field = error.field or (asked.variant_field if is_its_variant else asked.place)
            raise
        ran_ns = time.monotonic_ns()
        if options.waits_for_energy:
            await self.host.until_settled(ran.receipt)
        receipt, rows, accepted_ns, queue_ns, compute_ns = ran
        output_ns = max(0, ran_ns - accepted_ns - queue_ns - compute_ns)
        total_ns = time.monotonic_ns() - self.begun_ns
        times = Times(tokenize_ns, queue_ns, compute_ns, output_ns, total_ns)
        answered = Answered(receipt, rows, times, cut_tokens, items)
        self.answered = answered
        return answered

    def allow(self, items: Sequence[Item], most_uj: int | None, field: str, scores: bool = False) -> None:
        """Whether it may cost what these sequences will; see `Spending.allow`."""
        if self.spending is not None or most_uj is not None:
            assert self.hosted is not None
            spending, engine = self.spending or UNBOUNDED, self.host.engine
            spending.allow(engine, self.hosted, items, most_uj, field, scores)

    def tokens_came(self, count: int) -> None:
        """So many tokens of a generation, now."""
        now_ns, last_ns = time.monotonic_ns(), self._last_token_ns
        self._predictor.tokens_came(self, count, now_ns - (last_ns or self.begun_ns), last_ns is None)
        self._last_token_ns = now_ns

    def order(self, options: Options) -> Order:
        """How the engine is to treat it."""
        return Order(
            options.request_id,
            self.deadline_ns,
            options.priority,
            None if options.timeout_ns is None else self.begun_ns + options.timeout_ns,
            self.caller.tenant,
            self.caller.name,
            self._opened,
        )

    def _opened(self, receipt: Receipt) -> None:
        self.receipt = receipt
        if self.spending is not None:
            self.spending.opened(receipt)

    async def encoded(
        self, texts: Sequence[str], most: int | None, place: str, remedy: str
    ) -> tuple[Sequence[TokenIds], Sequence[int]]:
        """The token ids of each text, and how many were cut off; empty where none was. most, place: as of
        `Tokenizer.encode`. remedy: what to do about one that is too long."""
        model = self.host.engine.model
        if self.host.tokenizer is None:
            raise NotPossibleHere(f"{model.name} has no tokenizer: send token ids", place)
        sequences, cut_tokens = await self.host.tokenizer.encode(texts, most, place, remedy, self.caller.name)
        check_ids(sequences, model.facts, place, remedy=remedy)
        return sequences, cut_tokens if any(cut_tokens) else ()


class Unkeyed:
    """What callers without a key have in flight, by their names.

    most: predictions of one of them.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._in_flight: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._in_flight)

    def begin(self, name: str) -> None:
        """A prediction, which is in flight until `end`. Raises OverloadedError."""
        if self._in_flight[name] >= self._most:
            raise OverloadedError(
                f"{name} has {self._in_flight[name]} predictions in flight, as many as a caller without a "
                "key may (the server's --max-peer-in-flight)",
                "peer_in_flight",
            )
        self._in_flight[name] += 1

    def end(self, name: str) -> None:
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
        self._unkeyed = Unkeyed() if unkeyed is None else unkeyed  # an empty one is false
        self.budgets: Budgets | None = None  # of tenants, once there is an account book to keep them in

    def accept(self, left_s: float | None, caller: Caller) -> AcceptedRequest:
        """left_s: until the caller's deadline."""
        own_s = self._deadlines.own_s(left_s)
        return AcceptedRequest(self, left_s if own_s is None else own_s, caller)

    def begin(self, caller: Caller) -> Host:
        """One more request of that caller is worked on, until `end`. Raises as AcceptedRequest."""
        host = self._serving.begin()
        try:
            if caller.key is None:
                self._unkeyed.begin(caller.name)
            else:
                self._quotas.begin(caller)
        except BaseException:
            self._serving.end()
            raise
        return host

    def spending_of(self, caller: Caller) -> Spending | None:
        """None where no budgets are kept."""
        if self.budgets is None or caller.key is None:
            return None
        return Spending(self.budgets, self._quotas.as_of_now(caller.key), caller.tenant)

    def count(self, caller: Caller) -> None:
        """A message of that caller that is no request uses up one all the same. Raises OverloadedError."""
        self._quotas.take(caller)

    def count_more(self, caller: Caller, requests: int) -> None:
        """A call of that caller costs as much as so many more."""
        self._quotas.take_more(caller, requests)

    def end(self, caller: Caller) -> None:
        if caller.key is None:
            self._unkeyed.end(caller.name)
        else:
            self._quotas.end(caller)
        self._serving.end()

    def succeeded(self, prediction: AcceptedRequest) -> None:
        answered = prediction.answered
        assert answered is not None
        self._observer.answered(prediction.variant, answered.sequences, answered.times, answered.receipt)
        self._observer.tenant_asked(prediction.caller.tenant, "OK")

    def tokens_came(self, prediction: AcceptedRequest, count: int, waited_ns: int, is_first: bool) -> None:
        """As of `Observer.tokens_came`."""
        self._observer.tokens_came(prediction.variant, count, waited_ns, is_first)

    def failed(self, prediction: AcceptedRequest, error: BaseException) -> None:
        limit = ""
        if isinstance(error, Exception):
            if prediction.receipt is not None and prediction.receipt.ran:
                error.receipt_id = prediction.receipt.receipt_id  # type: ignore[attr-defined]
            limit = error.limit if isinstance(error, OverloadedError) else ""
            reaction, why = reaction_of(error), str(error)
        elif self._serving.is_cut:
            reaction, why = REACTIONS[CutError], "the server has shut down"
        else:  # cancelled: grpc ends the handler so when the caller's deadline passes, too
            own_left_s = None
            if prediction.deadline_ns is not None:
                own_left_s = (prediction.deadline_ns - time.monotonic_ns()) / 1e9
            reaction, why = when_cut(own_left_s, prediction.left_s)
        duration_ns = time.monotonic_ns() - prediction.begun_ns
        code = reaction.code_name
        self._observer.failed(prediction.variant, code, reaction.reason, why, duration_ns, limit)
        self._observer.tenant_asked(prediction.caller.tenant, code)

    def refused(self, error: OverloadedError) -> None:
        """What was refused is no prediction."""
        self._observer.refused(error.limit)
