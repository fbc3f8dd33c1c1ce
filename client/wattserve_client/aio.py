"""The client for asyncio: `AsyncClient` has the methods of `Client`, awaited.

    async with AsyncClient("127.0.0.1:50051") as client:
        answer = await client.predict("a delightful film", wait_for_settled_energy=True)
        print(answer.label, answer.receipt)

Every method raises the errors of `errors`; a cancelled task raises asyncio.CancelledError, as ever.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from wattserve_client import _replies
from wattserve_client._astream import Each, next_event
from wattserve_client._channel import DEFAULT_IN_FLIGHT, DEFAULT_TARGET, DEFAULT_TIMEOUT_S, Link
from wattserve_client._requests import FloatArray, Inputs, images, predict_request, watch_request
from wattserve_client._status import StatusNotes
from wattserve_client._stream import StreamBook
from wattserve_client.errors import WattserveError
from wattserve_client.reports import EnergyReport, ServerInfo, Variant
from wattserve_client.results import Answer, Prediction, Receipt
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc

M = TypeVar("M")
R = TypeVar("R")


class AsyncClient:
    """A connection to one server, opened by the first call; it belongs to that call's event loop.

    `target`, `timeout_s`, `retry`: as in `Client`.
    """

    def __init__(
        self, target: str = DEFAULT_TARGET, *, timeout_s: float = DEFAULT_TIMEOUT_S, retry: bool = True
    ) -> None:
        self._link = Link(target, timeout_s, retry)
        self._channel: grpc.aio.Channel | None = None
        self._open_stub: inference_pb2_grpc.InferenceAsyncStub | None = None
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; open calls end with `Cancelled`. May be called twice."""
        self._closed = True
        for call in list(self._streams):
            call.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def predict(
        self,
        inputs: Inputs,
        *,
        variant: str = "",
        request_id: str = "",
        wait_for_settled_energy: bool = False,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Predict one or several sequences, in one request; all as in `Client.predict`."""
        request = predict_request(
            inputs, variant=variant, request_id=request_id, wait_for_settled_energy=wait_for_settled_energy
        )
        return await self._call(self._stub.Predict, request, _replies.prediction, timeout_s)

    async def predict_images(
        self,
        pixels: FloatArray,
        *,
        variant: str = "",
        request_id: str = "",
        wait_for_settled_energy: bool = False,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Classify one image or several; all as in `Client.predict_images`."""
        return await self.predict(
            images(pixels),
            variant=variant,
            request_id=request_id,
            wait_for_settled_energy=wait_for_settled_energy,
            timeout_s=timeout_s,
        )

    def predict_many(
        self,
        inputs: Iterable[Inputs] | AsyncIterable[Inputs],
        *,
        variant: str = "",
        wait_for_settled_energy: bool = False,
        timeout_s: float | None = None,
        in_flight: int = DEFAULT_IN_FLIGHT,
    ) -> AsyncGenerator[Answer, None]:
        """Predict each item over one stream; yields an `Answer` for each as it finishes.

        As `Client.predict_many`, except that inputs are taken by a task of their own, so that answers
        do not wait for a slow source (a plain iterable that blocks still blocks the event loop). After
        a `break` the stream is cancelled as soon as the loop comes round; `contextlib.aclosing` makes
        it immediate.
        """
        book = StreamBook(
            self._link,
            inputs,
            variant=variant,
            wait_for_settled_energy=wait_for_settled_energy,
            in_flight=in_flight,
        )
        source = aiter(inputs) if isinstance(inputs, AsyncIterable) else Each(inputs)
        return self._answers(source, book, self._link.seconds(timeout_s))

    async def receipt(
        self, receipt_id: str, *, wait_until_settled: bool = False, timeout_s: float | None = None
    ) -> Receipt:
        """The receipt of an earlier request; `NotFound` when the server no longer keeps it."""
        request = pb.GetReceiptRequest(receipt_id=receipt_id, wait_until_settled=wait_until_settled)
        return await self._call(self._stub.GetReceipt, request, _replies.receipt, timeout_s)

    def watch_receipts(
        self, receipt_ids: Iterable[str] = (), *, timeout_s: float | None = None
    ) -> AsyncGenerator[Receipt, None]:
        """Settled receipts as they settle; all as in `Client.watch_receipts`. Needs a running loop."""
        seconds = None if timeout_s is None else self._link.seconds(timeout_s)
        call = self._stub.WatchReceipts(watch_request(receipt_ids), timeout=seconds)
        return self._receipts(self._tracked(call))

    async def server_info(self, *, timeout_s: float | None = None) -> ServerInfo:
        """What is served, by what, under which limits."""
        return await self._call(
            self._stub.GetServerInfo, pb.GetServerInfoRequest(), _replies.server_info, timeout_s
        )

    async def energy_report(self, *, timeout_s: float | None = None) -> EnergyReport:
        """The ledger: where every microjoule of the meter stands."""
        return await self._call(
            self._stub.GetEnergyReport, pb.GetEnergyReportRequest(), _replies.energy_report, timeout_s
        )

    async def load_variant(self, name: str, *, timeout_s: float | None = None) -> Variant:
        """Have the server make a variant ready; all as in `Client.load_variant`."""
        request = pb.LoadVariantRequest(variant=name)
        return await self._call(self._stub.LoadVariant, request, _replies.variant, timeout_s)

    async def unload_variant(self, name: str, *, timeout_s: float | None = None) -> Variant:
        """Have the server let go of a variant's memory, once its accepted requests are answered."""
        request = pb.UnloadVariantRequest(variant=name)
        return await self._call(self._stub.UnloadVariant, request, _replies.variant, timeout_s)

    @property
    def _stub(self) -> inference_pb2_grpc.InferenceAsyncStub:
        if self._closed:
            raise RuntimeError("this client is closed")
        if self._open_stub is None:
            # Not in __init__: grpc.aio binds a channel to the loop that is running when it is made.
            self._channel = grpc.aio.insecure_channel(self._link.target, options=self._link.options)
            self._open_stub = inference_pb2_grpc.InferenceStub(self._channel)
        return self._open_stub

    async def _call(
        self,
        method: Callable[..., Any],
        request: object,
        convert: Callable[[M], R],
        timeout_s: float | None,
    ) -> R:
        try:
            message: M = await method(request, timeout=self._link.seconds(timeout_s))
        except grpc.RpcError as error:
            raise self._link.failure(error) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed(error)
            raise
        return self._link.read(convert, message)

    async def _receipts(self, call: Any) -> AsyncGenerator[Receipt, None]:
        try:
            async for message in call:
                yield self._link.read(_replies.receipt, message)
        except grpc.RpcError as error:
            raise self._link.failure(error) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed(error)
            raise
        finally:
            call.cancel()

    async def _answers(
        self, inputs: AsyncIterator[Inputs], book: StreamBook, timeout_s: float
    ) -> AsyncGenerator[Answer, None]:
        call = self._tracked(self._stub.PredictStream())
        room = asyncio.Semaphore(book.in_flight)
        events: asyncio.Queue[Any] = asyncio.Queue()
        tasks = (
            asyncio.create_task(_send(inputs, book, room, call, events)),
            asyncio.create_task(self._forward(call, events)),
        )
        try:
            while True:
                match await next_event(events, book, timeout_s):
                    case pb.PredictStreamResponse() as response:
                        yield book.answer(response)
                        room.release()
                    case Answer() as answer:
                        yield answer
                        room.release()
                    case WattserveError() as error:
                        raise book.broken(error)
                    case BaseException() as error:
                        raise error
                    case None:
                        book.ended()
                        return
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, call: Any, events: asyncio.Queue[Any]) -> None:
        """Put each response of a stream into `events`, then the error that ended it, or None."""
        notes = StatusNotes(call)
        try:
            async for response in call:
                events.put_nowait(response)
        except grpc.RpcError as raised:
            error = notes.unmask(raised)
            events.put_nowait(None if error is None else self._link.failure(error))
        except asyncio.CancelledError:
            events.put_nowait(self._link.closed())
            raise
        else:
            events.put_nowait(None)

    def _tracked(self, call: Any) -> Any:
        """A streaming call that `close` will cancel: a channel of grpc.aio leaves idle ones open."""
        self._streams.add(call)
        return call

    def _raise_if_closed(self, error: asyncio.CancelledError) -> None:
        """Tell a task whose call was cut by `close` from a task that is being cancelled itself."""
        task = asyncio.current_task()
        if self._closed and task is not None and task.cancelling() == 0:
            raise self._link.closed() from error


async def _send(
    inputs: AsyncIterator[Inputs],
    book: StreamBook,
    room: asyncio.Semaphore,
    call: Any,
    events: asyncio.Queue[Any],
) -> None:
    """Send the inputs as there is room for them; `events` gets what cannot be sent, and what they raise."""
    try:
        while True:
            await room.acquire()
            try:
                asked = book.ask(await anext(inputs))
            except StopAsyncIteration:
                break
            if isinstance(asked, Answer):
                events.put_nowait(asked)
                continue
            try:
                await call.write(asked)
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # the call is over, and `_forward` says why
        book.all_sent = True
        await call.done_writing()
    except BaseException as error:
        events.put_nowait(error)
        raise
