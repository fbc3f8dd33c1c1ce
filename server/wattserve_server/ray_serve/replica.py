"""One replica of the application: a whole server with its own engine, meters, ledger and name, but for what
listens, which is Ray's ingress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import grpc
from ray import serve

from wattserve_server.app import be_ready_for_much, drain
from wattserve_server.config import ServerConfig
from wattserve_server.console import say
from wattserve_server.ray_serve import envelope, ingress
from wattserve_server.ray_serve.directory import answer_questions
from wattserve_server.ray_serve.envelope import Asked, Metadata, Reply, Status
from wattserve_server.ray_serve.services import ReplicaInference, ReplicaOip
from wattserve_server.service.gate import Gate
from wattserve_server.service.held import HeldBytes
from wattserve_server.service.listen import HealthService
from wattserve_server.service.methods import Deadlines, OpenCalls, method_handlers
from wattserve_server.service.prediction import Predictor, Serving, Unkeyed
from wattserve_server.service.quota import Quotas
from wattserve_server.service.status_page import StatusPage
from wattserve_server.starting import make_plan, start
from wattserve_server.telemetry.exposition import Exposition
from wattserve_server.telemetry.fresh import Fresh
from wattserve_server.telemetry.observer import Observer
from wattserve_server.telemetry.scrape import wants_openmetrics


class ForwardedContext:
    """What a method of ours asks of gRPC's context, of a call that came by Ray."""

    def __init__(self, left_s: float | None, ray_context: Any) -> None:
        self._deadline_s = None if left_s is None else time.monotonic() + left_s
        self._ray_context = ray_context
        self.ended: Status | None = None  # where the call has failed
        self.has_begun = asyncio.Event()  # once a stream tells its caller so

    def time_remaining(self) -> float | None:
        return None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())

    def peer(self) -> str:
        return str(self._ray_context.peer())

    def invocation_metadata(self) -> Any:
        return self._ray_context.invocation_metadata()

    def code(self) -> int:
        return 0 if self.ended is None else self.ended.code

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._ray_context.set_trailing_metadata(list(metadata))

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        self.has_begun.set()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Ray has the reply as soon as it is there."""
        callback(self)

    async def abort(self, code: grpc.StatusCode, details: str = "", metadata: Metadata = ()) -> None:
        self.ended = Status(code.value[0], details, metadata)
        raise grpc.aio.AbortError


class Calls:
    """What a drain asks of what listens: nobody hears `say` but who asks for this replica's health."""

    def __init__(self, health: HealthService, calls: OpenCalls) -> None:
        self._health, self._calls = health, calls

    def say(self, serving: bool) -> None:
        self._health.say(serving)

    async def cut(self) -> None:
        await self._calls.end(0)

    async def stop(self, grace_s: float) -> None:
        self._health.end()
        await self._calls.end(grace_s)


