"""The fake server of `testing` on the wire: the real protocol, over gRPC, on a free port of the loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import grpc

from wattserve_client._fake.core import Call, Core, bug_in_a_test
from wattserve_client._fake.errors import Refusal, refusal
from wattserve_client._requests import MAX_MESSAGE_BYTES
from wattserve_client.reports import VariantState
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc

R = TypeVar("R")

MAX_CALLS = 128
"""Open at once, streams and watches among them; more wait."""


class Service(inference_pb2_grpc.InferenceServicer):
    def __init__(self, core: Core) -> None:
        self._core = core

    def Predict(self, request: pb.PredictRequest, context: Any) -> pb.PredictResponse:
        call = self._call(context)
        return self._answered("", context, lambda: self._core.predict(request, call, streamed=False))

    def PredictStream(
        self, request_iterator: Iterator[pb.PredictRequest], context: Any
    ) -> Iterator[pb.PredictStreamResponse]:
        call = self._call(context)
        for request in request_iterator:
            self._answered("PredictStream", context, lambda: None)
            yield self._on_a_stream(request, call)

    def GetReceipt(self, request: pb.GetReceiptRequest, context: Any) -> pb.Receipt:
        call = self._call(context)
        wait = request.wait_until_settled
        return self._answered(
            "GetReceipt", context, lambda: self._core.receipt(request.receipt_id, call, wait=wait)
        )

    def WatchReceipts(self, request: pb.WatchReceiptsRequest, context: Any) -> Iterator[pb.Receipt]:
        call = self._call(context)
        self._answered("WatchReceipts", context, lambda: None)
        if request.receipt_ids:
            watch = self._core.watch(list(request.receipt_ids), call)
        else:
            watch = self._core.watch_all(call)
            context.send_initial_metadata(())  # from now on, nothing that settles is missed
        while (receipt := self._answered("", context, lambda: next(watch, None))) is not None:
            yield receipt

    def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.ServerInfo:
        return self._answered("GetServerInfo", context, self._core.server_info)

    def GetEnergyReport(self, request: pb.GetEnergyReportRequest, context: Any) -> pb.EnergyReport:
        return self._answered("GetEnergyReport", context, self._core.energy_report)

    def LoadVariant(self, request: pb.LoadVariantRequest, context: Any) -> pb.VariantInfo:
        return self._answered(
            "LoadVariant", context, lambda: self._core.change_state(request.variant, VariantState.READY)
        )

    def UnloadVariant(self, request: pb.UnloadVariantRequest, context: Any) -> pb.VariantInfo:
        return self._answered(
            "UnloadVariant", context, lambda: self._core.change_state(request.variant, VariantState.UNLOADED)
        )

    def _call(self, context: Any) -> Call:
        call = Call()
        if not context.add_callback(lambda: self._core.end(call)):
            call.has_ended = True
        return call

    def _on_a_stream(self, request: pb.PredictRequest, call: Call) -> pb.PredictStreamResponse:
        request_id = request.request_id
        try:
            if not request_id:
                raise refusal(
                    "INVALID_ARGUMENT", "is empty; on a stream it must be unique", field="request_id"
                )
            response = self._core.predict(request, call, streamed=True)
            return pb.PredictStreamResponse(request_id=request_id, response=response)
        except Refusal as failure:
            return failure.on_a_stream(request_id)
        except Exception as error:
            return bug_in_a_test(error).on_a_stream(request_id)

    def _answered(self, method: str, context: Any, act: Callable[[], R]) -> R:
        """What `act` returns, or the end of the call. method: whose scripted failures come first, or ""."""
        try:
            if method:
                self._core.fail_if_scripted(method)
            return act()
        except Refusal as failure:
            _abort(context, failure)
        except Exception as error:
            _abort(context, bug_in_a_test(error))


def _abort(context: Any, failure: Refusal) -> NoReturn:
    context.set_trailing_metadata(failure.metadata())
    context.abort(grpc.StatusCode[failure.code], failure.text)
    raise AssertionError("abort returned")


def listen(core: Core) -> tuple[Callable[[], None], str]:
    """Serve; (what ends it and its calls at once, its address)."""
    size = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    pings = ("grpc.http2.min_ping_interval_without_data_ms", 10_000)  # as often as the client's, and more
    server = grpc.server(ThreadPoolExecutor(MAX_CALLS, "wattserve-fake"), options=[*size, pings])
    inference_pb2_grpc.add_InferenceServicer_to_server(Service(core), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    def stop() -> None:
        server.stop(grace=0).wait()

    return stop, f"127.0.0.1:{port}"
