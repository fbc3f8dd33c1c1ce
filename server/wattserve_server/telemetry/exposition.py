"""The HTTP side of the metrics: a few pages, to be read only.

Each connection is one request on a thread of its own, so that a slow reader keeps nobody waiting. A request
has ASK_S to come and ANSWER_S to take its answer, however it trickles, and at most CONNECTIONS are served:
where there is no room, who comes takes the place of who has been at asking for longest. Python's
`http.server` keeps none of these limits, and answers requests whose end never came (ADR 11).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit

from wattserve_server.errors import ConfigError

log = logging.getLogger(__name__)

# From the request's Accept header to the content type and the body of the page. Called on any thread.
Route = Callable[[str], tuple[str, bytes]]

MayRead = Callable[[str], bool]  # of the Authorization header. Called on any thread.

CONNECTIONS = 32  # at the same time
CONNECTIONS_OF_ONE = 8  # from one address
ASK_S = 5.0
ANSWER_S = 10.0
MAX_HEAD_BYTES = 16 * 1024

NO_FILES = (errno.EMFILE, errno.ENFILE)
NO_FILES_LEFT = (
    "no file descriptors are left: new connections are refused, or wait for one; raise the limit "
    "(ulimit -n), or find out who holds so many connections"
)
LOOK_S = 1.0  # between two looks whether there are any
PAUSE_S = 0.5

_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (\S+) HTTP/1\.[01]")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_METHODS = ("GET", "HEAD")


def has_files_left() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in NO_FILES
    return True


class Exposition:
    """Serves pages by their paths at http://host:port, on threads of its own."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        host: str,
        port: int,
        may_read: MayRead | None = None,
        of_one_address: int = CONNECTIONS_OF_ONE,
        on_closed: Callable[[], object] = bool,
    ) -> None:
        """port: 0 picks a free one. may_read: None: everybody may. of_one_address: connections at once.
        on_closed: called, on any thread, for each that is closed unanswered to make room. Raises ConfigError
        when it cannot listen there."""
        self.routes = dict(routes)  # more may be added at any time
        try:
            self._server = _Server(self.routes, host, port, may_read, of_one_address, on_closed)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}; "
                "choose another --metrics-port"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="wattserve-metrics", daemon=True
        )
        self._thread.start()
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(
        self,
        routes: Mapping[str, Route],
        host: str,
        port: int,
        may_read: MayRead | None,
        of_one_address: int,
        on_closed: Callable[[], object],
    ) -> None:
        self.routes = routes
        self.may_read = may_read
        self._of_one_address = of_one_address
        self._on_closed = on_closed
        self._spare: int | None = None
        self._look_s = 0.0
        self._keep_spare()
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()  # connections, by address
        self._asking: dict[socket.socket, str] = {}  # those whose request has not come yet, and their address
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = addresses[0]
        super().__init__(address, _Connection)  # type: ignore[arg-type]  # of IPv6 there are four

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in NO_FILES:
                self._refuse_one()
            raise

    def _refuse_one(self) -> None:
        """Close who waits to be let in, by the descriptor that is kept for this. He is told at once, and this
        thread does not find him at the door for ever."""
        log.error(NO_FILES_LEFT)
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with suppress(OSError):
                super().get_request()[0].close()
        self._keep_spare()
        if self._spare is None:
            time.sleep(PAUSE_S)

    def _keep_spare(self) -> None:
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def service_actions(self) -> None:
        """Look now and then, because gRPC, which is asked more often, says nothing when it cannot let in."""
        if time.monotonic() < self._look_s:
            return
        self._look_s = time.monotonic() + LOOK_S
        if self._spare is None:
            self._keep_spare()
        if not has_files_left():
            log.error(NO_FILES_LEFT)

    def server_close(self) -> None:
        super().server_close()
        if self._spare is not None:
            os.close(self._spare)

    def process_request(self, request: Any, client_address: Any) -> None:
        address = client_address[0]
        with self._lock:
            of_one = self._open[address] >= self._of_one_address
            is_full = of_one or self._open.total() >= CONNECTIONS
            closed = self._slowest(address if of_one else None) if is_full else None
            if closed is not None:
                with suppress(OSError):  # its thread finds that it has ended, and leaves
                    closed.shutdown(socket.SHUT_RDWR)
                del self._asking[closed]
            has_room = closed is not None or not is_full
            if has_room:
                self._open[address] += 1
                self._asking[request] = address
        if is_full:
            self._on_closed()
        if not has_room:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had
            self._leave(request, address)
            raise

    def _slowest(self, address: str | None) -> socket.socket | None:
        """Who has been at asking for longest, of this address or of all; None where nobody is."""
        return next((each for each, whose in self._asking.items() if address in (None, whose)), None)

    def has_asked(self, request: socket.socket) -> bool:
        """False where it was too late, and another has its place."""
        with self._lock:
            return self._asking.pop(request, None) is not None

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request, client_address[0])

    def _leave(self, request: socket.socket, address: str) -> None:
        with self._lock:
            self._asking.pop(request, None)
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection for metrics ended early", exc_info=True)


