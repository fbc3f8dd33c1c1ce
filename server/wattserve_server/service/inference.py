"""The native protocol, `wattserve.v1.Inference`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc
from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.request import Request
from wattserve_server.engine.tasks import Item
from wattserve_server.errors import ConfigError, InvalidRequest, NotPossibleHere
from wattserve_server.service import convert, report
from wattserve_server.service.serving import SETTLEMENT_LIMIT_S, Ready, Serving
from wattserve_server.service.status import code_and_message, streaming, unary
from wattserve_server.telemetry.metrics import Metrics

STREAM_IN_FLIGHT = 1024
"""Requests of one stream whose answers are not sent yet; the server reads no more of it until some are."""


class InferenceService(pb_grpc.InferenceServicer):
    def __init__(self, serving: Serving, metrics: Metrics) -> None:
        self._serving = serving
        self._metrics = metrics

    @unary
    async def Predict(self, request: pb.PredictRequest, context: Any) -> pb.PredictResponse:
        left_s = context.time_remaining()
        deadline_ns = None if left_s is None else time.monotonic_ns() + int(left_s * 1e9)
        return await self._predict(request, deadline_ns)

    @streaming
    async def PredictStream(
        self, request_iterator: AsyncIterator[pb.PredictRequest], context: Any
    ) -> AsyncIterator[pb.PredictStreamResponse]:
        answers: asyncio.Queue[pb.PredictStreamResponse | None] = asyncio.Queue()
        room = asyncio.Semaphore(STREAM_IN_FLIGHT)
        in_flight: dict[str, asyncio.Task[None]] = {}

        async def answer(request: pb.PredictRequest) -> None:
            try:
                reply = pb.PredictStreamResponse(
                    request_id=request.request_id, response=await self._predict(request, None)
                )
            except Exception as error:
                reply = _stream_error(request.request_id, error)
            in_flight.pop(request.request_id, None)
            answers.put_nowait(reply)

        async def read() -> None:
            async for request in request_iterator:
                await room.acquire()
                if not request.request_id or request.request_id in in_flight:
                    why = "is in flight already" if request.request_id else "is empty"
                    error = InvalidRequest(f"{why}; on a stream it must be unique", "request_id")
                    answers.put_nowait(_stream_error(request.request_id, error))
                    continue
                in_flight[request.request_id] = asyncio.create_task(answer(request))

        async def read_all() -> None:
            reader = asyncio.create_task(read())
            draining = asyncio.create_task(self._serving.draining.wait())
            try:
                await asyncio.wait((reader, draining), return_when=asyncio.FIRST_COMPLETED)
                was_cut_short = not reader.done()
                if was_cut_short:
                    reader.cancel()
                else:
                    reader.result()
                while in_flight:
                    await asyncio.wait(list(in_flight.values()))
                if was_cut_short:
                    self._serving.check_not_draining()
            finally:
                reader.cancel()
                draining.cancel()
                answers.put_nowait(None)

        feeder = asyncio.create_task(read_all())
        try:
            while (reply := await answers.get()) is not None:
                yield reply
                room.release()
            await feeder
        finally:
            feeder.cancel()
            for task in list(in_flight.values()):
                task.cancel()

    @unary
    async def GetReceipt(self, request: pb.GetReceiptRequest, context: Any) -> pb.Receipt:
        ready = self._serving.get()
        receipt = ready.engine.book.get(request.receipt_id)
        if request.wait_until_settled:
            await _until_settled(ready, receipt)
        return convert.receipt_message(receipt, ready.source_of(receipt))

    @streaming
    async def WatchReceipts(
        self, request: pb.WatchReceiptsRequest, context: Any
    ) -> AsyncIterator[pb.Receipt]:
        ready = self._serving.get()
        book = ready.engine.book
        if not request.receipt_ids:
            watch = book.watch()
            try:
                await context.send_initial_metadata(())  # from now on, nothing that settles is missed
                async for receipt in watch:
                    yield convert.receipt_message(receipt, ready.source_of(receipt))
            finally:
                watch.close()
            return
        receipts = [book.get(receipt_id) for receipt_id in request.receipt_ids]
        for receipt in receipts:
            await book.until_final(receipt)
            yield convert.receipt_message(receipt, ready.source_of(receipt))

    @unary
    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.ServerInfo:
        ready = self._serving.get()
        return report.server_info(ready)

    @unary
    async def GetEnergyReport(self, request: pb.GetEnergyReportRequest, context: Any) -> pb.EnergyReport:
        ready = self._serving.get()
        return report.energy_report(ready)

    @unary
    async def LoadVariant(self, request: pb.LoadVariantRequest, context: Any) -> pb.VariantInfo:
        engine = self._serving.get().engine
        self._serving.check_not_draining()
        try:
            await engine.loader.load(request.variant)
        except ConfigError as error:
            raise NotPossibleHere(f"{request.variant!r} could not be loaded: {error}", "variant") from error
        return report.variant_info(engine, engine.roster.named(request.variant))

    @unary
    async def UnloadVariant(self, request: pb.UnloadVariantRequest, context: Any) -> pb.VariantInfo:
        engine = self._serving.get().engine
        await engine.loader.unload(request.variant)
        return report.variant_info(engine, engine.roster.named(request.variant))

    async def _predict(self, request: pb.PredictRequest, deadline_ns: int | None) -> pb.PredictResponse:
        begun_ns = time.monotonic_ns()
        variant = ""
        try:
            with self._serving.accept() as ready:
                convert.check_request_id(request.request_id)
                variant = ready.engine.variant_named(request.variant)
                response = await self._answer(ready, request, variant, deadline_ns, begun_ns)
        except asyncio.CancelledError:  # grpc ends the handler so when the caller's deadline passes, too
            is_late = deadline_ns is not None and time.monotonic_ns() >= deadline_ns
            self._metrics.request_ended(variant, "DEADLINE_EXCEEDED" if is_late else "CANCELLED")
            raise
        except Exception as error:
            self._metrics.request_ended(variant, code_and_message(error)[0].name)
            raise
        timing = response.timing
        self._metrics.request_answered(
            variant, timing.tokenize_ns, timing.queue_ns, timing.compute_ns, timing.total_ns
        )
        return response

    async def _answer(
        self,
        ready: Ready,
        request: pb.PredictRequest,
        variant: str,
        deadline_ns: int | None,
        begun_ns: int,
    ) -> pb.PredictResponse:
        limit, facts = ready.engine.limits.max_request, ready.engine.model.facts
        tokenize_ns = 0
        if request.WhichOneof("input") == "text" and not facts.pixel_shape:
            sequences = await self._encode(ready, convert.texts_of(request, limit))
            tokenize_ns = time.monotonic_ns() - begun_ns
            convert.check_ids(sequences, facts, "text.texts")
            items: list[Item] = list(sequences)
        else:
            items = convert.items_of(request, facts, limit)
        done = await ready.engine.predict(items, variant, request.request_id, deadline_ns)
        if request.wait_for_settled_energy:
            await _until_settled(ready, done.receipt)
        return _response(request, ready, done, begun_ns, tokenize_ns)

    async def _encode(self, ready: Ready, texts: list[str]) -> list[Item]:
        if ready.tokenizer is None:
            raise NotPossibleHere(f"{ready.info.model_name} has no tokenizer: send token ids", "text")
        return await ready.tokenizer.encode(texts)


def _response(
    request: pb.PredictRequest, ready: Ready, done: Request, begun_ns: int, tokenize_ns: int
) -> pb.PredictResponse:
    model = ready.engine.model
    rows = [row for row in done.rows if row is not None]
    scores = model.task.scores(model.config, rows)
    return pb.PredictResponse(
        request_id=request.request_id,
        variant=done.variant,
        output=convert.output_tensor(model.task.output_name, rows),
        classifications=[convert.classification(row, model.labels) for row in scores],
        receipt=convert.receipt_message(done.receipt, ready.source_of(done.receipt)),
        timing=pb.Timing(
            tokenize_ns=tokenize_ns,
            queue_ns=done.last_started_ns - done.accepted_ns,
            compute_ns=done.compute_ns,
            total_ns=time.monotonic_ns() - begun_ns,
        ),
    )


async def _until_settled(ready: Ready, receipt: Receipt) -> None:
    """Wait, but no longer than the settlement limit: then the receipt is given as it is."""
    try:
        async with asyncio.timeout(SETTLEMENT_LIMIT_S):
            await ready.engine.book.until_final(receipt)
    except TimeoutError:
        pass


def _stream_error(request_id: str, error: Exception) -> pb.PredictStreamResponse:
    code, message = code_and_message(error)
    return pb.PredictStreamResponse(
        request_id=request_id, error=pb.PredictError(code=code.value[0], message=message)
    )
