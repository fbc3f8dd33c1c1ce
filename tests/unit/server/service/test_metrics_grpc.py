"""Every call of gRPC is counted once, however it ends, by names that are the server's own."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from prometheus_client.parser import text_string_to_metric_families

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import NotFound, OverloadedError
from wattserve_server.service import methods
from wattserve_server.service.gate import Gate
from wattserve_server.service.methods import CountedCall, OpenCalls, handlers
from wattserve_server.service.quota import Quotas
from wattserve_server.service.weight import SMALL_BYTES
from wattserve_server.telemetry.observer import Observer, go_name

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"]
PATH = SERVICE.full_name


class Servicer:
    """Does what the request's id says."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        return None  # methods that no test calls

    async def Predict(self, request: pb.PredictRequest, context: Any) -> pb.PredictResponse:
        await self._act(request.request_id, context)
        return pb.PredictResponse()

    async def WatchReceipts(
        self, request: pb.WatchReceiptsRequest, context: Any
    ) -> AsyncIterator[pb.Receipt]:
        try:
            for action in request.receipt_ids:
                while action == "flood":
                    yield pb.Receipt(receipt_id="x" * 100_000)
                yield pb.Receipt(receipt_id=action)
                await self._act(action, context)
        finally:
            self.left += 1

    async def PredictStream(
        self, requests: AsyncIterator[pb.PredictRequest], context: Any
    ) -> AsyncIterator[pb.PredictStreamResponse]:
        async for request in requests:
            await self._act(request.request_id, context)
            yield pb.PredictStreamResponse(request_id=request.request_id)

    async def _act(self, action: str, context: Any) -> None:
        if action == "not found":
            raise NotFound("no such thing", "variant")
        if action == "overloaded":
            raise OverloadedError("too much")
        if action == "bug":
            raise ZeroDivisionError
        if action == "abort":
            await context.abort(grpc.StatusCode.DATA_LOSS, "gone")
        if action == "wait":
            self.entered.set()
            await asyncio.sleep(60)


class Rig:
    """A server in this loop, and what observes it."""

    def __init__(self) -> None:
        self.observer = Observer("test")
        self.servicer = Servicer()
        self.server = grpc.aio.server()
        self.calls = OpenCalls()
        served = handlers(PATH, SERVICE, self.servicer, self.observer, Gate(None, Quotas()), self.calls)
        self.server.add_generic_rpc_handlers((served,))
        self.channel: grpc.aio.Channel
        self.port = 0

    async def __aenter__(self) -> Rig:
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop(0)

    def call(self, path: str, message: bytes, **given: Any) -> aio.UnaryUnaryCall[bytes, bytes]:
        method: aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(path)
        return method(message, **given)

    def predict(self, action: str | bytes, **given: Any) -> Any:
        data = (
            action if isinstance(action, bytes) else pb.PredictRequest(request_id=action).SerializeToString()
        )
        return self.call(f"/{PATH}/Predict", data, **given)

    def watch(self, *actions: str, **given: Any) -> Any:
        data = pb.WatchReceiptsRequest(receipt_ids=actions).SerializeToString()
        method: aio.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(
            f"/{PATH}/WatchReceipts"
        )
        return method(data, **given)

    def stream(self, *data: bytes) -> Any:
        method: aio.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(
            f"/{PATH}/PredictStream"
        )
        return method(iter(data))

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.observer.page("")[1].decode()):
            for each in family.samples:
                names = ("grpc_type", "grpc_method", "grpc_code")
                labels = tuple(each.labels[name] for name in names if name in each.labels)
                if each.name.startswith("grpc_server_") and not each.name.endswith("_bucket"):
                    assert each.labels["grpc_service"] == PATH
                    found.setdefault(each.name.removeprefix("grpc_server_"), {})[labels] = each.value
        return found

    async def handled(self, *calls: str) -> dict[tuple[str, ...], float]:
        """Once every call of these methods has ended."""
        async with asyncio.timeout(60):
            while True:
                found = self.samples()
                started, ended = found.get("started_total", {}), found.get("handled_total", {})
                if sum(started.values()) == sum(ended.values()) and {key[1] for key in started} == {*calls}:
                    durations = found["handling_seconds_count"]
                    assert durations == started
                    return ended
                await asyncio.sleep(0.01)


