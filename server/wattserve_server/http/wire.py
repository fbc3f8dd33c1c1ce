"""One exchange of HTTP: its body comes in, whole or not at all; a reply, or a stream of events, goes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from wattserve_server.errors import InvalidRequest

BODY_S = 30.0  # for which a body may take to come
LINGER_S = 2.0  # for which what is not read is let go by, so that the client reads why

_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that keeps events back
]
_DONE = b"data: [DONE]\n\n"
# One for all of them: `json.dumps` makes an encoder for each.
encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Wire:
    """most_bytes: of a body."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, most_bytes: int) -> None:
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.status = 0  # that an error of the exchange itself has, closer than its kind's
        self._receive = receive
        self._send = send
        self._most_bytes = most_bytes
        self._has_come = False  # the whole body
        self.streams = False  # events are going back
        self.is_over = False
        self.reply_bytes = 0  # of a whole reply

    async def read(self, hold: Callable[[int], None]) -> bytes:
        """hold: told how many bytes have come, part by part; it may raise. Raises InvalidRequest;
        CancelledError where the client leaves meanwhile."""
        if "content-length" in self.headers and "transfer-encoding" in self.headers:  # proxies may differ
            raise InvalidRequest("has both content-length and transfer-encoding: send one", "body")
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            self.status = 415
            raise InvalidRequest(f"content-encoding {encoding[:80]!r}: send it uncompressed", "body")
        if int(self.headers.get("content-length", 0)) > self._most_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                while not self._has_come:
                    part = await self._part()
                    if len(body) + len(part) > self._most_bytes:
                        raise self._too_large()
                    hold(len(part))
                    body += part
        except TimeoutError:
            self.status = 408
            raise InvalidRequest(f"the body did not come within {BODY_S:g} s", "body") from None
        return bytes(body)

    async def _part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        self._has_come = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    def _too_large(self) -> InvalidRequest:
        self.status = 413
        return InvalidRequest(
            f"a body has at most {self._most_bytes} bytes (the server's --max-message-bytes): send less",
            "body",
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Cancel this task if the client leaves before the block ends."""
        task = asyncio.current_task()
        assert task is not None

        async def watch(answering: asyncio.Task[Any]) -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            answering.cancel()

        watching = asyncio.create_task(watch(task))
        try:
            yield
        finally:
            watching.cancel()

    async def reply(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """All of it; `end` has to follow."""
        await self.reply_encoded(encoded(content), status, headers)

    async def reply_encoded(
        self, content: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """As `reply`, of JSON."""
        response = Response(content, status, headers, "application/json")
        body = bytes(response.body)
        await self._send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
        await self._send(_body(body, more=True))
        self.reply_bytes = len(body)
        self.is_over = True

    async def end(self) -> None:
        """Wait until the client has read the whole reply, but for what the system holds, or has left."""
        if self.reply_bytes:
            await self._send(_body(b"", more=False))

    async def refuse(self, content: Any, status: int, headers: Mapping[str, str]) -> None:
        """As `reply`; the body may not have been read."""
        if self._has_come:
            return await self.reply(content, status, headers)
        response = JSONResponse(content, status, {**headers, "connection": "close"})
        await self._send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
        await self._send(_body(bytes(response.body), more=True))
        with suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(LINGER_S):
                while not self._has_come:
                    await self._part()
        await self._send(_body(b"", more=False))
        self.is_over = True
        return None

    async def begin_events(self, headers: Mapping[str, str]) -> None:
        given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        self.streams = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_EVENTS, *given]})

    async def events(self, *contents: Any) -> None:
        """Each as one event, all at once."""
        data = b"".join(_event(content) for content in contents)
        await self._send(_body(data, more=True))

    async def end_events(self, *contents: Any) -> None:
        data = b"".join(_event(content) for content in contents)
        await self._send(_body(data + _DONE, more=False))
        self.is_over = True


def _body(data: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _event(content: Any) -> bytes:
    return f"data: {encoded(content)}\n\n".encode()
