"""The front on a port: clients that leave, do not read, or are cut; keys, certificates, long bodies."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trustme
from openai import AsyncOpenAI, AuthenticationError

from tests.fixtures.http_front import COMPLETION, MOST_BYTES, Desked, chatty_world, fronted
from tests.fixtures.language_model import Script, pieces
from wattserve_server.app import _open_front
from wattserve_server.config import ServerConfig
from wattserve_server.energy.receipt import Outcome
from wattserve_server.errors import ConfigError
from wattserve_server.http.front import AT_ONCE, MOST_CHUNKS, MOST_LINES, TLS_BYTES, Connection, Front
from wattserve_server.service.certificates import CertificateFiles
from wattserve_server.service.gate import Gate, KeyFile
from wattserve_server.service.held import HeldBytes
from wattserve_server.service.keys import changing, new_key
from wattserve_server.service.methods import Deadlines
from wattserve_server.service.quota import Quotas

CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM = json.dumps(COMPLETION | {"stream": True}).encode()


@pytest.fixture
def desk() -> Desked:
    return Desked(chatty_world())


async def opened(url: str, **how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.split("/")[2].rsplit(":", 1)
    return await asyncio.open_connection(host, int(port), **how)


def head(length: int, *more: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "host: here", f"content-length: {length}", *more, "", ""]
    return "\r\n".join(lines).encode()


async def began(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream of which the first event has come."""
    reader, writer = await opened(url)
    writer.write(head(len(STREAM)) + STREAM)
    await reader.readuntil(b'"text":"one"')
    return reader, writer


async def test_who_leaves_in_mid_stream_frees_his_place(desk: Desked) -> None:
    desk.of.script.halt = asyncio.Event()  # never set
    async with fronted(desk) as url:
        _, writer = await began(url)
        (generation,) = desk.of.generations
        writer.close()
        await generation.closed.wait()
        assert generation.receipt.outcome is Outcome.CANCELLED
        await desk.serving.until_idle()
    assert desk.count("wattserve_requests_total", variant="fp32", code="CANCELLED") == 1


async def test_who_leaves_while_he_waits_for_a_whole_answer_frees_it_too(desk: Desked) -> None:
    desk.of.script = Script(pieces=pieces("one"), halt=asyncio.Event())
    async with fronted(desk) as url:
        _, writer = await opened(url)
        body = json.dumps(COMPLETION).encode()
        writer.write(head(len(body)) + body)
        await desk.begun.wait()
        writer.close()
        await desk.of.generations[0].closed.wait()