async def ended_as(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def read(call: Any) -> grpc.StatusCode:
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


ENDS = [
    ("", "OK", "OK"),
    ("not found", "NOT_FOUND", "NotFound"),
    ("overloaded", "RESOURCE_EXHAUSTED", "ResourceExhausted"),
    ("bug", "INTERNAL", "Internal"),
    ("abort", "DATA_LOSS", "DataLoss"),
]


@pytest.mark.parametrize(("action", "code", "name"), ENDS)
async def test_a_call_is_counted_by_the_code_that_its_caller_got(action: str, code: str, name: str) -> None:
    async with Rig() as rig:
        assert (await ended_as(rig.predict(action))).name == code
        assert await rig.handled("Predict") == {("unary", "Predict", name): 1}


@pytest.mark.parametrize(("action", "code", "name"), ENDS)
async def test_a_stream_is_one_call(action: str, code: str, name: str) -> None:
    async with Rig() as rig:
        assert (await read(rig.watch("", "", action))).name == code
        assert await rig.handled("WatchReceipts") == {("server_stream", "WatchReceipts", name): 1}


async def test_bytes_that_are_no_message_are_counted_as_refused() -> None:
    async with Rig() as rig:
        rubbish = b"\x0a\xff\xff\xff\xff\x7f rubbish"
        assert (await ended_as(rig.predict(rubbish))).name == "INVALID_ARGUMENT"
        good = pb.PredictRequest(request_id="a").SerializeToString()
        assert (await read(rig.stream(good, rubbish))).name == "INVALID_ARGUMENT"
        assert await rig.handled("Predict", "PredictStream") == {
            ("unary", "Predict", "InvalidArgument"): 1,
            ("bidi_stream", "PredictStream", "InvalidArgument"): 1,
        }


async def test_bytes_that_no_memory_is_left_for_are_not_the_callers_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "PARSED_BYTES", 1 << 60)
    async with Rig() as rig:
        assert (await ended_as(rig.predict(b"\x0a\xff\xff\xff\xff\x7f"))).name == "RESOURCE_EXHAUSTED"


async def test_a_message_of_too_many_parts_is_refused_unread() -> None:
    async with Rig() as rig:
        assert (await ended_as(rig.predict(b"\x7a\x00" * SMALL_BYTES))).name == "INVALID_ARGUMENT"


async def test_a_call_that_its_caller_ends_is_canceled() -> None:
    async with Rig() as rig:
        call = rig.predict("wait")
        await rig.servicer.entered.wait()
        assert rig.samples()["started_total"] == {("unary", "Predict"): 1}
        assert "handled_total" not in rig.samples()
        call.cancel()
        assert await rig.handled("Predict") == {("unary", "Predict", "Canceled"): 1}


async def test_a_call_whose_deadline_passes_is_told_from_one_that_is_canceled() -> None:
    async with Rig() as rig:
        calls = ended_as(rig.predict("wait", timeout=2)), read(rig.watch("wait", timeout=2))
        assert [code.name for code in await asyncio.gather(*calls)] == ["DEADLINE_EXCEEDED"] * 2
        assert await rig.handled("Predict", "WatchReceipts") == {
            ("unary", "Predict", "DeadlineExceeded"): 1,
            ("server_stream", "WatchReceipts", "DeadlineExceeded"): 1,
        }


async def test_calls_that_a_shutdown_cannot_finish_end_as_unavailable() -> None:
    async with Rig() as rig:
        calls = [asyncio.create_task(ended_as(rig.predict("wait")))]
        await rig.servicer.entered.wait()
        rig.servicer.entered.clear()
        calls.append(asyncio.create_task(read(rig.watch("wait"))))
        await rig.servicer.entered.wait()
        await rig.calls.end(0)
        assert [(await call).name for call in calls] == ["UNAVAILABLE"] * 2
        assert (await ended_as(rig.predict(""))).name == "OK"
        assert await rig.handled("Predict", "WatchReceipts") == {
            ("unary", "Predict", "Unavailable"): 1,
            ("unary", "Predict", "OK"): 1,
            ("server_stream", "WatchReceipts", "Unavailable"): 1,
        }


async def test_a_shutdown_waits_for_calls_that_end_by_themselves() -> None:
    async with Rig() as rig:
        call = rig.predict("wait")
        await rig.servicer.entered.wait()
        ending = asyncio.create_task(rig.calls.end(60))
        await asyncio.sleep(0)
        assert not ending.done()
        call.cancel()
        await ending
        assert await rig.handled("Predict") == {("unary", "Predict", "Canceled"): 1}


async def test_a_stream_that_its_caller_leaves_is_counted_with_its_whole_length() -> None:
    async with Rig() as rig:
        begun = time.monotonic()
        call = rig.watch("", "wait")
        await rig.servicer.entered.wait()
        await asyncio.sleep(0.2)
        call.cancel()
        assert await rig.handled("WatchReceipts") == {("server_stream", "WatchReceipts", "Canceled"): 1}
        ((_, seconds),) = rig.samples()["handling_seconds_sum"].items()
        assert 0.2 <= seconds <= time.monotonic() - begun
        assert rig.servicer.left == 1


async def test_a_caller_that_reads_nothing_more_and_goes_is_counted() -> None:
    async with Rig() as rig:
        call = rig.watch("flood")  # more than a connection holds: the handler waits at a yield
        await call.read()
        await asyncio.sleep(0.1)
        call.cancel()
        assert await rig.handled("WatchReceipts") == {("server_stream", "WatchReceipts", "Canceled"): 1}


