"""The fake server of `testing`: the real protocol, over gRPC, on a free port of the loopback."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc

from wattserve_client._channel import HEALTH_CHECK, SERVING
from wattserve_client._fake.ledger import FakeLedger, FakeReceipt, prediction, server_info
from wattserve_client._fake.requests import (
    FakeRequest,
    Given,
    Refusal,
    check,
    check_request_id,
    refusal,
    request_of,
)
from wattserve_client._fake.script import Reply, Script
from wattserve_client.reports import Variant, VariantState
from wattserve_client.wire import to_message
from wattserve_proto.limits import message_sizes
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc

MOST_FOUND = 100  # receipts of one request id in an answer, as of the real server
GENERATES_NOTHING = "the fake server's model generates nothing: call Predict"
_MAX_CALLS = 128  # open at once, streams and watches among them; more wait


class FakeService(inference_pb2_grpc.InferenceServicer):
    """What the fake server does with a call, and the one lock around all that it knows."""

    def __init__(self, script: Script, variants: Sequence[Variant], settles: bool, delay_s: float) -> None:
        self.changed = threading.Condition()  # the lock, and news of a receipt or of a caller who left
        self.script = script
        self.requests: list[FakeRequest] = []
        self.delay_s = delay_s
        self._settles = settles
        self._variants = {variant.name: variant for variant in variants}
        self._default = variants[0].name
        self._instance_id = uuid.uuid4().hex[:12]
        self._ledger = FakeLedger(self._instance_id)

    def settle(self) -> None:
        with self.changed:
            for receipt in self._ledger.receipts.values():
                self._settle(receipt)

    def Predict(self, request: pb.PredictRequest, context: Any) -> pb.PredictResponse:
        with self._refusing(context):
            return self._predict(request, self._left(context), streamed=False)

    def PredictStream(
        self, request_iterator: Iterator[pb.PredictRequest], context: Any
    ) -> Iterator[pb.PredictStreamResponse]:
        left = self._left(context)
        for request in request_iterator:
            with self._refusing(context, "PredictStream"):
                response = self._predict_on_stream(request, left)
            yield response

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateResponse]:
        with self._refusing(context, "Generate"):
            raise refusal("FAILED_PRECONDITION", GENERATES_NOTHING)
        yield

    def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        with self._refusing(context, "Score"):
            raise refusal("FAILED_PRECONDITION", GENERATES_NOTHING)

    def GetUsage(self, request: pb.GetUsageRequest, context: Any) -> pb.UsageReport:
        with self._refusing(context, "GetUsage"):
            raise refusal("FAILED_PRECONDITION", "this server keeps no account book")

    def GetReceipt(self, request: pb.GetReceiptRequest, context: Any) -> pb.Receipt:
        left = self._left(context)
        with self._refusing(context, "GetReceipt"), self.changed:
            receipt = self._receipt(request.receipt_id)
            if request.wait_until_settled:
                self._until_final(receipt, left)
            return receipt.message()

    def FindReceipts(self, request: pb.FindReceiptsRequest, context: Any) -> pb.FindReceiptsResponse:
        left = self._left(context)
        with self._refusing(context, "FindReceipts"), self.changed:
            found = self._found(request.request_id)
            if request.wait_until_settled:
                for receipt in found:
                    self._until_final(receipt, left)
            listed = [receipt.message() for receipt in found[:MOST_FOUND]]
            return pb.FindReceiptsResponse(receipts=listed, older_left_out=len(found) > MOST_FOUND)

    def WatchReceipts(self, request: pb.WatchReceiptsRequest, context: Any) -> Iterator[pb.Receipt]:
        left = self._left(context)
        with self._refusing(context, "WatchReceipts"):
            if request.receipt_ids:
                yield from self._watch(request.receipt_ids, left)
                return
            with self.changed:
                place = len(self._ledger.finals)
            context.send_initial_metadata(())  # from now on, nothing that settles is missed
            yield from self._watch_all(place, left)

    def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.ServerInfo:
        with self._refusing(context, "GetServerInfo"), self.changed:
            return server_info(self._instance_id, self.script.labels, [*self._variants.values()])

    def GetEnergyReport(self, request: pb.GetEnergyReportRequest, context: Any) -> pb.EnergyReport:
        with self._refusing(context, "GetEnergyReport"), self.changed:
            return self._ledger.report([*self._variants.values()])

    def LoadVariant(self, request: pb.LoadVariantRequest, context: Any) -> pb.VariantInfo:
        with self._refusing(context, "LoadVariant"):
            return self._change_state(request.variant, VariantState.READY)

    def UnloadVariant(self, request: pb.UnloadVariantRequest, context: Any) -> pb.VariantInfo:
        with self._refusing(context, "UnloadVariant"):
            return self._change_state(request.variant, VariantState.UNLOADED)

    def _left(self, context: Any) -> threading.Event:
        """Set when the caller has left."""
        left = threading.Event()

        def leave() -> None:
            with self.changed:
                left.set()
                self.changed.notify_all()

        if not context.add_callback(leave):
            left.set()
        return left

    @contextmanager
    def _refusing(self, context: Any, method: str = "") -> Iterator[None]:
        """Ends the call by what is raised within. method: whose scripted failures come first."""
        try:
            with self.changed:
                self.script.fail(method)
            yield
        except Exception as error:
            failure = error if isinstance(error, Refusal) else _bug_in_a_test(error)
            context.set_trailing_metadata(failure.metadata())
            context.abort(grpc.StatusCode[failure.code], failure.text)

    def _predict(
        self, message: pb.PredictRequest, left: threading.Event, *, streamed: bool
    ) -> pb.PredictResponse:
        request = request_of(message, streamed=streamed)
        with self.changed:
            self.requests.append(request)
            if self.delay_s:
                self.changed.wait_for(left.is_set, self.delay_s)
            self.script.fail("Predict")
            variant = self._ready(request.variant)
            check(message, request.inputs)
            sources = [self.script.find(given, variant.name) for given in request.inputs]
        replies = [
            source if isinstance(source, Reply) else self._asked(source(given), given)
            for source, given in zip(sources, request.inputs, strict=True)
        ]
        with self.changed:
            receipt = self._ledger.open(request.request_id, variant, replies, request.inputs)
            if request.wait_for_settled_energy:
                self._until_final(receipt, left)
            message_now = receipt.message()
            if self._settles:
                self._settle(receipt)
        return prediction(request, variant.name, replies, self.script, message_now)

    def _predict_on_stream(
        self, request: pb.PredictRequest, left: threading.Event
    ) -> pb.PredictStreamResponse:
        request_id = request.request_id
        try:
            if not request_id:
                raise refusal(
                    "INVALID_ARGUMENT", "is empty; on a stream it must be unique", field="request_id"
                )
            response = self._predict(request, left, streamed=True)
            return pb.PredictStreamResponse(request_id=request_id, response=response)
        except Refusal as failure:
            return failure.on_a_stream(request_id)
        except Exception as error:
            return _bug_in_a_test(error).on_a_stream(request_id)

    def _watch(self, receipt_ids: Sequence[str], left: threading.Event) -> Iterator[pb.Receipt]:
        with self.changed:
            receipts = [self._receipt(receipt_id) for receipt_id in receipt_ids]
        for receipt in receipts:
            with self.changed:
                self._until_final(receipt, left)
                message = receipt.message()
            if left.is_set():
                return
            yield message

    def _watch_all(self, place: int, left: threading.Event) -> Iterator[pb.Receipt]:
        """Those that became final, from the one numbered `place`."""
        finals = self._ledger.finals
        while True:
            with self.changed:
                while len(finals) <= place and not left.is_set():
                    self.changed.wait()
                if left.is_set():
                    return
                message = finals[place].message()
            yield message
            place += 1

    def _change_state(self, name: str, state: VariantState) -> pb.VariantInfo:
        with self.changed:
            variant = replace(self._variant(name), state=state, state_reason="")
            self._variants[name] = variant
            return to_message(variant, pb.VariantInfo())

    def _variant(self, name: str) -> Variant:
        if name not in self._variants:
            raise refusal(
                "NOT_FOUND",
                f"no variant {name!r}; the fake server has {', '.join(self._variants)}",
                field="variant",
            )
        return self._variants[name]

    def _ready(self, name: str) -> Variant:
        variant = self._variant(name or self._default)
        if variant.state is not VariantState.READY:
            why = f": {variant.state_reason}" if variant.state_reason else ""
            raise refusal("FAILED_PRECONDITION", f"{variant.name!r} is {variant.state}{why}", field="variant")
        return variant

    def _asked(self, reply: object, given: Given) -> Reply:
        if not isinstance(reply, Reply):
            raise TypeError(
                f"the function given to otherwise() returned {reply!r} for {given!r}, not a Reply"
            )
        self.script.row(reply)
        return reply

    def _receipt(self, receipt_id: str) -> FakeReceipt:
        receipt = self._ledger.receipts.get(receipt_id)
        if receipt is None:
            raise refusal("NOT_FOUND", f"no receipt {receipt_id!r}", field="receipt_id")
        return receipt

    def _found(self, request_id: str) -> list[FakeReceipt]:
        check_request_id(request_id)
        if not request_id:
            raise refusal("INVALID_ARGUMENT", "is empty", field="request_id")
        newest_first = reversed(self._ledger.receipts.values())
        found = [receipt for receipt in newest_first if receipt.request_id == request_id]
        if not found:
            raise refusal("NOT_FOUND", f"no receipt of a request {request_id!r}", field="request_id")
        return found

    def _settle(self, receipt: FakeReceipt) -> None:
        self._ledger.settle(receipt)
        self.changed.notify_all()

    def _until_final(self, receipt: FakeReceipt, left: threading.Event) -> None:
        if self._settles:
            self._settle(receipt)
        self.changed.wait_for(lambda: receipt.is_final or left.is_set())


def _bug_in_a_test(error: Exception) -> Refusal:
    """For what a test's own function raised, or returned that makes no sense."""
    return refusal(
        "INTERNAL", f"the fake server's script failed: {type(error).__name__}: {error}", reason="INTERNAL"
    )


def listen(service: FakeService) -> tuple[Callable[[], None], str]:
    """Serve; (what ends it and its calls at once, its address)."""
    pings = ("grpc.http2.min_ping_interval_without_data_ms", 10_000)  # as often as the client's, and more
    server = grpc.server(ThreadPoolExecutor(_MAX_CALLS, "wattserve-fake"), options=[*message_sizes(), pings])
    inference_pb2_grpc.add_InferenceServicer_to_server(service, server)
    health, method = HEALTH_CHECK.strip("/").split("/")
    check: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: SERVING)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(health, {method: check}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    def stop() -> None:
        server.stop(grace=0).wait()

    return stop, f"127.0.0.1:{port}"
