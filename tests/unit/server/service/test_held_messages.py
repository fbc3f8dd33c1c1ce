"""Long messages are bounded in all, also while their calls wait or run: of all callers, and of each."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests.unit.server.service.test_call_limits import Servicer, rig
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import OverloadedError
from wattserve_server.service import methods
from wattserve_server.service.generation import Unread
from wattserve_server.service.held import MOST, MOST_OF_ONE, HeldBytes
from wattserve_server.service.prediction import Serving
from wattserve_server.service.quota import Quotas
from wattserve_server.service.streams import answers

LONG = pb.PredictRequest(request_id="x" * 9900).SerializeToString()


def test_a_caller_has_a_quarter_of_what_all_have() -> None:
    held = HeldBytes(10)
    held.take("a", MOST_OF_ONE * 10)
    with pytest.raises(OverloadedError, match="a holds 160 bytes") as refused:
        held.take("a", 1)
    assert refused.value.limit == "message_bytes"
    for other in "bcd":
        held.take(other, MOST_OF_ONE * 10)
    assert held.total == MOST * 10
    with pytest.raises(OverloadedError, match="the server holds 640 bytes"):
        held.take("e", 1)
    held.give_back("a", MOST_OF_ONE * 10)
    held.take("e", 1)


async def test_a_stream_waits_for_room() -> None:
    held = HeldBytes(10)
    held.take("a", MOST_OF_ONE * 10)
    waiting = asyncio.create_task(held.until_room("a", 5))
    held.take("b", 1)
    held.give_back("b", 1)  # of no use to who has too many himself
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    held.give_back("a", 5)
    await waiting


async def test_calls_that_wait_hold_no_more_than_their_callers_part() -> None:
    quotas = Quotas(messages=HeldBytes(10_000))
    async with rig(quotas=quotas) as served:
        path = "/wattserve.v1.Inference/Predict"
        predict: Any = served.channel.unary_unary(path, response_deserializer=pb.PredictResponse.FromString)
        waiting = [asyncio.ensure_future(predict(LONG)) for _ in range(MOST_OF_ONE)]
        for _ in waiting:
            await served.servicer.entered.acquire()
        assert quotas.messages.total == MOST_OF_ONE * len(LONG)
        with pytest.raises(grpc.aio.AioRpcError, match="messages that are not answered yet") as refused:
            await predict(LONG)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        short = asyncio.ensure_future(predict(b""))  # which does not count
        await served.servicer.entered.acquire()
        served.servicer.may_end.set()
        await asyncio.gather(short, *waiting)
    assert quotas.messages.total == 0


async def test_a_stream_is_read_no_further_than_its_callers_part_and_to_its_end() -> None:
    quotas = Quotas(messages=HeldBytes(10_000))
    async with rig(quotas=quotas) as served:
        call: Any = served.channel.stream_stream(
            "/wattserve.v1.Inference/PredictStream",
            response_deserializer=pb.PredictStreamResponse.FromString,
        )
        replies = call(iter([LONG] * 40))
        for _ in range(MOST_OF_ONE):
            await served.servicer.entered.acquire()
        assert quotas.messages.total == MOST_OF_ONE * len(LONG)
        served.servicer.may_end.set()
        assert [reply.request_id async for reply in replies] == ["x" * 9] * 40
    assert quotas.messages.total == 0


async def test_a_stream_that_is_left_gives_back_what_it_held() -> None:
    quotas = Quotas(messages=HeldBytes(10_000))
    async with rig(quotas=quotas) as served:
        call: Any = served.channel.stream_stream("/wattserve.v1.Inference/PredictStream")
        replies = call(iter([LONG] * 40))
        for _ in range(MOST_OF_ONE):
            await served.servicer.entered.acquire()
        replies.cancel()
        await served.calls.end(60)
        for _ in range(5):  # for the tasks that were cancelled with it
            await asyncio.sleep(0)
        assert quotas.messages.total == 0


class LongAnswers(Servicer):
    """Of 5,000 bytes, to an empty question."""

    answered = 0

    async def FindReceipts(self, request: Any, context: Any) -> Any:
        self.answered += 1
        return pb.FindReceiptsResponse(receipts=[pb.Receipt(receipt_id="x" * 5000)])


class DoesNotRead:
    """A client of HTTP/2 that asks, and lets nothing be sent to it."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)))
        settings = struct.pack(">HI", 4, 0)  # INITIAL_WINDOW_SIZE
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(4, 0, 0, settings))
        self._stream = -1

    @staticmethod
    def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return (
            struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
        )

    def ask(self, path: bytes) -> None:
        self._stream += 2
        head = b"".join(
            b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", path),
                (b":authority", b"any"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
            )
        )
        empty = b"\0" + struct.pack(">I", 0)
        self._socket.sendall(self._frame(1, 4, self._stream, head) + self._frame(0, 1, self._stream, empty))

    def close(self) -> None:
        self._socket.close()


