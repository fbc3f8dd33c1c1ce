"""The HTTP server of the metrics: a few pages, read only, whoever asks."""

import contextlib
import errno
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from socketserver import TCPServer

import pytest

from wattserve_server.errors import ConfigError
from wattserve_server.telemetry import exposition as module
from wattserve_server.telemetry.exposition import CONNECTIONS, Exposition


@pytest.fixture
def exposition() -> Iterator[Exposition]:
    made = Exposition(
        {"/metrics": lambda accept: ("text/plain", f"accept={accept}\n".encode())},
        "127.0.0.1",
        0,
        of_one_address=CONNECTIONS,
    )
    yield made
    made.close()


def address(exposition: Exposition) -> tuple[str, int]:
    host, _, port = exposition.url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    return host.strip("[]"), int(port)


def ask(
    exposition: Exposition, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*address(exposition), timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def say(exposition: Exposition, sent: bytes) -> bytes:
    """All that the server answers to these bytes, which need be no HTTP."""
    with socket.create_connection(address(exposition), timeout=10) as connection:
        connection.sendall(sent)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while more := connection.recv(65536):
                found += more
        return found


def test_a_page_is_found_by_its_path_and_told_what_is_accepted(exposition: Exposition) -> None:
    status, headers, body = ask(exposition, "GET", "/metrics", {"Accept": "a/b;q=0.5"})
    assert (status, body) == (200, b"accept=a/b;q=0.5\n")
    assert headers["content-type"] == "text/plain"
    assert headers["content-length"] == str(len(body))


def test_a_query_is_no_part_of_the_path(exposition: Exposition) -> None:
    assert ask(exposition, "GET", "/metrics?name[]=up")[0] == 200
    assert say(exposition, b"GET http://somewhere/metrics HTTP/1.1\r\n\r\n").startswith(
        b"HTTP/1.1 200 OK\r\n"
    )


def test_head_has_the_headers_of_get_and_no_body(exposition: Exposition) -> None:
    _, got, body = ask(exposition, "GET", "/metrics")
    status, headed, empty = ask(exposition, "HEAD", "/metrics")
    assert (status, headed, empty) == (200, got, b"")
    assert body


@pytest.mark.parametrize(
    "path", ["/", "/favicon.ico", "/metrics/", "//metrics", "/metrics/../x", "/%6detrics"]
)
def test_no_other_path_is_answered(exposition: Exposition, path: str) -> None:
    for method in ("GET", "POST"):
        assert ask(exposition, method, path)[::2] == (404, b"404 Not Found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_the_pages_are_to_be_read_only(exposition: Exposition, method: str) -> None:
    status, headers, body = ask(exposition, method, "/metrics")
    assert (status, body) == (405, b"405 Method Not Allowed\n")
    assert headers["allow"] == "GET, HEAD"


def test_a_page_may_be_added_later(exposition: Exposition) -> None:
    exposition.routes["/"] = lambda accept: ("text/html", b"<p>status")
    assert ask(exposition, "GET", "/?a=b")[::2] == (200, b"<p>status")


def test_a_page_that_fails_says_nothing_of_why(
    exposition: Exposition, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(accept: str) -> tuple[str, bytes]:
        raise RuntimeError("a secret")

    exposition.routes["/broken"] = fail
    assert ask(exposition, "GET", "/broken")[::2] == (500, b"500 Internal Server Error\n")
    assert ask(exposition, "GET", "/metrics")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"GET /metrics extra HTTP/1.1\r\n\r\n",
        b"GET  /metrics HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\xff\xfe\x00 /metrics HTTP/1.1\r\n\r\n",
        b"GET http://[::1/metrics HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"A" * 33 + b" /metrics HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_in_one_line(
    exposition: Exposition, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = say(exposition, sent)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"\r\n\r\n400 Bad Request\n")
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nAccept: x\r\n", b"x" * 20_000])
def test_a_request_that_never_ends_has_no_answer(
    exposition: Exposition, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert say(exposition, sent) == b""
    assert "Traceback" not in "".join(capfd.readouterr())
    assert ask(exposition, "GET", "/metrics")[0] == 200


def test_odd_headers_hurt_nobody(exposition: Exposition) -> None:
    sent = b"GET /metrics HTTP/1.1\nno colon\n: empty\nACCEPT:  a \nAccept: b\nX: \xff\n\n"
    assert say(exposition, sent).endswith(b"accept=a,b\n")


class OneByOne:
    """A connection on which each byte comes by itself."""

    def __init__(self, sent: bytes) -> None:
        self._left = [bytes([byte]) for byte in reversed(sent)]

    def settimeout(self, seconds: float) -> None: ...

    def recv(self, most: int) -> bytes:
        return self._left.pop() if self._left else b""


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\n\r\n"])
def test_a_head_that_comes_byte_by_byte_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    looked_at, pattern = list[int](), module._END_OF_HEAD

    class Counted:
        def search(self, head: bytes, begin: int = 0) -> object:
            looked_at.append(len(head) - begin)
            return pattern.search(head, begin)

    monkeypatch.setattr(module, "_END_OF_HEAD", Counted())
    sent = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 1000 + end
    handler = object.__new__(module._Connection)
    handler.request = OneByOne(sent)
    assert handler._read_head() == sent.decode()
    assert max(looked_at) <= 4


def test_a_client_that_trickles_is_given_so_long_in_all(
    exposition: Exposition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.3)
    begun = time.monotonic()
    with socket.create_connection(address(exposition), timeout=10) as connection:
        connection.settimeout(0.05)
        while True:  # until it hangs up
            try:
                connection.sendall(b"x")
                if connection.recv(1) == b"":
                    break
            except TimeoutError:
                assert time.monotonic() < begun + 60
            except OSError:
                break
    assert time.monotonic() - begun >= 0.3


def test_clients_that_say_nothing_keep_nobody_waiting(exposition: Exposition) -> None:
    with contextlib.ExitStack() as silent:
        for _ in range(CONNECTIONS - 1):
            silent.enter_context(socket.create_connection(address(exposition), timeout=10))
        assert ask(exposition, "GET", "/metrics")[0] == 200


def test_there_are_so_many_connections_at_the_most_and_who_asks_is_not_kept_out(
    exposition: Exposition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_S", 600.0)
    with contextlib.ExitStack() as silent:
        made = [
            silent.enter_context(socket.create_connection(address(exposition), timeout=10))
            for _ in range(CONNECTIONS + 20)
        ]
        for connection in made[:20]:  # who has been at asking for longest
            assert connection.recv(1) == b""
        until = time.monotonic() + 60
        while sum("process_request" in each.name for each in threading.enumerate()) > CONNECTIONS:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert ask(exposition, "GET", "/metrics")[0] == 200
        made[-1].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert made[-1].recv(12) == b"HTTP/1.1 200"


def test_where_all_are_being_answered_who_comes_is_closed() -> None:
    answers, begun = threading.Event(), threading.Semaphore(0)

    def page(accept: str) -> tuple[str, bytes]:
        begun.release()
        answers.wait(60)
        return "text/plain", b""

    made = Exposition({"/metrics": page}, "127.0.0.1", 0, of_one_address=1)
    with contextlib.closing(made), contextlib.ExitStack() as connections:
        first = connections.enter_context(socket.create_connection(address(made), timeout=60))
        first.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert begun.acquire(timeout=60)
        second = connections.enter_context(socket.create_connection(address(made), timeout=60))
        assert second.recv(1) == b""
        answers.set()
        assert first.recv(12) == b"HTTP/1.1 200"


def test_a_reader_that_does_not_read_is_dropped(
    exposition: Exposition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    exposition.routes["/large"] = lambda accept: ("text/plain", b"x" * 50_000_000)
    with socket.create_connection(address(exposition), timeout=10) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        taken = len(connection.recv(1))
        while any("process_request" in each.name for each in threading.enumerate()):
            time.sleep(0.01)  # it still waits for its reader
        with contextlib.suppress(ConnectionResetError):
            while more := connection.recv(1 << 20):
                taken += len(more)
    assert taken < 50_000_000


def test_a_port_in_use_is_the_operators_to_change(exposition: Exposition) -> None:
    with pytest.raises(ConfigError, match="--metrics-port"):
        Exposition({}, *address(exposition))
    with pytest.raises(ConfigError, match="--metrics-port"):
        Exposition({}, "no.such.host.invalid", 0)


def test_it_listens_on_ipv6_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        made = Exposition({"/metrics": lambda accept: ("text/plain", b"")}, "::1", 0)
    except ConfigError:
        pytest.skip("no IPv6 here")
    assert made.url.startswith("http://[::1]:")
    assert ask(made, "GET", "/metrics")[0] == 200
    made.close()


def test_without_file_descriptors_who_comes_is_refused_and_the_thread_does_not_spin(
    exposition: Exposition, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, asked = TCPServer.get_request, []

    def short(server: TCPServer) -> object:
        asked.append(server)
        if len(asked) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(server)

    monkeypatch.setattr(TCPServer, "get_request", short)
    assert say(exposition, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    assert len(asked) == 2
    assert [record.message for record in caplog.records] == [module.NO_FILES_LEFT]
    monkeypatch.undo()
    assert ask(exposition, "GET", "/metrics")[0] == 200


def test_a_want_of_file_descriptors_is_told_by_whoever_looks(
    exposition: Exposition, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "has_files_left", lambda: False)
    exposition._server._look_s = 0.0
    exposition._server.service_actions()
    assert module.NO_FILES_LEFT in [record.message for record in caplog.records]


def test_one_address_has_so_many_connections_and_what_is_closed_is_counted() -> None:
    closed = threading.Semaphore(0)
    made = Exposition(
        {"/metrics": lambda accept: ("text/plain", b"")},
        "127.0.0.1",
        0,
        of_one_address=2,
        on_closed=closed.release,
    )
    with contextlib.closing(made), contextlib.ExitStack() as connections:
        first, *_ = (
            connections.enter_context(socket.create_connection(address(made), timeout=60)) for _ in "123"
        )
        assert first.recv(1) == b""
        assert closed.acquire(timeout=60)
        with socket.socket() as elsewhere:  # of 127.0.0.0/8 every address is this machine's
            elsewhere.bind(("127.0.0.2", 0))
            elsewhere.settimeout(10)
            elsewhere.connect(address(made))
            elsewhere.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert elsewhere.recv(12) == b"HTTP/1.1 200"
