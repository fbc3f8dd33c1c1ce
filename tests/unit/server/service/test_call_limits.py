"""What a call and a connection are held to, on a real server: time, calls at once, age."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from wattserve_client.aio import AsyncClient
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import OverloadedError
from wattserve_server.service.gate import SHORT_BYTES, Gate
from wattserve_server.service.generation import Unread
from wattserve_server.service.held import HeldBytes
from wattserve_server.service.listen import ConnectionLimits, HealthService, _why_not
from wattserve_server.service.methods import CALL, CountedCall, Deadlines, OpenCalls, _read_all, handlers
from wattserve_server.service.prediction import Serving
from wattserve_server.service.quota import Quotas
from wattserve_server.service.streams import answers
from wattserve_server.telemetry.observer import Observer

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
BYTES = 1 << 20


class Servicer:
    """Its calls wait until they may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.entered = asyncio.Semaphore(0)
        self.peers: set[str] = set()
        self.writing: CountedCall | None = None
        self.unread = Unread()

    async def Predict(self, request: Any, context: Any) -> Any:
        self.entered.release()
        await self.may_end.wait()
        return pb.PredictResponse(receipt=pb.Receipt(request_id=request.request_id))

    async def PredictStream(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async def answer(request: Any) -> Any:
            self.entered.release()
            await self.may_end.wait()
            return pb.PredictStreamResponse(request_id=request.request_id[:9])

        async for reply in answers(requests, answer, Serving(), self.unread, in_order=True):
            yield reply

    async def GetReceipt(self, request: Any, context: Any) -> Any:
        self.peers.add(context.peer())
        return pb.Receipt(receipt_id="any")

    async def WatchReceipts(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.entered.release()
        if request.receipt_ids[0] == "many":  # more than waits on the way, for who does not read
            self.writing = CALL.get()
            while True:
                yield pb.Receipt(receipt_id="x" * 100_000)
        await self.may_end.wait()
        yield pb.Receipt()


class Rig:
    def __init__(self, address: str, channel: grpc.aio.Channel, servicer: Servicer, calls: OpenCalls) -> None:
        self.address, self.channel, self.servicer, self.calls = address, channel, servicer, calls

    def predict(self, **given: Any) -> Any:
        method = self.channel.unary_unary(
            f"/{SERVICE.full_name}/Predict",
            pb.PredictRequest.SerializeToString,
            pb.PredictResponse.FromString,
        )
        return method(pb.PredictRequest(), **given)

    def watch(self, receipt_id: str = "one") -> Any:
        method = self.channel.unary_stream(
            f"/{SERVICE.full_name}/WatchReceipts", pb.WatchReceiptsRequest.SerializeToString,
            pb.Receipt.FromString,
        )  # fmt: skip
        return method(pb.WatchReceiptsRequest(receipt_ids=[receipt_id]))


@asynccontextmanager
async def rig(
    deadlines: Deadlines = Deadlines(),  # noqa: B008  it is frozen
    limits: ConnectionLimits = ConnectionLimits(BYTES),  # noqa: B008
    most_streams: float = 100,
    quotas: Quotas | None = None,
    servicer: Servicer | None = None,
) -> AsyncIterator[Rig]:
    servicer = servicer or Servicer()
    server = grpc.aio.server(options=limits.options())
    gate = Gate(None, quotas or Quotas())
    calls, observer = OpenCalls(deadlines, most_streams), Observer("test")
    server.add_generic_rpc_handlers(
        (
            handlers(SERVICE.full_name, SERVICE, servicer, observer, gate, calls),
            handlers(HEALTH.full_name, HEALTH, HealthService(()), observer, gate, calls),
        )
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        yield Rig(address, channel, servicer, calls)
    await server.stop(0)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    trailing: dict[str, Any] = dict(error.trailing_metadata() or ())
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(trailing["grpc-status-details-bin"]).details:
        if detail.Unpack(info):
            break
    return str(info.reason)


@pytest.mark.parametrize(
    ("deadlines", "callers_s"), [(Deadlines(default_s=0.05), None), (Deadlines(most_s=0.05), 3600)]
)
async def test_a_call_has_the_servers_time_where_it_brings_none_or_more(
    deadlines: Deadlines, callers_s: float | None
) -> None:
    async with rig(deadlines) as served:
        with pytest.raises(grpc.aio.AioRpcError, match=r"not done within 0.05 s") as ended:
            await served.predict(timeout=callers_s)
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert reason_of(ended.value) == "SERVER_DEADLINE"


async def test_a_stream_and_a_sooner_deadline_have_the_time_that_they_ask_for() -> None:
    async with rig(Deadlines(0.05, 0.05)) as served:
        watching = served.watch()
        with pytest.raises(grpc.aio.AioRpcError, match=r"not done within 0.05 s"):
            await served.predict()  # which began later
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await served.predict(timeout=0.01)
        assert "not done within" not in (ended.value.details() or "")
        served.servicer.may_end.set()
        assert [reply async for reply in watching] == [pb.Receipt()]


async def read_all(call: Any) -> None:
    async for _ in call:
        pass


async def test_who_does_not_read_is_cut_and_told_why_once_he_does() -> None:
    async with rig() as running:
        call = running.watch("many")
        await running.servicer.entered.acquire()
        await asyncio.sleep(0.1)  # what fits on the way is written; earlier is as good
        assert running.servicer.writing is not None
        running.servicer.writing.cut(OverloadedError("this watcher fell behind"))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(read_all(call), timeout=60)
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ended.value.details() == "this watcher fell behind"


async def test_a_caller_has_so_many_streams_and_no_more() -> None:
    async with rig(limits=ConnectionLimits(BYTES, calls=3), most_streams=2) as served:
        held = [served.watch(), served.watch()]
        for _ in held:
            await served.servicer.entered.acquire()
        with pytest.raises(grpc.aio.AioRpcError, match="has 2 streams open, and no caller") as refused:
            await read_all(served.watch())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        served.servicer.may_end.set()
        for call in held:
            await read_all(call)
        assert not served.calls._streams
        await read_all(served.watch())


async def test_a_call_that_asks_for_no_key_has_a_short_message() -> None:
    async with rig() as served:
        check: Any = served.channel.unary_unary("/grpc.health.v1.Health/Check")
        long = health_pb2.HealthCheckRequest(service="x" * 4096).SerializeToString()
        with pytest.raises(
            grpc.aio.AioRpcError, match="HealthCheckRequest has at most 4096 bytes"
        ) as refused:
            await check(long)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_message_that_was_compressed_is_no_longer_than_another(compression: grpc.Compression) -> None:
    def request(size: int) -> bytes:
        return pb.PredictRequest(request_id="x" * size).SerializeToString()

    async with rig(quotas=Quotas(messages=HeldBytes(BYTES))) as served:
        served.servicer.may_end.set()
        named = f"/{SERVICE.full_name}/Predict"
        predict: Any = served.channel.unary_unary(named, response_deserializer=pb.PredictResponse.FromString)
        answer = await predict(request(BYTES - 10), compression=compression)
        assert answer.receipt.request_id == "x" * (BYTES - 10)
        stream: Any = served.channel.stream_stream(
            f"/{SERVICE.full_name}/PredictStream", response_deserializer=pb.PredictStreamResponse.FromString
        )
        check: Any = served.channel.unary_unary("/grpc.health.v1.Health/Check")
        for refused in (
            predict(request(BYTES), compression=compression),
            stream(iter([request(BYTES)]), compression=compression).read(),
            check(request(SHORT_BYTES), compression=compression),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="are more once they are decompressed") as ended:
                await refused
            assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_of_a_stream_is_read_once_its_turn_has_come() -> None:
    order = list[str]()

    class Call:
        def unpack(self, data: bytes) -> bytes:
            return data

        async def turn(self, data: bytes) -> None:
            order.append(f"turn of {len(data)}")

        def read(self, parse: Any, data: bytes) -> Any:
            order.append("read")

    async def requests() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"three"

    async for _ in _read_all(cast(Any, None), cast(CountedCall, Call()), requests()):
        pass
    assert order == ["turn of 3", "read", "turn of 5", "read"]


async def test_more_calls_than_a_connection_may_have_wait_at_the_client() -> None:
    async with rig(limits=ConnectionLimits(BYTES, calls=2)) as served:
        served.servicer.may_end.set()
        await served.predict()  # by now the client knows the limit
        served.servicer.may_end.clear()
        entered = served.servicer.entered
        await entered.acquire()
        calls = [asyncio.ensure_future(served.predict()) for _ in range(3)]
        for _ in range(2):
            await entered.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await entered.acquire()
        served.servicer.may_end.set()
        assert len(await asyncio.gather(*calls)) == 3


async def test_none_of_the_calls_that_a_client_holds_back_is_refused_when_its_turn_comes() -> None:
    async with rig(limits=ConnectionLimits(BYTES, calls=4)) as served:
        served.servicer.may_end.set()

        async def caller() -> None:
            for _ in range(100):
                await served.predict()

        await asyncio.gather(*(caller() for _ in range(12)))


async def test_a_client_does_not_notice_that_its_connection_was_too_old() -> None:
    async with rig(limits=ConnectionLimits(BYTES, age_s=0.05, grace_s=5.0)) as served:
        served.servicer.may_end.set()
        async with AsyncClient(served.address) as client:
            while len(served.servicer.peers) < 3:
                await client.receipt("any")


def test_what_keeps_a_server_from_listening_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert _why_not("127.0.0.1", port) == "Address already in use; choose another --port or --host"
        assert "Cannot assign requested address" in _why_not("192.0.2.1", 0)
        assert "no name of a machine" in _why_not("a" * 64, 0)
        assert not _why_not("127.0.0.1", 0)
