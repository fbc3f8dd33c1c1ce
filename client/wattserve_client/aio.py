"""The client for asyncio: `AsyncClient` has the methods of `Client`, awaited.

    async with AsyncClient("127.0.0.1:50051") as client:
        answer = await client.predict("a delightful film", wait_for_settled_energy=True)
        print(answer.label, answer.receipt)

Every method raises the errors of `errors`; a cancelled task raises asyncio.CancelledError, as ever.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

import grpc
import grpc.aio

from wattserve_client import _requests
from wattserve_client._channel import DEFAULT_IN_FLIGHT, DEFAULT_TIMEOUT_S, HEALTH_CHECK, Link, Tries
from wattserve_client._generate import (
    CHARGED,
    AsyncGenerationStream,
    GenerateOptions,
    GenerationBook,
    Prompt,
    ScoreOptions,
    generate_request,
    score_request,
)
from wattserve_client._requests import FloatArray, Inputs, PredictOptions, bare_request
from wattserve_client._servers import DEFAULT_TARGET, Owners, PathLike, Tls
from wattserve_client._stream import StreamBook, answers_async, each_of
from wattserve_client.errors import Unavailable, WattserveError
from wattserve_client.generations import Generation, GenerationPiece, Scores
from wattserve_client.keys import ApiKey
from wattserve_client.reports import EnergyReport, ServerInfo, Variant
from wattserve_client.results import Answer, FoundReceipts, Prediction, Receipt
from wattserve_client.usage import UsageReport
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc

R = TypeVar("R")


class AsyncClient:
    """A connection to one server, or to several; opened by the first call, and bound to its event loop.

    All as in `Client`. Looking up the host names of several addresses, when the client is made, blocks.
    """

    def __init__(
        self,
        target: str | Sequence[str] = DEFAULT_TARGET,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: bool = True,
        tls: bool | Tls = False,
        api_key: str | None = None,
        api_key_file: PathLike | None = None,
    ) -> None:
        key = ApiKey(api_key, api_key_file)
        link = self._link = Link(target, timeout_s, retry, tls, key)
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the channel
        self._open_stub: inference_pb2_grpc.InferenceAsyncStub | None = None
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed = False
        several = link.addresses if link.has_several else ()
        self._members = tuple(
            AsyncClient(
                address,
                timeout_s=timeout_s,
                retry=retry,
                tls=tls,
                api_key=api_key,
                api_key_file=api_key_file,
            )
            for address in several
        )
        self._owners = Owners(link.target, self._members)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close it: open calls end with `Cancelled`, new ones raise RuntimeError. May be called twice."""
        self._closed = True
        for member in self._members:
            await member.close()
        for call in list(self._streams):
            call.cancel()
        if self._channel is not None:
            await self._channel.close()

    @property
    def target(self) -> str:
        """The address; several are joined by commas."""
        return self._link.target

    @property
    def members(self) -> tuple[AsyncClient, ...]:
        """A client for each address, in their order; of a client with one address, itself."""
        return self._members or (self,)

    async def predict(
        self,
        inputs: Inputs,
        *,
        variant: str = "",
        request_id: str = "",
        wait_for_settled_energy: bool = False,
        priority: int = 0,
        truncate: bool = False,
        max_energy_uj: int | None = None,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Predict one or several sequences, in one request; all as in `Client.predict`."""
        bare = bare_request(variant, wait_for_settled_energy, priority, request_id, truncate, max_energy_uj)
        request = _requests.with_inputs(bare, inputs)
        tries = Tries(self._link, timeout_s)
        return await self._tried(
            tries, lambda: self._call(self._stub.Predict, request, Prediction, tries.left_s, tries.asked_s)
        )

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Have a language model go on with a prompt; all as in `Client.generate`."""
        async with self.generate_stream(prompt, **options) as stream:
            async for _ in stream:
                pass
            return stream.result

    def generate_stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGenerationStream:
        """As `generate`, piece by piece as they come; all as in `Client.generate_stream`."""
        request = generate_request(prompt, options)
        tries, book = Tries(self._link, options.get("timeout_s")), GenerationBook(self._link)
        return AsyncGenerationStream(self._pieces(request, tries, book), book)

    async def score(self, inputs: Inputs, **options: Unpack[ScoreOptions]) -> Scores:
        """How likely a language model finds given texts, or token ids; all as in `Client.score`."""
        request = score_request(inputs, options)
        tries = Tries(self._link, options.get("timeout_s"))
        return await self._tried(
            tries, lambda: self._call(self._stub.Score, request, Scores, tries.left_s, tries.asked_s)
        )

    async def predict_images(self, pixels: FloatArray, **options: Unpack[PredictOptions]) -> Prediction:
        """Classify one image or several; all as in `Client.predict_images`."""
        return await self.predict(_requests.images(pixels), **options)

    def predict_many(
        self,
        inputs: Iterable[Inputs] | AsyncIterable[Inputs],
        *,
        variant: str = "",
        request_id: str = "",
        wait_for_settled_energy: bool = False,
        priority: int = 0,
        truncate: bool = False,
        max_energy_uj: int | None = None,
        timeout_s: float | None = None,
        in_flight: int = DEFAULT_IN_FLIGHT,
    ) -> AsyncGenerator[Answer, None]:
        """Predict each item over one stream; yields an `Answer` for each as it finishes.

        As `Client.predict_many` (nothing is repeated, also not an item refused as OVERLOADED or
        STARTING_OR_STOPPING), except that inputs are taken by a task of their own, so that answers do not
        wait for a slow source (a plain iterable that blocks still blocks the event loop). After a `break`
        the stream is cancelled as soon as the loop comes round; `contextlib.aclosing` does it at once.
        """
        bare = bare_request(variant, wait_for_settled_energy, priority, request_id, truncate, max_energy_uj)
        book = StreamBook(self._link, inputs, bare, in_flight)
        source = aiter(inputs) if isinstance(inputs, AsyncIterable) else each_of(iter(inputs))
        return answers_async(self._link, self._open, source, book, self._link.seconds(timeout_s))

    async def receipt(
        self, receipt_id: str, *, wait_until_settled: bool = False, timeout_s: float | None = None
    ) -> Receipt:
        """The receipt of an earlier request; all as in `Client.receipt`."""
        request = _requests.receipt_request(receipt_id, wait_until_settled)
        if self._members:
            return await self._search(request, self._link.seconds(timeout_s))
        return await self._call(self._stub.GetReceipt, request, Receipt, timeout_s)

    async def find_receipts(
        self, request_id: str, *, wait_until_settled: bool = False, timeout_s: float | None = None
    ) -> FoundReceipts:
        """The receipts of your own `request_id`; all as in `Client.find_receipts`."""
        request = _requests.find_request(request_id, wait_until_settled)
        if self._members:
            return await self._find(request, self._link.seconds(timeout_s))
        return await self._call(self._stub.FindReceipts, request, FoundReceipts, timeout_s)

    def watch_receipts(
        self, receipt_ids: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Receipt, None]:
        """Settled receipts as they settle; all as in `Client.watch_receipts`. Needs a running loop."""
        seconds = None if timeout_s is None else self._link.seconds(timeout_s)
        call = self._one_stub.WatchReceipts(
            _requests.watch_request(receipt_ids), timeout=seconds, metadata=self._link.metadata
        )
        return self._receipts(self._tracked(call), seconds)

    async def is_ready(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server takes requests now; all as in `Client.is_ready`."""
        return not await self._why_not_ready(timeout_s)

    async def _why_not_ready(self, timeout_s: float | None) -> str:
        self._link.check_one_server()
        seconds = self._link.seconds(timeout_s)
        ask: Any = self._open_channel().unary_unary(HEALTH_CHECK)
        try:
            return self._link.why_not_ready(await ask(b"", timeout=seconds), seconds)
        except grpc.RpcError as error:
            return self._link.why_not_ready(error, seconds)

    async def server_info(self, *, timeout_s: float | None = None) -> ServerInfo:
        """What is served, by what, under which limits."""
        return await self._call(
            self._one_stub.GetServerInfo, pb.GetServerInfoRequest(), ServerInfo, timeout_s
        )

    async def energy_report(self, *, timeout_s: float | None = None) -> EnergyReport:
        """The ledger: where every microjoule of the meter stands."""
        return await self._call(
            self._one_stub.GetEnergyReport, pb.GetEnergyReportRequest(), EnergyReport, timeout_s
        )

    async def usage(
        self,
        since_unix_s: int,
        until_unix_s: int,
        *,
        by_tenant: bool = False,
        by_variant: bool = False,
        by_hour: bool = False,
        timeout_s: float | None = None,
    ) -> UsageReport:
        """What the server's account book holds of a span; all as in `Client.usage`."""
        request = _requests.usage_request(since_unix_s, until_unix_s, by_tenant, by_variant, by_hour)
        return await self._call(self._one_stub.GetUsage, request, UsageReport, timeout_s)

    async def load_variant(self, name: str, *, timeout_s: float | None = None) -> Variant:
        """Have the server make a variant ready; all as in `Client.load_variant`."""
        request = pb.LoadVariantRequest(variant=_requests.text(name, "name"))
        return await self._call(self._one_stub.LoadVariant, request, Variant, timeout_s)

    async def unload_variant(self, name: str, *, timeout_s: float | None = None) -> Variant:
        """Have the server let go of a variant's memory, once its accepted requests are answered."""
        request = pb.UnloadVariantRequest(variant=_requests.text(name, "name"))
        return await self._call(self._one_stub.UnloadVariant, request, Variant, timeout_s)

    def _open_channel(self) -> grpc.aio.Channel:
        if self._closed:
            raise RuntimeError("this client is closed")
        loop = asyncio.get_running_loop()
        if self._channel is None:
            # Not in __init__: grpc.aio binds a channel to the loop that is running when it is made.
            self._channel, self._loop = self._link.open_async(), loop
            self._open_stub = inference_pb2_grpc.InferenceStub(self._channel)
        elif self._loop is not loop:
            raise RuntimeError("this client belongs to another event loop: make one within each asyncio.run")
        return self._channel

    @property
    def _stub(self) -> inference_pb2_grpc.InferenceAsyncStub:
        self._open_channel()
        assert self._open_stub is not None
        return self._open_stub

    @property
    def _one_stub(self) -> inference_pb2_grpc.InferenceAsyncStub:
        """For the calls that concern one server."""
        self._link.check_one_server()
        return self._stub

    async def _call(
        self,
        method: Any,
        request: object,
        kind: type[R],
        timeout_s: float | None,
        asked_s: float | None = None,
    ) -> R:
        """asked_s: where several calls share a deadline, all of it."""
        seconds = self._link.seconds(timeout_s)
        try:
            message = await method(request, timeout=seconds, metadata=self._link.metadata)
        except grpc.RpcError as error:
            raise self._link.failure(error, asked_s or seconds, may_have_run=kind in CHARGED) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed(error)
            raise
        return self._link.read(kind, message)

    async def _tried(self, tries: Tries, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """What the first try gives that is not refused."""
        while True:
            try:
                return await call()
            except Unavailable as refusal:
                pause_s = tries.pause_s(refusal)
                if pause_s is None:
                    raise
            await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if self._closed:
            raise self._link.closed()

    async def _pieces(
        self, request: pb.GenerateRequest, tries: Tries, book: GenerationBook
    ) -> AsyncGenerator[GenerationPiece, None]:
        while True:
            call = self._tracked(
                self._stub.Generate(request, timeout=tries.left_s, metadata=self._link.metadata)
            )
            try:
                async for message in call:
                    if (piece := book.take(message)) is not None:
                        yield piece
                book.check_ended()
                return
            except grpc.RpcError as error:
                failure = self._link.failure(error, tries.asked_s, may_have_run=True)
                if book.has_begun or not isinstance(failure, Unavailable):
                    raise failure from error
                pause_s = tries.pause_s(failure)
                if pause_s is None:
                    raise failure from error
            except asyncio.CancelledError as error:
                self._raise_if_closed(error)
                raise
            finally:
                call.cancel()
            await self._pause(pause_s)

    async def _search(self, request: pb.GetReceiptRequest, seconds: float) -> Receipt:
        """The receipt from whichever member has it. All are asked at once: one out of reach hides none."""

        async def ask(member: AsyncClient) -> tuple[AsyncClient, Receipt | WattserveError]:
            try:
                return member, await member._call(member._stub.GetReceipt, request, Receipt, seconds)
            except WattserveError as error:
                return member, error

        tasks = [asyncio.create_task(ask(member)) for member in self._owners.to_ask(request.receipt_id)]
        errors: list[WattserveError] = []
        try:
            for ended in asyncio.as_completed(tasks):
                member, outcome = await ended
                if isinstance(outcome, Receipt):
                    self._owners.note(request.receipt_id, member)
                    return outcome
                errors.append(outcome)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise self._owners.missing(f"the receipt {request.receipt_id!r}", errors)

    async def _find(self, request: pb.FindReceiptsRequest, seconds: float) -> FoundReceipts:
        """What all members keep, which are asked at once."""

        async def ask(member: AsyncClient) -> FoundReceipts | WattserveError:
            try:
                return await member._call(member._stub.FindReceipts, request, FoundReceipts, seconds)
            except WattserveError as error:
                return error

        outcomes = await asyncio.gather(*map(ask, self._members))
        found = [outcome for outcome in outcomes if isinstance(outcome, FoundReceipts)]
        errors = [outcome for outcome in outcomes if isinstance(outcome, WattserveError)]
        return self._owners.joined(request.request_id, found, errors)

    def _open(self, requests: Iterator[pb.PredictRequest] | None) -> Any:
        return self._tracked(self._stub.PredictStream(requests, metadata=self._link.metadata))

    async def _receipts(self, call: Any, seconds: float | None) -> AsyncGenerator[Receipt, None]:
        try:
            async for message in call:
                yield self._link.read(Receipt, message)
        except grpc.RpcError as error:
            raise self._link.failure(error, seconds) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed(error)
            raise
        finally:
            call.cancel()

    def _tracked(self, call: Any) -> Any:
        """A streaming call that `close` will cancel: a channel of grpc.aio leaves idle ones open."""
        self._streams.add(call)
        return call

    def _raise_if_closed(self, error: asyncio.CancelledError) -> None:
        """Tell a task whose call was cut by `close` from a task that is being cancelled itself."""
        task = asyncio.current_task()
        if self._closed and task is not None and task.cancelling() == 0:
            raise self._link.closed() from error