class Replica:
    """Ray calls the methods, which are those of both protocols and of health, and awaits `__init__`."""

    async def __init__(self, config: ServerConfig, directory: Any) -> None:  # type: ignore[misc]
        """config: of every replica. Raises ConfigError or MeterError."""
        self._name = await directory.sit.remote()
        port = config.metrics_port and config.metrics_port + serve.get_replica_context().rank.local_rank
        named = self._name if config.account_book else ""
        self._config = config = replace(config, account_name=named, metrics_port=port)
        plan = make_plan(config)
        be_ready_for_much()
        self._undo = AsyncExitStack()
        self._most_bytes = plan.most_bytes(config)
        self._serving, observer = Serving(), Observer(version("wattserve"))
        quotas = Quotas(messages=HeldBytes(self._most_bytes))
        deadlines = Deadlines(config.default_deadline_seconds, config.max_deadline_seconds)
        predictor = Predictor(self._serving, observer, quotas, deadlines, Unkeyed(config.max_peer_in_flight))
        gate, calls = Gate(None, quotas), OpenCalls(deadlines, config.max_connection_calls)
        health = HealthService(ingress.PATHS)
        native = ReplicaInference(self._serving, predictor, directory)
        self._go_on(answer_questions(directory, self._name, lambda _: native.own_report()))
        self._calls = Calls(health, calls)
        self._handlers: dict[str, Any] = {}
        servicers = (native, ReplicaOip(self._serving, predictor, observer), health)
        for (path, service), servicer in zip(ingress.PATHS.items(), servicers, strict=True):
            self._handlers |= method_handlers(path, service, servicer, observer, gate, calls)
        status_page = StatusPage(self._serving, observer)
        exposition = Exposition(
            {"/": Fresh(status_page.page), "/metrics": Fresh(observer.page, wants_openmetrics)},
            config.metrics_address,
            config.metrics_port,
            None,
            config.max_metrics_connections,
            partial(asyncio.get_running_loop().call_soon_threadsafe, observer.refused, "metrics_connections"),
        )
        self._undo.callback(exposition.close)
        self._host, go_on = await start(config, plan, observer, quotas, self._undo, predictor)
        self._serving.host = self._host
        self._directory = directory
        await directory.join.remote(self._name, self._host.engine.book.run.instance_id)
        self._go_on(go_on())
        self._go_on(status_page.keep_history())
        self._calls.say(serving=True)
        say(f"replica {self._name} ready: metrics {exposition.url}")

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Until the replica ends."""
        self._undo.callback(asyncio.create_task(work).cancel)

    async def __del__(self) -> None:
        """Ray calls it once no call is in progress, and awaits it."""
        if not hasattr(self, "_host"):
            return
        await self._directory.leave.remote(self._name)
        await drain(self._config, self._serving, self._host, self._calls)
        await self._undo.aclose()

    async def _answer(self, name: str, asked: Asked, ray_context: Any) -> Reply:
        if (refused := self._too_large(asked.data)) is not None:
            return refused
        handler, context = self._handlers[name], ForwardedContext(asked.left_s, ray_context)
        answered = await handler.unary_unary(asked.data, context)
        if context.ended is not None:
            return envelope.status(context.ended)
        return envelope.message(answered)

    async def _stream(self, name: str, asked: Any, ray_context: Any) -> AsyncIterator[Reply]:
        """asked: an `Asked`, or a stream that brings one and then bytes."""
        handler = self._handlers[name]
        if handler.request_streaming:
            first: Asked = await anext(asked)
            context = ForwardedContext(first.left_s, ray_context)
            replies = handler.stream_stream(asked, context)
        else:
            if (refused := self._too_large(asked.data)) is not None:
                yield refused
                return
            context = ForwardedContext(asked.left_s, ray_context)
            replies = handler.unary_stream(asked.data, context)
        loop, own = (
            asyncio.get_running_loop(),
            copy_context(),
        )  # what a method knows of its call is kept there

        async def next_reply() -> Any:
            return await anext(replies, None)

        async with aclosing(replies):
            coming = loop.create_task(next_reply(), context=own)
            begun = asyncio.ensure_future(context.has_begun.wait())
            try:
                await asyncio.wait((coming, begun), return_when=asyncio.FIRST_COMPLETED)
                if context.has_begun.is_set():
                    yield Reply(envelope.HEAD)
                while (reply := await coming) is not None:
                    yield envelope.message(handler.response_serializer(reply))
                    coming = loop.create_task(next_reply(), context=own)
            finally:
                begun.cancel()
                coming.cancel()
        if context.ended is not None:
            yield envelope.status(context.ended)

    def _too_large(self, data: bytes) -> Reply | None:
        if len(data) <= self._most_bytes:
            return None
        return envelope.status(
            Status(
                grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
                f"this message has {len(data)} bytes, and the server takes {self._most_bytes} "
                "(max_message_bytes); send less at once",
                (),
            )
        )


def _methods() -> Mapping[str, Any]:
    """For each method of the services one of the class, as Ray finds it: by its name, and by whether it is a
    generator."""
    made: dict[str, Any] = {}
    for service in ingress.PATHS.values():
        for method in service.methods:
            if method.server_streaming:
                made[method.name] = _streaming(method.name)
            else:
                made[method.name] = _unary(method.name)
    return made


def _unary(name: str) -> Any:
    async def call(self: Replica, asked: Asked, grpc_context: Any) -> Reply:
        return await self._answer(name, asked, grpc_context)

    return call


def _streaming(name: str) -> Any:
    async def call(self: Replica, asked: Any, grpc_context: Any) -> AsyncIterator[Reply]:
        async for reply in self._stream(name, asked, grpc_context):
            yield reply

    return call


for _name, _method in _methods().items():
    _method.__name__ = _name
    setattr(Replica, _name, _method)
