"""The front for OpenAI's clients: what it listens on, and which addresses it has. It runs on the server's own
event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from asyncio import sslproto
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from h11._receivebuffer import ReceiveBuffer
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from wattserve_server.errors import ConfigError, NotFound, UnsupportedError, WattserveError
from wattserve_server.http.api import Api
from wattserve_server.http.calls import Endpoint
from wattserve_server.http.errors import told
from wattserve_server.service.certificates import CertificateFiles
from wattserve_server.service.checks import shown
from wattserve_server.service.methods import UNREAD_S, Desk
from wattserve_server.service.prediction import Predictor, Serving
from wattserve_server.service.status import REACTIONS, Failure

log = logging.getLogger(__name__)

IDLE_S = 30  # for which a connection may ask for nothing, or be at asking
MOST_LINES = 100  # of a head; of headers behind a body
MOST_CHUNKS = 2000  # of a body: some 30 ms of the event loop, whatever is in them
CLOSING_S = 1  # that connections have which are still open once no call is
AT_ONCE = 32  # connections are let in before the event loop turns to something else: 10 ms by TLS
# Behind a request that is being answered; once more has come nobody sees whether its client leaves.
AHEAD_BYTES = 64 * 1024
QUEUED = 1024  # more may wait for that
# Read at once by TLS: a record. asyncio takes 256 KiB for each connection, and where a handshake fails older
# Pythons keep them until the next full look for garbage.
TLS_BYTES = 16 * 1024

PATHS = (
    "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/classify", "/health",
)  # fmt: skip


def application(api: Api, desk: Desk) -> Starlette:
    """An ASGI application."""
    routes = [
        Route("/health", Endpoint(desk, "Health", api.health, reads=False), methods=["GET"]),
        Route("/v1/models", Endpoint(desk, "Models", api.models, reads=False), methods=["GET"]),
        Route("/v1/models/{name:path}", Endpoint(desk, "Models", api.model, reads=False), methods=["GET"]),
        Route("/v1/completions", Endpoint(desk, "Completions", api.completions), methods=["POST"]),
        Route(
            "/v1/chat/completions", Endpoint(desk, "ChatCompletions", api.chat_completions), methods=["POST"]
        ),
        Route("/v1/embeddings", Endpoint(desk, "Embeddings", api.embeddings), methods=["POST"]),
        *(
            Route(path, Endpoint(desk, "Classify", api.classify), methods=["POST"])
            for path in ("/v1/classify", "/classify")  # the latter as vLLM has it
        ),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _refuse, 405: _refuse})
    app.router.redirect_slashes = False
    return app


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """What no endpoint has seen: an address that is not here, or a method that it does not take."""
    assert isinstance(error, HTTPException)
    path, allowed = shown(request.url.path), (error.headers or {}).get("Allow")
    if allowed is None:
        kind: type[WattserveError] = NotFound
        message = f"there is no {path} here: this server has {', '.join(PATHS)}"
    else:
        kind, message = UnsupportedError, f"{path} takes no {shown(request.method)}: send {allowed}"
    status, content, _ = told(Failure(REACTIONS[kind], message))
    return JSONResponse(content, status, error.headers)


class _Lines(ReceiveBuffer):
    """Of a head, and behind a body. h11 and uvicorn take 5 us of the event loop for each, and bound bytes."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        lines = super().maybe_extract_lines()
        if lines is not None and len(lines) > MOST_LINES:
            raise h11.RemoteProtocolError("too many headers")
        return lines


class _Coming(h11.Connection):
    """What comes on a connection, of which uvicorn handles all that is there at once."""

    _chunks = 0  # of a body

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self._receive_buffer = _Lines()

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = 0
        elif isinstance(event, h11.Data) and event.chunk_start:
            self._chunks += 1
            if self._chunks > MOST_CHUNKS:
                raise h11.RemoteProtocolError("too many chunks")
        return event


class Connection(H11Protocol):
    """uvicorn waits for ever for the head of a first request, for one that comes byte by byte, and for who
    does not read a reply; and once anything comes behind a request it reads no more, so that nobody sees who
    leaves.
    """

    unread_s = UNREAD_S
    _ahead = 0  # bytes that came behind a whole request, while it is answered
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.conn = _Coming()
        # So that it says when anything waits to be read. By TLS a limit of 0 would be reached by nothing.
        transport.set_write_buffer_limits(1)
        self.timeout_keep_alive_task = self.loop.call_later(IDLE_S, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._ahead = self._ahead + len(data) if self.conn.their_state is h11.DONE else 0
        self.conn.receive_data(data)
        self.handle_events()  # a whole head ends the time that there was for it
        if self.conn.their_state is h11.DONE and self._ahead < AHEAD_BYTES:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # its reply has begun, or is over: uvicorn would fail
            self.transport.close()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(CLOSING_S, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        # asyncio would wait for ever, also of a connection that is being closed
        self._unread = self.loop.call_later(self.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_not_let_in)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUED)  # asyncio lets as many wait as it lets in at once

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The server around it has them."""
        yield


def _not_let_in(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio has to tell: a shortage is no fault, and gets no traceback."""
    error = context.get("exception")
    if "socket" in context and isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        log.error("no file descriptors are left: the HTTP front lets nobody in for a second")
    else:
        loop.default_exception_handler(context)


class Front:
    """Listens from when it is made, and answers from when it is started."""

    def __init__(self, app: Starlette, host: str, port: int, tls: CertificateFiles | None) -> None:
        """port: 0 picks a free one. Raises ConfigError when it cannot listen there."""
        # A stranger's rubbish is not news; a fault of the application is.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._socket = _listening(host, port)
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # else whoever is on this machine could call himself anybody
            server_header=False,
            backlog=AT_ONCE,
            timeout_keep_alive=IDLE_S,
            # Connections are gone by then: uvicorn would cancel calls, and call that a fault.
            timeout_graceful_shutdown=2 * CLOSING_S,
        )
        config.load()
        if tls:
            config.ssl = tls.context()
            sslproto.SSLProtocol.max_size = TLS_BYTES
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{shown}:{self._socket.getsockname()[1]}/v1"

    def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve([self._socket]))

    async def stop(self) -> None:
        """Close what is open, and take no more."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        self._socket.close()


def open_front(
    serving: Serving,
    predictor: Predictor,
    desk: Desk,
    host: str,
    port: int,
    tls: CertificateFiles | None,
) -> Front:
    """Raises ConfigError."""
    return Front(application(Api(serving, predictor), desk), host, port, tls)


def _listening(host: str, port: int) -> socket.socket:
    try:
        found: Sequence[Any] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(QUEUED)
        except BaseException:
            made.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "no name of a machine"
        raise ConfigError(
            f"cannot listen for HTTP on {host}:{port}: {reason}; choose another --http-port or --host"
        ) from error
    made.setblocking(False)
    return made