async def test_methods_and_services_that_are_not_here_make_no_series() -> None:
    async with Rig() as rig:
        for number in range(50):
            name = f"{random.randbytes(4).hex()}{number}"
            for path in (
                f"/{PATH}/{name}",
                f"/{name}/Predict",
                f"/{PATH}/predict",
                f"/{PATH}/Predict/{name}",
            ):
                code = await ended_as(rig.call(path, b""))
                assert code is grpc.StatusCode.UNIMPLEMENTED
        assert rig.samples() == {}


def test_codes_are_spelt_as_in_go() -> None:
    assert {code.name: go_name(code.name) for code in grpc.StatusCode} == {
        "OK": "OK",
        "CANCELLED": "Canceled",
        "UNKNOWN": "Unknown",
        "INVALID_ARGUMENT": "InvalidArgument",
        "DEADLINE_EXCEEDED": "DeadlineExceeded",
        "NOT_FOUND": "NotFound",
        "ALREADY_EXISTS": "AlreadyExists",
        "PERMISSION_DENIED": "PermissionDenied",
        "UNAUTHENTICATED": "Unauthenticated",
        "RESOURCE_EXHAUSTED": "ResourceExhausted",
        "FAILED_PRECONDITION": "FailedPrecondition",
        "ABORTED": "Aborted",
        "UNIMPLEMENTED": "Unimplemented",
        "INTERNAL": "Internal",
        "UNAVAILABLE": "Unavailable",
        "OUT_OF_RANGE": "OutOfRange",
        "DATA_LOSS": "DataLoss",
    }


def test_a_method_has_no_series_before_its_first_call() -> None:
    observer = Observer("test")
    observer.method("unary", PATH, "Predict")
    assert b"grpc_method" not in observer.page("")[1]


@pytest.mark.parametrize("sends", ["an error", "the beginning of its replies"])
async def test_what_meets_a_call_that_has_ended_is_no_bug_of_the_servers(
    sends: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone:
        def time_remaining(self) -> None: ...

        async def abort(self, *_: object) -> None:
            raise grpc.aio.InternalError("the caller has left")

        send_initial_metadata = abort

    observer = Observer("test")
    calls = observer.method("unary", "Inference", "Predict")
    call = CountedCall(calls, OpenCalls(), Gate(None, Quotas()), "Predict", Gone())
    error: Exception = NotFound("no such thing")
    if sends != "an error":
        with pytest.raises(grpc.aio.InternalError) as gone:
            await call.begin_replies()
        error = gone.value
    with pytest.raises(asyncio.CancelledError):
        await call.refuse(error)
    assert not caplog.records


def test_what_callers_do_to_grpc_is_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    handlers(PATH, SERVICE, Servicer(), Observer("test"), Gate(None, Quotas()), OpenCalls())
    log = logging.getLogger("grpc._cython.cygrpc")
    not_utf8 = UnicodeDecodeError("utf-8", b"Bearer \xff", 7, 8, "invalid start byte")
    for error in (grpc.aio.InternalError("Failed execute_batch"), not_utf8, RuntimeError("a bug")):
        try:
            raise error
        except Exception as raised:
            log.exception("met %s", raised)
    log.error("without an error")
    assert caplog.messages == ["met a bug", "without an error"]


def frame(kind: int, flags: int, data: bytes, stream: int = 1) -> bytes:
    return len(data).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + data


async def test_metadata_that_are_no_utf_8_are_not_written_down(caplog: pytest.LogCaptureFixture) -> None:
    key = b"Bearer wattserve_secret"
    headers = {
        b":method": b"POST", b":scheme": b"http", b":path": f"/{PATH}/Predict".encode(), b":authority": b"x",
        b"content-type": b"application/grpc", b"te": b"trailers", b"authorization": key + b"\xff",
    }  # fmt: skip
    block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(it), it) for name, it in headers.items())
    async with Rig() as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b"", 0))
        writer.write(frame(1, 4, block) + frame(0, 1, bytes(5)))  # a message of nothing
        await reader.readuntil(b"grpc-status")
        writer.close()
    assert "secret" not in caplog.text


async def test_a_path_that_is_no_utf_8_of_who_leaves_is_no_line_of_the_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    headers = {
        b":method": b"POST", b":scheme": b"http", b":path": b"/\xff", b":authority": b"x",
        b"content-type": b"application/grpc", b"te": b"trailers",
    }  # fmt: skip
    block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(it), it) for name, it in headers.items())
    async with Rig() as rig:
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b"", 0))
            for stream in range(1, 100, 2):
                writer.write(frame(1, 5, block, stream) + frame(3, 0, (8).to_bytes(4), stream))
            await writer.drain()
            writer.close()
        await asyncio.sleep(0.5)  # grpc learns that they have left
    assert "Traceback" not in capfd.readouterr().err
    assert not caplog.records
