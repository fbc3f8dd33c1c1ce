"""The client for ordinary code: `Client` blocks until the answer is there.

    with Client("127.0.0.1:50051") as client:
        answer = client.predict("a delightful film", wait_for_settled_energy=True)
        print(answer.label, answer.receipt)

Every method raises the errors of `errors`. `AsyncClient` in `aio` has the same methods for asyncio.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from wattserve_client import _replies
from wattserve_client._channel import DEFAULT_IN_FLIGHT, DEFAULT_TARGET, DEFAULT_TIMEOUT_S, Link
from wattserve_client._exit import closed_at_exit
from wattserve_client._requests import FloatArray, Inputs, images, predict_request, watch_request
from wattserve_client._stream import StreamBook
from wattserve_client.reports import EnergyReport, ServerInfo, Variant
from wattserve_client.results import Answer, Prediction, Receipt
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc

M = TypeVar("M")
R = TypeVar("R")


class Client:
    """A connection to one server; opened by the first call, usable from several threads.

    `target`: host:port. `timeout_s`: the deadline in seconds of every call that names none of its own.
    `retry`: repeat what is safe to repeat (see `_channel`); off, every refusal is seen, for measuring.
    """

    def __init__(
        self, target: str = DEFAULT_TARGET, *, timeout_s: float = DEFAULT_TIMEOUT_S, retry: bool = True
    ) -> None:
        self._link = Link(target, timeout_s, retry)
        self._channel = grpc.insecure_channel(target, options=self._link.options)
        self._open_stub: inference_pb2_grpc.InferenceStub | None = inference_pb2_grpc.InferenceStub(
            self._channel
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; open calls end with `Cancelled`. May be called twice."""
        self._open_stub = None
        self._channel.close()

    def predict(
        self,
        inputs: Inputs,
        *,
        variant: str = "",
        request_id: str = "",
        wait_for_settled_energy: bool = False,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Predict one or several sequences, in one request.

        `inputs`: a text or a list of texts; the token ids of one sequence (list of int, 1-d integer
        array) or of several (list of those, 2-d integer array); the pixels of one image (3-d float array)
        or of several (4-d), as in `predict_images`; or a mapping of names to arrays.
        Anything else raises TypeError or ValueError, and nothing is sent. `variant`: "" is the
        server's default. `request_id`: yours, echoed. `wait_for_settled_energy`: answer when the
        energy is settled rather than at once with a provisional receipt.
        """
        request = predict_request(
            inputs, variant=variant, request_id=request_id, wait_for_settled_energy=wait_for_settled_energy
        )
        return self._call(self._stub.Predict, request, _replies.prediction, timeout_s)

    def predict_images(
        self,
        pixels: FloatArray,
        *,
        variant: str = "",
        request_id: str = "",
        wait_for_settled_energy: bool = False,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Classify one image, [channels, height, width], or several, [images, channels, height, width].

        `pixels`: of the size that `server_info().pixel_shape` says, scaled and normalised as the model's
        preprocessor does it; any float type, sent as float32. The rest is as in `predict`.
        """
        return self.predict(
            images(pixels),
            variant=variant,
            request_id=request_id,
            wait_for_settled_energy=wait_for_settled_energy,
            timeout_s=timeout_s,
        )

    def predict_many(
        self,
        inputs: Iterable[Inputs],
        *,
        variant: str = "",
        wait_for_settled_energy: bool = False,
        timeout_s: float | None = None,
        in_flight: int = DEFAULT_IN_FLIGHT,
    ) -> Generator[Answer, None, None]:
        """Predict each item of an iterable over one stream; yields an `Answer` for each as it finishes.

        The iterable is taken from lazily and on the caller's thread, between answers: at most
        `in_flight` inputs are with the server. An item that fails, or that cannot be sent, yields an
        Answer with an error and does not disturb the others; what ends the stream is raised. `timeout_s`
        bounds the silence: the longest wait for the next answer, by default the client's deadline.
        Leaving the loop, or closing the generator, cancels what is in flight.
        """
        book = StreamBook(
            self._link,
            inputs,
            variant=variant,
            wait_for_settled_energy=wait_for_settled_energy,
            in_flight=in_flight,
        )
        return closed_at_exit(self._answers(iter(inputs), book, self._link.seconds(timeout_s)))

    def receipt(
        self, receipt_id: str, *, wait_until_settled: bool = False, timeout_s: float | None = None
    ) -> Receipt:
        """The receipt of an earlier request; `NotFound` when the server no longer keeps it."""
        request = pb.GetReceiptRequest(receipt_id=receipt_id, wait_until_settled=wait_until_settled)
        return self._call(self._stub.GetReceipt, request, _replies.receipt, timeout_s)

    def watch_receipts(
        self, receipt_ids: Iterable[str] = (), *, timeout_s: float | None = None
    ) -> Generator[Receipt, None, None]:
        """Settled receipts as they settle: these, until all have come; or without ids all, without end.

        The watch starts with the call and has no deadline unless `timeout_s` gives one; leaving the
        loop, or closing the generator, ends it.
        """
        seconds = None if timeout_s is None else self._link.seconds(timeout_s)
        call = self._stub.WatchReceipts(watch_request(receipt_ids), timeout=seconds)
        return closed_at_exit(self._receipts(call))

    def server_info(self, *, timeout_s: float | None = None) -> ServerInfo:
        """What is served, by what, under which limits."""
        return self._call(
            self._stub.GetServerInfo, pb.GetServerInfoRequest(), _replies.server_info, timeout_s
        )

    def energy_report(self, *, timeout_s: float | None = None) -> EnergyReport:
        """The ledger: where every microjoule of the meter stands."""
        return self._call(
            self._stub.GetEnergyReport, pb.GetEnergyReportRequest(), _replies.energy_report, timeout_s
        )

    def load_variant(self, name: str, *, timeout_s: float | None = None) -> Variant:
        """Have the server make a variant ready, which may take minutes; returns when it is.

        `NotPossible` when it cannot be made, or would not fit the server's limit of model memory.
        """
        request = pb.LoadVariantRequest(variant=name)
        return self._call(self._stub.LoadVariant, request, _replies.variant, timeout_s)

    def unload_variant(self, name: str, *, timeout_s: float | None = None) -> Variant:
        """Have the server let go of a variant's memory, once its accepted requests are answered."""
        request = pb.UnloadVariantRequest(variant=name)
        return self._call(self._stub.UnloadVariant, request, _replies.variant, timeout_s)

    @property
    def _stub(self) -> inference_pb2_grpc.InferenceStub:
        if self._open_stub is None:
            raise RuntimeError("this client is closed")
        return self._open_stub

    def _call(
        self,
        method: Callable[..., M],
        request: object,
        convert: Callable[[M], R],
        timeout_s: float | None,
    ) -> R:
        try:
            message = method(request, timeout=self._link.seconds(timeout_s))
        except grpc.RpcError as error:
            raise self._link.failure(error) from error
        return self._link.read(convert, message)

    def _receipts(self, call: Any) -> Generator[Receipt, None, None]:
        try:
            for message in call:
                yield self._link.read(_replies.receipt, message)
        except grpc.RpcError as error:
            raise self._link.failure(error) from error
        finally:
            call.cancel()

    def _answers(
        self, inputs: Iterator[Inputs], book: StreamBook, timeout_s: float
    ) -> Generator[Answer, None, None]:
        # grpc takes requests on a thread of its own, and waits for responses; a thread that forwards
        # responses leaves the caller's thread free to look for an answer without waiting for one.
        requests: queue.SimpleQueue[pb.PredictRequest | None] = queue.SimpleQueue()
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call = self._stub.PredictStream(iter(requests.get, None))
        threading.Thread(target=_forward, args=(call, events), daemon=True, name="wattserve-answers").start()
        try:
            while True:
                if book.has_room and events.empty():
                    try:
                        asked = book.ask(next(inputs))
                    except StopIteration:
                        book.all_sent = True
                        requests.put(None)
                        continue
                    if isinstance(asked, Answer):
                        yield asked
                    else:
                        requests.put(asked)
                    continue
                try:
                    event = events.get(timeout=timeout_s)
                except queue.Empty:
                    raise book.silent(timeout_s) from None
                match event:
                    case pb.PredictStreamResponse():
                        yield book.answer(event)
                    case grpc.RpcError():
                        raise book.broken(self._link.failure(event)) from event
                    case None:
                        book.ended()
                        return
        finally:
            requests.put(None)
            call.cancel()


def _forward(call: Any, events: queue.SimpleQueue[Any]) -> None:
    """Put each response of a stream into `events`, then the grpc error that ended it, or None."""
    try:
        for response in call:
            events.put(response)
    except grpc.RpcError as error:
        events.put(error)
    else:
        events.put(None)