@pytest.mark.parametrize("behind", [b"\r\n", b"G", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_who_leaves_with_more_sent_behind_his_request_frees_his_place(
    desk: Desked, behind: bytes
) -> None:
    desk.of.script = Script(pieces=pieces("one"), halt=asyncio.Event())
    async with fronted(desk) as url:
        _, writer = await opened(url)
        body = json.dumps(COMPLETION).encode()
        writer.write(head(len(body)) + body)
        await desk.begun.wait()
        for _ in range(3):
            writer.write(behind)
            await asyncio.sleep(0.02)
        writer.close()
        await desk.of.generations[0].closed.wait()
    assert len(desk.of.generations) == 1


async def test_what_comes_behind_a_request_is_answered_in_turn_and_kept_within_bounds(desk: Desked) -> None:
    halt = asyncio.Event()
    desk.of.script = Script(pieces=pieces("one"), halt=halt)
    async with fronted(desk) as url:
        reader, writer = await opened(url)
        body = json.dumps(COMPLETION).encode()
        writer.write(head(len(body)) + body)
        await desk.begun.wait()
        writer.write(head(len(body)) + body)
        behind = b"GET /nowhere HTTP/1.1\r\nhost: x\r\npadding: " + b"x" * 8000 + b"\r\n\r\n"
        writer.write(2000 * behind)  # 16 MB
        await asyncio.sleep(0.3)
        assert writer.transport.get_write_buffer_size() > 4_000_000  # is not read
        halt.set()
        answers = [await reader.readuntil(b" 200 OK") for _ in range(2)]
        for _ in range(2000):
            await reader.readuntil(b" 404 ")
        assert len(answers) == len(desk.of.generations)
        writer.close()


async def test_a_shutdown_tells_a_stream_that_it_was_cut(desk: Desked) -> None:
    desk.of.script.halt = asyncio.Event()
    async with fronted(desk) as url:
        reader, _ = await began(url)
        await desk.calls.end(0)
        told = (await reader.readuntil(b"[DONE]")).decode()
    assert '"code":"cut_by_shutdown"' in told
    assert desk.of.generations[0].receipt.receipt_id in told


async def test_the_servers_own_deadline_ends_a_generation() -> None:
    desk = Desked(chatty_world(), deadlines=Deadlines(default_s=0.05))
    desk.of.script = Script(pieces=pieces("one"), halt=asyncio.Event())
    reply = await desk.ask("/v1/completions", COMPLETION)
    assert (reply.status, reply.error["code"]) == (504, "server_deadline")
    assert reply.error["receipt_id"] == desk.of.generations[0].receipt.receipt_id


async def test_who_does_not_read_loses_his_place(desk: Desked) -> None:
    desk.of.script.pieces = pieces(*["one" * 100_000] * 100)
    async with fronted(desk, unread_s=0.05) as url:
        _, writer = await opened(url)
        writer.write(head(len(STREAM)) + STREAM)
        await desk.begun.wait()
        await desk.of.generations[0].closed.wait()
        writer.close()
    assert desk.of.generations[0].receipt.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("declares", [True, False])
async def test_a_body_beyond_the_limit_is_refused_while_it_comes(desk: Desked, declares: bool) -> None:
    async with fronted(desk) as url:
        reader, writer = await opened(url)
        if declares:
            writer.write(head(100 * MOST_BYTES))
        else:
            writer.write(head(0, "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b""))
            writer.write(b"%x\r\n%s\r\n" % (2 * MOST_BYTES, b" " * 2 * MOST_BYTES))
        answer = await reader.readuntil(b"send less")
        writer.close()
    assert b" 413 " in answer
    assert not desk.of.generations


@pytest.mark.parametrize("path", ["nowhere", "v1/completions"])
async def test_what_breaks_off_behind_a_refusal_is_not_news(
    desk: Desked, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fronted(desk) as url:
        reader, writer = await opened(url)
        writer.write(CHUNKED.replace(b"v1/completions", path.encode()))
        if path != "nowhere":
            writer.write(b"%x\r\n%s\r\n" % (2 * MOST_BYTES, b" " * 2 * MOST_BYTES))
        await reader.readuntil(b"}")
        writer.write(b"zz\r\n")  # where a chunk should begin
        await reader.read()
    assert not caplog.records


async def test_a_body_in_crumbs_is_refused(desk: Desked) -> None:
    async with fronted(desk) as url:
        reader, writer = await opened(url)
        writer.write(CHUNKED + b"1\r\n \r\n" * (MOST_CHUNKS + 1))
        assert b" 400 " in await reader.read()
    assert not desk.of.generations


@pytest.mark.parametrize(("lines", "code"), [(MOST_LINES, b" 200 "), (MOST_LINES + 1, b" 400 ")])
async def test_more_headers_than_anybody_sends_are_refused(desk: Desked, lines: int, code: bytes) -> None:
    async with fronted(desk) as url:
        reader, writer = await opened(url)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: here\r\n" + b"a: b\r\n" * (lines - 2) + b"\r\n")
        assert code in await reader.readline()
        writer.close()
        reader, writer = await opened(url)
        writer.write(CHUNKED + b"%x\r\n%s\r\n0\r\n" % (len(STREAM), STREAM) + b"a: b\r\n" * lines + b"\r\n")
        assert code in await reader.readline()
        writer.close()


async def test_a_body_that_says_its_length_twice_is_refused(desk: Desked) -> None:
    async with fronted(desk) as url:
        reader, writer = await opened(url)
        writer.write(
            head(len(STREAM), "transfer-encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(STREAM), STREAM)
        )
        writer.write(head(len(STREAM)) + STREAM)
        answer = await reader.read()
    assert (answer.count(b"HTTP/1.1"), b" 400 " in answer) == (1, True)
    assert not desk.of.generations


@pytest.mark.parametrize("reads_a_little", [False, True])
async def test_what_nobody_reads_of_a_reply_is_not_kept(
    desk: Desked, monkeypatch: pytest.MonkeyPatch, reads_a_little: bool
) -> None:
    lost, lose = asyncio.Event(), Connection.connection_lost

    def note(connection: Connection, error: Exception | None) -> None:
        lose(connection, error)
        lost.set()

    monkeypatch.setattr(Connection, "unread_s", 0.05)
    monkeypatch.setattr(Connection, "connection_lost", note)
    desk.of.script.pieces = pieces("x" * 50_000_000)  # more than the system holds for a socket
    body = json.dumps(COMPLETION).encode()
    async with fronted(desk) as url:
        reader, writer = await opened(url, limit=1)
        writer.write(head(len(body), "connection: close") + body)
        while reads_a_little and not lost.is_set():  # now and then
            await asyncio.gather(reader.read(1000), asyncio.sleep(0.01), return_exceptions=True)
        await lost.wait()
        with pytest.raises(
            (asyncio.IncompleteReadError, ConnectionResetError)
            if reads_a_little
            else asyncio.IncompleteReadError
        ):
            await reader.readexactly(50_000_000)
    assert desk.gate.messages.unread == 0


async def test_replies_that_nobody_reads_are_held_within_bounds(
    desk: Desked, caplog: pytest.LogCaptureFixture
) -> None:
    messages = desk.gate.messages = HeldBytes(100)
    desk.of.script.pieces = pieces("x" * 20_000_000)
    body = json.dumps(COMPLETION).encode()
    async with fronted(desk) as url:
        reader, writer = await opened(url, limit=1000)
        writer.write(head(len(body)) + body)
        while not messages.unread:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        second, to_second = await opened(url)
        to_second.write(head(len(body), "connection: close") + body)
        answer = await second.read()
        assert (b" 429 " in answer, b"not read yet" in answer) == (True, True)
        assert len(desk.of.generations) == 1
        await reader.readuntil(b"\r\n\r\n")
        while messages.unread:
            assert await reader.read(1_000_000)
        desk.of.script.pieces = pieces("y")
        third, to_third = await opened(url)
        to_third.write(head(len(body), "connection: close") + body)
        assert b" 200 " in await third.read()
        for each in (writer, to_second, to_third):
            each.close()
        desk.of.script.pieces = pieces("x" * 20_000_000)
        _, last = await opened(url, limit=1)
        last.write(head(len(body)) + body)
        while not messages.unread:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    last.close()
    assert messages.unread == 0
    assert not caplog.records


async def test_bodies_that_come_are_held_within_bounds(desk: Desked) -> None:
    came = asyncio.Event()

    class Told(HeldBytes):
        def take(self, name: str, size: int) -> None:
            super().take(name, size)
            came.set()

    desk.gate.messages = Told(100)
    async with fronted(desk) as url:
        _, to_first = await opened(url)
        to_first.write(head(2000) + b" " * 1500)
        await came.wait()
        second, to_second = await opened(url)
        to_second.write(head(2000) + b" " * 1700)
        assert b" 429 " in await second.readuntil(b"}")
        to_first.close()
        to_second.close()
    assert desk.gate.messages.total == 0
    assert desk.count("wattserve_refused_requests_total", limit="message_bytes") == 1


async def test_with_keys_who_shows_none_is_refused_and_one_that_is_revoked_ends(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    text, key = new_key("shop", ("predict",), 0.0, 0, ())
    with changing(path) as keys:
        keys[key.id] = key
    file = KeyFile(str(path))
    desk = Desked(chatty_world(), gate=Gate(file, Quotas()))
    desk.of.script.halt = asyncio.Event()
    async with fronted(desk) as url, AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(AuthenticationError, match="Bearer"):
            await stranger.completions.create(model="de@mo", prompt="abc")
        assert (await desk.ask("/health", method="GET")).status == 200
        async with AsyncOpenAI(base_url=url, api_key=text, max_retries=0) as client:
            stream = await client.completions.create(model="de@mo", prompt="abc", stream=True)
            assert (await anext(stream)).choices[0].text == "one"
            desk.calls.revoke(frozenset({key.id}))
            with pytest.raises(Exception, match="revoked"):
                async for _ in stream:
                    pass
    assert desk.count("wattserve_tenant_requests_total", tenant="shop", code="CANCELLED") == 1


def issued(folder: Path, authority: trustme.CA) -> CertificateFiles:
    """A certificate of its own, in the place of the one before."""
    files = CertificateFiles(str(folder / "cert.pem"), str(folder / "key.pem"))
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(files.cert)
    made.private_key_pem.write_to_path(files.key)
    return files


async def test_with_a_certificate_it_speaks_https_and_takes_the_next_one(
    desk: Desked, tmp_path: Path
) -> None:
    authority = trustme.CA()

    async def shown(url: str) -> Any:
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        reader, writer = await opened(url, ssl=trusting)
        certificate = writer.get_extra_info("peercert")
        writer.write(head(len(STREAM), "connection: close") + STREAM)
        assert b"[DONE]" in await reader.read()
        writer.close()
        return certificate["serialNumber"]

    async with fronted(desk, tls=issued(tmp_path, authority)) as url:
        assert url.startswith("https://127.0.0.1:")
        first = await shown(url)
        issued(tmp_path, authority)
        assert await shown(url) != first
        reader, writer = await opened(url)
        writer.write(head(0))
        assert not await reader.read()


async def test_a_crowd_is_let_in_by_turns_and_waits_meanwhile(
    desk: Desked, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    class Counted(Connection):
        def __init__(self, *args: Any, **settings: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(*args, **settings)

    monkeypatch.setattr("wattserve_server.http.front.Connection", Counted)
    async with fronted(desk) as url:
        _, first = await opened(url)  # from here on it listens
        address = first.get_extra_info("peername")
        crowd = [socket.create_connection(address, timeout=30) for _ in range(10 * AT_ONCE)]
        turns = [made]
        while made <= len(crowd):
            await asyncio.sleep(0)
            turns.append(made)
        for one in crowd:
            one.close()
        first.close()
    assert max(after - before for before, after in pairwise(turns)) <= AT_ONCE


async def test_who_only_connects_takes_little_memory(desk: Desked, tmp_path: Path) -> None:
    files = issued(tmp_path, trustme.CA())
    async with fronted(desk, tls=files) as url:
        _, first = await opened(url)
        tracemalloc.start()
        try:
            others = [await opened(url) for _ in range(20)]
            await opened(url, ssl=ssl._create_unverified_context())  # after them
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for _, writer in [(None, first), *others]:
            writer.close()
    assert taken < 20 * 6 * TLS_BYTES


async def test_a_shortage_of_descriptors_is_told_in_a_line(
    desk: Desked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()

    def none_left(listening: socket.socket) -> Any:
        asked.set()
        raise OSError(errno.EMFILE, "Too many open files")

    async with fronted(desk) as url:
        _, first = await opened(url)
        monkeypatch.setattr(socket.socket, "accept", none_left)
        _, second = await opened(url)
        await asked.wait()
        asyncio.get_running_loop().call_exception_handler({"message": "else"})
        first.close()
        second.close()
    assert {(record.message, record.exc_info) for record in caplog.records} == {
        ("no file descriptors are left: the HTTP front lets nobody in for a second", None),
        ("else", False),
    }


async def test_a_port_that_is_taken_is_refused_by_its_flag(desk: Desked) -> None:
    async with fronted(desk) as url:
        port = int(url.split(":")[2].split("/")[0])
        with pytest.raises(ConfigError, match=f"cannot listen for HTTP on 127.0.0.1:{port}: .*--http-port"):
            Front(desk.app, "127.0.0.1", port, None)


async def test_without_its_libraries_the_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wattserve_server.http.front")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    missing: Any = None
    with pytest.raises(ConfigError, match=r"--http-port needs uvicorn: pip install 'wattserve\[openai\]'"):
        _open_front(ServerConfig(http_port=0), missing, missing, missing, None)
