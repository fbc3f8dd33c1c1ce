"""Calls over real channels: unary and stream, against servers of this file."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from tests.fixtures.fake_server.answers import Raw
from tests.fixtures.fake_server.child import listening
from wattserve_client import Tls
from wattserve_loadgen.target import wire
from wattserve_loadgen.target.wattserve import NativeTarget
from wattserve_loadgen.target.wire import (
    CALL_ERRORS,
    GENERATE,
    PREDICT,
    PREDICT_STREAM,
    CallFailure,
    Connection,
    Sender,
    failure_of,
    open_calls,
    split_reply,
)
from wattserve_proto.v1 import inference_pb2 as pb

NOBODY = "127.0.0.1:1"


@asynccontextmanager
async def calls_to(address: str, count: int, *, stream: bool) -> AsyncIterator[list[Sender]]:
    method = PREDICT_STREAM if stream else PREDICT
    calls, close = open_calls(Connection(address, method, stream=stream), count)
    try:
        yield calls
    finally:
        await close()


def text(word: str) -> bytes:
    return pb.PredictRequest(text=pb.TextInput(texts=[word])).SerializeToString()


def answer_to(request: pb.PredictRequest) -> bytes:
    response = pb.PredictResponse(variant=request.text.texts[0])
    return pb.PredictStreamResponse(request_id=request.request_id, response=response).SerializeToString()


async def failure(answer: Awaitable[bytes]) -> CallFailure:
    with pytest.raises(CALL_ERRORS) as raised:
        await asyncio.wait_for(asyncio.ensure_future(answer), 20)
    assert isinstance(raised.value, CALL_ERRORS)
    return failure_of(raised.value)


async def test_unary_bytes_go_out_and_come_back_as_they_are() -> None:
    async def reply(request: bytes, context: Any) -> bytes:
        return request + b"!"

    async with (
        listening(Raw(Predict=reply)) as address,
        calls_to(address, 3, stream=False) as calls,
    ):
        assert [await call(b"hello", timeout=10) for call in calls] == [b"hello!"] * 3


async def test_what_is_measured_in_clear_is_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reply(request: bytes, context: Any) -> bytes:
        return request

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # where nobody is
    for variable in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(variable, raising=False)
    async with (
        listening(Raw(Predict=reply)) as address,
        calls_to(address, 1, stream=False) as (call,),
    ):
        assert await call(b"hello", timeout=10) == b"hello"


async def test_each_target_has_a_connection_of_its_own() -> None:
    """Otherwise several servers behind one name would look like one."""
    peers = set()

    async def reply(request: bytes, context: Any) -> bytes:
        peers.add(context.peer())
        return b""

    async with listening(Raw(GetServerInfo=reply)) as address:
        targets = [NativeTarget(address) for _ in range(3)]
        for target in targets:
            await target.server_info(20)
        for target in targets:
            await target.close()
    assert len(peers) == 3


async def test_unary_calls_spread_over_channels_of_32() -> None:
    for count, channels in ((1, 1), (32, 1), (33, 2), (1000, 8)):
        async with calls_to(NOBODY, count, stream=False) as calls:
            assert (len(calls), len({id(call) for call in calls})) == (count, channels)


async def test_stream_calls_spread_over_streams_of_8() -> None:
    for count, found in ((1, 1), (8, 1), (9, 2), (1000, 8)):
        async with calls_to(NOBODY, count, stream=True) as calls:
            assert (len(calls), len({id(call) for call in calls})) == (count, found)


async def test_generations_spread_over_channels_of_100() -> None:
    for count, channels in ((1, 1), (100, 1), (101, 2), (1000, 8)):
        calls, close = open_calls(Connection(NOBODY, GENERATE), count)
        await close()
        assert (len(calls), len({id(call) for call in calls})) == (count, channels)


async def test_a_unary_failure_has_its_code_and_details() -> None:
    async def refuse(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue\n is full")
        return b""

    async with (
        listening(Raw(Predict=refuse)) as address,
        calls_to(address, 1, stream=False) as calls,
    ):
        assert await failure(calls[0](b"", timeout=10)) == CallFailure(
            "RESOURCE_EXHAUSTED", "the queue is full"
        )


async def test_answers_on_a_stream_find_their_requests_in_any_order() -> None:
    async def backwards(requests: Any, context: Any) -> None:
        asked = [pb.PredictRequest.FromString(await context.read()) for _ in range(8)]
        assert len({one.request_id for one in asked}) == 8
        for one in reversed(asked):
            await context.write(answer_to(one))
        await context.read()

    async with listening(Raw(PredictStream=backwards)) as address, calls_to(address, 8, stream=True) as calls:
        answers = await asyncio.gather(*(call(text(f"w{i}"), timeout=20) for i, call in enumerate(calls)))
        assert [pb.PredictResponse.FromString(one).variant for one in answers] == [f"w{i}" for i in range(8)]


async def test_an_error_on_a_stream_fails_its_own_request_only() -> None:
    async def some(requests: Any, context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            request = pb.PredictRequest.FromString(data)
            if request.text.texts[0] == "bad":
                error = pb.PredictError(code=3, message="too\nlong")
                await context.write(
                    pb.PredictStreamResponse(request_id=request.request_id, error=error).SerializeToString()
                )
            else:
                await context.write(answer_to(request))

    async with listening(Raw(PredictStream=some)) as address, calls_to(address, 1, stream=True) as (call,):
        good, bad = call(text("good"), timeout=20), call(text("bad"), timeout=20)
        assert await failure(bad) == CallFailure("INVALID_ARGUMENT", "too long")
        assert pb.PredictResponse.FromString(await good).variant == "good"


async def test_a_broken_stream_fails_what_is_in_flight_and_opens_again() -> None:
    opened = 0

    async def break_once(requests: Any, context: Any) -> None:
        nonlocal opened
        opened += 1
        asked = [pb.PredictRequest.FromString(await context.read()) for _ in range(2)]
        if opened == 1:
            await context.abort(grpc.StatusCode.INTERNAL, "broken")
        for one in asked:
            await context.write(answer_to(one))
        await context.read()

    async with (
        listening(Raw(PredictStream=break_once)) as address,
        calls_to(address, 1, stream=True) as (call,),
    ):
        first = [call(text(word), timeout=20) for word in "ab"]
        assert [await failure(one) for one in first] == [CallFailure("INTERNAL", "broken")] * 2
        again = [call(text(word), timeout=20) for word in "ab"]
        assert [pb.PredictResponse.FromString(await one).variant for one in again] == ["a", "b"]
        assert opened == 2


async def test_a_stream_that_the_server_ends_in_order_fails_what_is_in_flight() -> None:
    async def leave(requests: Any, context: Any) -> None:
        await context.read()

    async with listening(Raw(PredictStream=leave)) as address, calls_to(address, 1, stream=True) as (call,):
        ended = CallFailure("UNAVAILABLE", "the server ended the stream")
        assert await failure(call(text("a"), timeout=20)) == ended


async def test_a_request_without_an_answer_fails_at_its_deadline_and_its_stream_lives_on() -> None:
    async def ignore_the_first(requests: Any, context: Any) -> None:
        await context.read()
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(answer_to(pb.PredictRequest.FromString(data)))

    async with (
        listening(Raw(PredictStream=ignore_the_first)) as address,
        calls_to(address, 1, stream=True) as (call,),
    ):
        late = CallFailure("DEADLINE_EXCEEDED", "no answer within the deadline")
        assert await failure(call(text("a"), timeout=0.05)) == late
        assert pb.PredictResponse.FromString(await call(text("b"), timeout=20)).variant == "b"


async def test_an_answer_after_its_deadline_is_nobodys() -> None:
    go = asyncio.Event()

    async def late(requests: Any, context: Any) -> None:
        first = pb.PredictRequest.FromString(await context.read())
        await go.wait()
        await context.write(answer_to(first))
        await context.write(answer_to(pb.PredictRequest.FromString(await context.read())))
        await context.read()

    async with listening(Raw(PredictStream=late)) as address, calls_to(address, 1, stream=True) as (call,):
        assert (await failure(call(text("a"), timeout=0.05))).code == "DEADLINE_EXCEEDED"
        go.set()
        assert pb.PredictResponse.FromString(await call(text("b"), timeout=20)).variant == "b"


@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_listening_is_unavailable(stream: bool) -> None:
    async with calls_to(NOBODY, 1, stream=stream) as (call,):
        assert await failure(call(text("a"), timeout=20)) == CallFailure("UNAVAILABLE", "Connection refused")


async def test_an_answer_that_is_none_breaks_the_stream() -> None:
    async def babble(requests: Any, context: Any) -> None:
        await context.read()
        await context.write(b"\xff\xff")
        await context.read()

    async with listening(Raw(PredictStream=babble)) as address, calls_to(address, 1, stream=True) as (call,):
        found = await failure(call(text("a"), timeout=20))
        assert found == CallFailure("INTERNAL", "an answer on the stream is no PredictStreamResponse")


@pytest.mark.parametrize("known", [True, False])
async def test_tls_needs_the_authority_and_shows_the_clients_certificate(known: bool, tmp_path: Path) -> None:
    authority = trustme.CA()
    server_side, client_side = authority.issue_cert("127.0.0.1"), authority.issue_cert("client")
    pem = authority.cert_pem.bytes()

    async def reply(request: bytes, context: Any) -> bytes:
        return str(context.auth_context()["x509_subject_alternative_name"][0].decode()).encode()

    key, chain = server_side.private_key_pem.bytes(), server_side.cert_chain_pems[0].bytes()
    credentials = grpc.ssl_server_credentials([(key, chain)], pem, require_client_auth=True)
    tls = Tls(ca=tmp_path / "ca.pem", cert=tmp_path / "client.pem", key=tmp_path / "client.key")
    (authority if known else trustme.CA()).cert_pem.write_to_path(str(tls.ca))
    client_side.cert_chain_pems[0].write_to_path(str(tls.cert))
    client_side.private_key_pem.write_to_path(str(tls.key))
    async with listening(Raw(Predict=reply), credentials) as address:
        calls, close = open_calls(Connection(address, PREDICT, tls=tls), 1)
        if known:
            assert await calls[0](b"", timeout=20) == b"client"
        else:
            assert (await failure(calls[0](b"", timeout=20))).code == "UNAVAILABLE"
        await close()


async def test_closing_fails_what_is_in_flight() -> None:
    async def silence(requests: Any, context: Any) -> None:
        await asyncio.sleep(60)

    async with listening(Raw(PredictStream=silence)) as address:
        calls, close = open_calls(Connection(address, PREDICT_STREAM, stream=True), 1)
        answer = calls[0](text("a"), timeout=20)
        await asyncio.sleep(0)
        await close()
        assert await failure(answer) == CallFailure("CANCELLED", "the stream was closed")


def reply_of(size: int) -> tuple[bytes, bytes]:
    response = pb.PredictResponse(variant="v" * size)
    reply = pb.PredictStreamResponse(request_id="1f", response=response)
    return reply.SerializeToString(), response.SerializeToString()


@pytest.mark.parametrize("size", [0, 1, 120, 127, 128, 16_000, 17_000, 3_000_000])
def test_an_answer_is_taken_out_without_parsing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reply, response = reply_of(size)
    monkeypatch.setattr(wire, "_parse_reply", None)
    assert split_reply(reply) == (b"1f", response, None)


def test_fields_in_another_order_are_parsed() -> None:
    response = pb.PredictStreamResponse(response=pb.PredictResponse(variant="x")).SerializeToString()
    name = pb.PredictStreamResponse(request_id="1f").SerializeToString()
    expected = (b"1f", pb.PredictResponse(variant="x").SerializeToString(), None)
    assert split_reply(response + name) == split_reply(name + response) == expected


def test_a_response_in_two_parts_is_parsed_and_merged() -> None:
    parts = [
        pb.PredictStreamResponse(request_id="1f", response=pb.PredictResponse(variant="x")),
        pb.PredictStreamResponse(response=pb.PredictResponse(request_id="1f")),
    ]
    both = pb.PredictResponse(request_id="1f", variant="x").SerializeToString()
    assert split_reply(b"".join(part.SerializeToString() for part in parts)) == (b"1f", both, None)


def test_an_answer_that_holds_nothing_is_a_failure() -> None:
    nothing = CallFailure("INTERNAL", "an answer that holds neither a response nor an error")
    assert split_reply(pb.PredictStreamResponse(request_id="1f").SerializeToString()) == (b"1f", b"", nothing)
    assert split_reply(b"") == (b"", b"", nothing)


def test_an_unknown_code_is_named_by_its_number() -> None:
    reply = pb.PredictStreamResponse(request_id="1", error=pb.PredictError(code=99, message="?"))
    assert split_reply(reply.SerializeToString()) == (b"1", b"", CallFailure("CODE_99", "?"))


def test_a_connection_can_be_pickled() -> None:
    connection = Connection("localhost:1", PREDICT, tls=Tls(ca="ca.pem"))
    assert pickle.loads(pickle.dumps(connection)) == connection