PATH = "/wattserve.v1.Inference/FindReceipts"


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_who_does_not_read_is_answered_no_further_than_his_part() -> None:
    messages, servicer = HeldBytes(1000), LongAnswers()  # of replies he has 16,000: four pass that
    async with rig(quotas=Quotas(messages=messages), servicer=servicer) as served:
        client = DoesNotRead(served.address)
        for _ in range(6):
            client.ask(PATH.encode())
        find: Any = served.channel.unary_unary(PATH)
        await until(lambda: messages.unread)
        for _ in range(20):
            await find(b"")  # to others, who read
        assert servicer.answered == 4 + 20
        client.close()
        await until(lambda: not messages.unread)


async def test_a_reply_waits_a_while_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "UNREAD_S", 0.1)
    messages = HeldBytes(1000)
    async with rig(quotas=Quotas(messages=messages), servicer=LongAnswers()) as served:
        client = DoesNotRead(served.address)
        client.ask(PATH.encode())
        await until(lambda: messages.unread)
        await until(lambda: not messages.unread)
        client.close()


class LongStream(Servicer):
    """Each of its replies takes 100,000 bytes."""

    answered = 0

    async def PredictStream(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async def answer(request: Any) -> Any:
            self.answered += 1
            return pb.PredictStreamResponse(request_id="x" * 100_000)

        async for reply in answers(requests, answer, Serving(), self.unread, in_order=False):
            yield reply


@asynccontextmanager
async def unread_stream(address: str, requests: int) -> AsyncIterator[Any]:
    """So many requests, of which no reply is read yet; little waits on the way."""
    options = [("grpc.http2.lookahead_bytes", 16_384), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        open_stream: Any = channel.stream_stream("/wattserve.v1.Inference/PredictStream")
        stream = open_stream()
        for _ in range(requests):
            await stream.write(b"")
        await stream.done_writing()
        yield stream


async def test_a_stream_that_is_not_read_is_answered_no_further_than_its_callers_part() -> None:
    messages, servicer = HeldBytes(100_000), LongStream()
    async with (
        rig(quotas=Quotas(messages=messages), servicer=servicer) as served,
        unread_stream(served.address, 80) as stream,
    ):
        await until(lambda: messages.unread >= MOST_OF_ONE * 100_000)
        other: Any = served.channel.unary_unary("/wattserve.v1.Inference/GetReceipt")
        for _ in range(20):  # it is read no further meanwhile
            await other(b"")
        assert MOST_OF_ONE <= servicer.answered < 40
        assert [len(await stream.read()) for _ in range(80)] == [100_004] * 80
        assert await stream.read() is grpc.aio.EOF
        assert (servicer.answered, messages.unread) == (80, 0)


async def test_a_stream_that_nobody_reads_is_ended_and_holds_nothing_more() -> None:
    messages, servicer = HeldBytes(100_000), LongStream()
    servicer.unread = Unread(0.1)
    async with (
        rig(quotas=Quotas(messages=messages), servicer=servicer) as served,
        unread_stream(served.address, 80) as stream,
    ):
        await until(lambda: messages.unread)
        await until(lambda: not messages.unread)
        with pytest.raises(grpc.aio.AioRpcError, match=r"waited 0\.1 s to be read") as ended:
            deque([reply async for reply in stream])
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
