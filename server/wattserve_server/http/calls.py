"""From what answers a call of HTTP to an endpoint: admitted, read, limited, counted and refused as gRPC's
calls are, by the same gate and among the same open calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from wattserve_server.errors import ForbiddenError
from wattserve_server.http.body import Body, object_of
from wattserve_server.http.errors import told
from wattserve_server.http.wire import Wire
from wattserve_server.service.gate import SHORT_BYTES
from wattserve_server.service.methods import CUT_S, CountedCall, Desk

# As browsers tell it of a page that is not this server's own: whoever visits it may be on this machine.
_OF_OTHERS = ("cross-site", "same-site")

SERVICE = "openai.v1"  # among the services whose calls are counted


class Exchange(NamedTuple):
    """What a behaviour answers. body: empty of a call that has none."""

    wire: Wire
    call: CountedCall
    body: Body


Behaviour = Callable[[Exchange], Awaitable[None]]


class Context:
    """What a CountedCall asks of its transport. A caller's deadline is not among what HTTP tells."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.told: Any = None  # the code of the failure that the caller was told of
        self._when_done: list[Callable[[object], None]] = []

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        """As gRPC writes it, so that who calls by both is one caller."""
        host, port = self._wire.scope["client"] or ("", 0)  # None: he has gone
        return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._wire.headers.items()

    def code(self) -> Any:
        return self.told or 0

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._when_done.append(callback)

    def done(self) -> None:
        """Nothing waits to be written any more."""
        for callback in self._when_done:
            callback(self)


def _is_of_another_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent this for another site's page. By plain HTTP from another machine none says
    where to, only from where."""
    if (where := headers.get("sec-fetch-site")) is not None:
        return where in _OF_OTHERS
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


class Endpoint:
    """An ASGI application."""

    def __init__(self, desk: Desk, method: str, behaviour: Behaviour, reads: bool = True) -> None:
        """method: its row in the gate's table. reads: whether its calls have a body."""
        self._desk = desk
        self._method = method
        self._behaviour = behaviour
        self._reads = reads
        self._counted = desk.observer.method("server_stream" if reads else "unary", SERVICE, method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire = Wire(scope, receive, send, self._desk.most_bytes)
        context = Context(wire)
        with suppress(asyncio.CancelledError):  # he has left; nobody waits for this task
            try:
                await self._handle(wire, context)
                await wire.end()
            finally:
                context.done()

    async def _handle(self, wire: Wire, context: Context) -> None:
        desk = self._desk
        with CountedCall(self._counted, desk.calls, desk.gate, self._method, context) as call:
            try:
                call.admit()
                if _is_of_another_site(wire.headers) and "authorization" not in wire.headers:
                    raise ForbiddenError("a browser sends this for another site's page, and shows no API key")
                call.limit()
                body = Body({})
                if self._reads:
                    try:
                        data = await wire.read(call.hold_bytes)
                    except Exception:
                        call.refused_unread()
                        raise
                    body = call.read(object_of, data, is_held=True)
                with wire.watched():
                    await self._behaviour(Exchange(wire, call, body))
                if wire.reply_bytes > SHORT_BYTES:
                    call.will_reply(wire.reply_bytes)
                return
            except asyncio.CancelledError:
                ended: Exception = call.why_cut()
            except Exception as error:
                ended = error
            failure = call.failure(ended)
            context.told = failure.reaction.code
            status, content, headers = told(failure, wire.status)
            if wire.is_over:
                return
            if not wire.streams:
                await wire.refuse(content, status, headers)
                return
            with suppress(TimeoutError):  # the client may have ceased to read
                async with asyncio.timeout(CUT_S):
                    await wire.end_events(content)
