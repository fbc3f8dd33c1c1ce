"""What each address of OpenAI's API answers, by the one Predictor."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import lru_cache

from wattserve_server.engine.roster import HostedVariant
from wattserve_server.errors import InvalidRequest, NotPossibleHere
from wattserve_server.http import replies
from wattserve_server.http.asked import AskedText, chat_asked, completion_asked, encoder_asked, told_sequences
from wattserve_server.http.body import Body
from wattserve_server.http.calls import Exchange
from wattserve_server.http.errors import MODEL
from wattserve_server.http.replies import Told, ToldChat
from wattserve_server.service.caller import CALLER
from wattserve_server.service.generation import Unread, begin
from wattserve_server.service.oip_request import Fields, alias, hosted_named
from wattserve_server.service.oip_sampling import told as told_of
from wattserve_server.service.prediction import AcceptedRequest, Answered, Host, Predictor, Serving
from wattserve_server.service.spending import WARNING

_NAMED = Fields(MODEL, "")
RECEIPT_HEADER = "x-wattserve-receipt-id"

Read = Callable[[Exchange, Host], Awaitable[AskedText]]


class Api:
    def __init__(self, serving: Serving, predictor: Predictor) -> None:
        self._serving = serving
        self._predictor = predictor
        self._created = int(time.time())
        self.unread = Unread()

    async def health(self, exchange: Exchange) -> None:
        self._serving.check_not_draining()
        self._serving.get()
        await exchange.wire.reply({"status": "ok"})

    async def models(self, exchange: Exchange) -> None:
        engine = self._serving.get().engine
        names = [engine.model.name, *(alias(engine, variant) for variant in engine.roster.names)]
        await exchange.wire.reply({"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, exchange: Exchange) -> None:
        name = exchange.wire.scope["path_params"]["name"]
        hosted_named(self._serving.get().engine, name, "", _NAMED)
        await exchange.wire.reply(self._model(name))

    def _model(self, name: str) -> replies.Json:
        longest = self._serving.get().engine.model.facts.max_tokens
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "wattserve",
            "max_model_len": longest,
        }

    async def completions(self, exchange: Exchange) -> None:
        async def read(exchange: Exchange, host: Host) -> AskedText:
            return completion_asked(exchange.body, exchange.wire.headers, host)

        await self._generate(exchange, read, Told)

    async def chat_completions(self, exchange: Exchange) -> None:
        async def read(exchange: Exchange, host: Host) -> AskedText:
            return await chat_asked(exchange.body, exchange.wire.headers, host)

        await self._generate(exchange, read, ToldChat)

    async def _generate(self, exchange: Exchange, read: Read, form: type[Told]) -> None:
        wire, call, body = exchange
        with self._predictor.accept(None, CALLER.get()) as prediction:
            if body.truth("stream"):
                call.hold()
            host = prediction.host
            if not host.engine.model.task.generates:
                raise _not_its_task(host)
            prediction.choose(_hosted(body, host), body.priority())
            wanted = await read(exchange, host)
            body.clear()  # what nobody reads of it may be long, and a generation takes its time
            async with aclosing(await begin(prediction, wanted.asked)) as running:
                call.receipt = running.receipt
                told = form(running.receipt, host, _words(host), wanted.tells_so_far)
                headers = {RECEIPT_HEADER: running.receipt.receipt_id, **_warned(prediction)}
                async for piece in running:
                    if not wanted.streams:
                        told.keep(piece)
                    elif piece.text or piece.scores:
                        first = [] if wire.streams else told.begin()
                        with self.unread.waiting(call):
                            if not wire.streams:
                                await wire.begin_events(headers)
                            await wire.events(*first, told.chunk(piece))
                done = await running.end()
        if not wanted.streams:
            await wire.reply_encoded(told.whole(done), headers=headers)
            return
        if not wire.streams:
            await wire.begin_events(headers)
        usage = [told.usage_chunk(done)] if wanted.tells_usage else []
        await wire.end_events(told.last_chunk(done), *usage)

    async def embeddings(self, exchange: Exchange) -> None:
        form = exchange.body.get("encoding_format", "float")
        with self._predictor.accept(None, CALLER.get()) as prediction:
            if form not in ("float", "base64"):
                raise InvalidRequest(f"{told_of(form)}; either 'float' or 'base64'", "encoding_format")
            host = prediction.host
            if host.engine.model.task.generates or host.engine.model.scoring is not None:
                raise _not_its_task(host)
            told = replies.embeddings(
                await self._answered(exchange, prediction, "encoding_format"), host, form == "base64"
            )
        await exchange.wire.reply(told, headers=_warned(prediction))

    async def classify(self, exchange: Exchange) -> None:
        with self._predictor.accept(None, CALLER.get()) as prediction:
            host = prediction.host
            if host.engine.model.scoring is None:
                raise _not_its_task(host)
            told = replies.classes(await self._answered(exchange, prediction), host)
        await exchange.wire.reply(told, headers=_warned(prediction))

    async def _answered(self, exchange: Exchange, prediction: AcceptedRequest, *more: str) -> Answered:
        """more: as of `encoder_asked`."""
        host, body = prediction.host, exchange.body
        prediction.choose(_hosted(body, host), body.priority(), told_sequences(body))
        return await prediction.answer(encoder_asked(body, exchange.wire.headers, host, *more))


def _warned(prediction: AcceptedRequest) -> dict[str, str]:
    """Headers of its answer, where a soft budget is used up."""
    spending = prediction.spending
    return {WARNING: spending.warning} if spending is not None and spending.warning else {}


def _hosted(body: Body, host: Host) -> HostedVariant:
    """Raises InvalidRequest or NotFound."""
    return hosted_named(host.engine, body.text(MODEL), "", _NAMED)


def _not_its_task(host: Host) -> NotPossibleHere:
    model = host.engine.model
    where = "/v1/embeddings" if model.scoring is None else "/v1/classify"
    if model.task.generates:
        where = "/v1/completions or /v1/chat/completions"
    elif not model.task.takes_text:
        where = "Predict by gRPC"
    return NotPossibleHere(f"{model.name} does the task {model.task.name}: call {where}", MODEL)


def _words(host: Host) -> Callable[[int], str]:
    """The text of a token by itself."""
    tokenizer = host.engine.model.tokenizer

    @lru_cache(maxsize=4096)
    def word_of(token: int) -> str:
        text: str = "" if tokenizer is None else tokenizer.decode([token])
        return text

    return word_of