class _Connection(BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        head = self._read_head()
        if not head or not self.server.has_asked(self.request):
            return
        status, kind, body = HTTPStatus.BAD_REQUEST, "", b""
        line, _, fields = head.partition("\n")
        asked = _REQUEST_LINE.fullmatch(line.rstrip("\r"))
        if asked is not None:
            status, kind, body = self._answer(asked[1], asked[2], fields)
        if status is not HTTPStatus.OK:
            kind, body = "text/plain; charset=utf-8", f"{status.value} {status.phrase}\n".encode()
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "X-Content-Type-Options: nosniff",
        ]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append(f"Allow: {', '.join(_METHODS)}")
        if status is HTTPStatus.UNAUTHORIZED:
            lines.append("WWW-Authenticate: Bearer")
        if asked is not None and asked[1] == "HEAD":
            body = b""
        self.request.settimeout(ANSWER_S)  # for all of it, in sendall
        self.request.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def _answer(self, method: str, target: str, fields: str) -> tuple[HTTPStatus, str, bytes]:
        may_read = self.server.may_read
        if may_read is not None and not may_read(_header("authorization", fields)):
            return HTTPStatus.UNAUTHORIZED, "", b""
        try:
            route = self.server.routes.get(urlsplit(target).path)
        except ValueError:  # an address with half an IPv6 host
            return HTTPStatus.BAD_REQUEST, "", b""
        if route is None:
            return HTTPStatus.NOT_FOUND, "", b""
        if method not in _METHODS:
            return HTTPStatus.METHOD_NOT_ALLOWED, "", b""
        try:
            return HTTPStatus.OK, *route(_header("accept", fields))
        except Exception:
            log.exception("the page %s failed", urlsplit(target).path)
            return HTTPStatus.INTERNAL_SERVER_ERROR, "", b""

    def _read_head(self) -> str:
        """Up to the empty line; nothing of a request that does not come in time, or never ends."""
        head, seen, until = b"", 0, time.monotonic() + ASK_S
        while not _END_OF_HEAD.search(head, max(0, seen - 3)):  # an end may have begun in what was seen
            seen = len(head)
            left_s = until - time.monotonic()
            if left_s <= 0 or len(head) > MAX_HEAD_BYTES:
                return ""
            self.request.settimeout(left_s)
            try:
                more = self.request.recv(4096)
            except OSError:  # it took too long, or has gone
                return ""
            if not more:
                return ""
            head += more
        return head.decode("latin-1")


def _header(wanted: str, fields: str) -> str:
    headers = (line.partition(":") for line in fields.splitlines())
    return ",".join(value.strip() for name, _, value in headers if name.lower() == wanted)
