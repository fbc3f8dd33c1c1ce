"""The way of a prediction through the server, whatever protocol it came by: accepted, read, run, counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.policy import NORMAL_PRIORITY
from wattserve_server.engine.request import Request
from wattserve_server.engine.tasks import Item
from wattserve_server.errors import NotPossibleHere
from wattserve_server.service.checks import check_ids
from wattserve_server.service.deadlines import is_late
from wattserve_server.service.serving import SETTLEMENT_LIMIT_S, Ready, Serving
from wattserve_server.service.status import LATE, LEFT, Kind, kind_of
from wattserve_server.telemetry.failures import FailedRequest, Failures
from wattserve_server.telemetry.metrics import Metrics
from wattserve_server.telemetry.statistics import Statistics, Times


class Options(NamedTuple):
    """How a request wants to be treated. timeout_ns: how long it may wait in the queue, besides what the
    call's own deadline says."""

    request_id: str = ""
    priority: int = NORMAL_PRIORITY
    waits_for_energy: bool = False
    timeout_ns: int | None = None


class Asked(NamedTuple):
    """What a call asks for. items: checked; or texts, to be tokenised first. place: where in the request."""

    options: Options
    place: str
    items: Sequence[Item] = ()
    texts: Sequence[str] = ()


class Call(Protocol):
    """A request of one of the protocols. Its methods raise RequestError."""

    @property
    def variant_field(self) -> str:
        """Where it names the variant."""

    def variant(self, ready: Ready) -> str:
        """The variant that it names."""

    def read(self, ready: Ready) -> Asked:
        """What it holds, checked."""


class Answered(NamedTuple):
    """A request that has run. times: where its time went."""

    ready: Ready
    request: Request
    times: Times


class Predictor:
    """One per server: every prediction goes through it and is counted once."""

    def __init__(
        self, serving: Serving, metrics: Metrics, statistics: Statistics, failures: Failures
    ) -> None:
        self._serving = serving
        self._metrics = metrics
        self._statistics = statistics
        self._failures = failures

    async def predict(self, call: Call, left_s: float | None = None) -> Answered:
        """left_s: until the caller's deadline. Raises WattserveError."""
        begun_ns = time.monotonic_ns()
        deadline_ns = None if left_s is None else begun_ns + int(left_s * 1e9)
        variant = ""
        try:
            ready = self._serving.accept()
            try:
                variant = call.variant(ready)
                answered = await self._answer(ready, call, variant, begun_ns, deadline_ns)
            finally:
                self._serving.done()
        except asyncio.CancelledError:  # grpc ends the handler so when the caller's deadline passes, too
            own_left_s = None if deadline_ns is None else (deadline_ns - time.monotonic_ns()) / 1e9
            if is_late(own_left_s, left_s):
                self._failed(variant, LATE, "the caller's deadline passed", begun_ns)
            else:
                self._failed(variant, LEFT, "the caller left", begun_ns)
            raise
        except Exception as error:
            self._failed(variant, kind_of(error), str(error), begun_ns)
            raise
        self._metrics.request_answered(variant, answered.times, answered.request.receipt)
        self._statistics.answered(variant, len(answered.request.sequences), answered.times)
        return answered

    def _failed(self, variant: str, kind: Kind, message: str, begun_ns: int) -> None:
        self._metrics.request_ended(variant, kind.code.name)
        self._failures.add(FailedRequest(time.time(), variant, kind.code.name, kind.reason, message))
        if variant:
            self._statistics.failed(variant, time.monotonic_ns() - begun_ns)

    async def _answer(
        self, ready: Ready, call: Call, variant: str, begun_ns: int, deadline_ns: int | None
    ) -> Answered:
        asked = call.read(ready)
        items, tokenize_ns = asked.items, 0
        if asked.texts:
            items = await _encode(ready, asked)
            tokenize_ns = time.monotonic_ns() - begun_ns
        options = asked.options
        if options.timeout_ns is not None:
            own_ns = begun_ns + options.timeout_ns
            deadline_ns = own_ns if deadline_ns is None else min(deadline_ns, own_ns)
        try:
            done = await ready.engine.predict(
                items, variant, options.request_id, deadline_ns, options.priority
            )
        except NotPossibleHere as error:
            error.field = error.field or call.variant_field
            raise
        ran_ns = time.monotonic_ns()
        if options.waits_for_energy:
            await until_settled(ready, done.receipt)
        times = Times(
            tokenize_ns=tokenize_ns,
            queue_ns=done.queue_ns,
            compute_ns=done.compute_ns,
            output_ns=max(0, ran_ns - done.accepted_ns - done.queue_ns - done.compute_ns),
            total_ns=time.monotonic_ns() - begun_ns,
        )
        return Answered(ready, done, times)


async def _encode(ready: Ready, asked: Asked) -> list[Item]:
    if ready.tokenizer is None:
        raise NotPossibleHere(f"{ready.info.model_name} has no tokenizer: send token ids", asked.place)
    sequences = await ready.tokenizer.encode(asked.texts)
    check_ids(sequences, ready.engine.model.facts, asked.place)
    return [*sequences]


async def until_settled(ready: Ready, receipt: Receipt) -> None:
    """Wait, but no longer than the settlement limit: then the receipt is given as it is."""
    try:
        async with asyncio.timeout(SETTLEMENT_LIMIT_S):
            await ready.engine.book.until_final(receipt)
    except TimeoutError:
        pass
