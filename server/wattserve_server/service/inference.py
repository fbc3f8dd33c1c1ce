"""The native protocol, `wattserve.v1.Inference`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import InvalidRequest
from wattserve_server.service import convert, report
from wattserve_server.service.prediction import Answered, Predictor, until_settled
from wattserve_server.service.serving import Serving
from wattserve_server.service.status import failure_of
from wattserve_server.service.streams import answers


class InferenceService:
    def __init__(self, serving: Serving, predictor: Predictor) -> None:
        self._serving = serving
        self._predictor = predictor

    async def Predict(self, request: pb.PredictRequest, context: Any) -> pb.PredictResponse:
        answered = await self._predictor.predict(convert.NativeCall(request), context.time_remaining())
        message = pb.PredictResponse()
        _write_response(message, request.request_id, answered)
        return message

    async def PredictStream(
        self, request_iterator: AsyncIterator[pb.PredictRequest], context: Any
    ) -> AsyncIterator[pb.PredictStreamResponse]:
        open_ids: set[str] = set()

        async def answer(request: pb.PredictRequest) -> pb.PredictStreamResponse:
            request_id = request.request_id
            if not request_id or request_id in open_ids:
                why = "is in flight already" if request_id else "is empty"
                error = InvalidRequest(f"{why}; on a stream it must be unique", "request_id")
                return _stream_error(request_id, error)
            open_ids.add(request_id)
            try:
                answered = await self._predictor.predict(
                    convert.NativeCall(request), context.time_remaining()
                )
                message = pb.PredictStreamResponse(request_id=request_id)
                _write_response(message.response, request_id, answered)
            except Exception as error:
                return _stream_error(request_id, error)
            finally:
                open_ids.discard(request_id)
            return message

        async for reply in answers(request_iterator, answer, self._serving, in_order=False):
            yield reply

    async def GetReceipt(self, request: pb.GetReceiptRequest, context: Any) -> pb.Receipt:
        ready = self._serving.get()
        receipt = ready.engine.book.get(request.receipt_id)
        if request.wait_until_settled:
            await until_settled(ready, receipt)
        return convert.receipt_message(receipt, ready.source_of(receipt))

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

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.ServerInfo:
        ready = self._serving.get()
        return report.server_info(ready)

    async def GetEnergyReport(self, request: pb.GetEnergyReportRequest, context: Any) -> pb.EnergyReport:
        ready = self._serving.get()
        return report.energy_report(ready)

    async def LoadVariant(self, request: pb.LoadVariantRequest, context: Any) -> pb.VariantInfo:
        engine = self._serving.get().engine
        self._serving.check_not_draining()
        await engine.loader.load_on_request(request.variant, "variant")
        return report.variant_info(engine, engine.roster.named(request.variant))

    async def UnloadVariant(self, request: pb.UnloadVariantRequest, context: Any) -> pb.VariantInfo:
        engine = self._serving.get().engine
        await engine.loader.unload(request.variant)
        return report.variant_info(engine, engine.roster.named(request.variant))


def _write_response(message: pb.PredictResponse, request_id: str, answered: Answered) -> None:
    """Every part in its place: a part that was made elsewhere would be copied."""
    ready, done, times = answered
    model = ready.engine.model
    message.request_id = request_id
    message.variant = done.variant
    rows = [row for row in done.rows if row is not None]
    convert.write_output(message.output, model.task.output_name, rows)
    for scores in model.task.scores(model.config, rows):
        convert.write_classification(message.classifications.add(), scores, model.labels)
    convert.write_receipt(message.receipt, done.receipt, ready.source_of(done.receipt))
    timing = message.timing
    timing.tokenize_ns = times.tokenize_ns
    timing.queue_ns = times.queue_ns
    timing.compute_ns = times.compute_ns
    timing.total_ns = times.total_ns


def _stream_error(request_id: str, error: Exception) -> pb.PredictStreamResponse:
    failure = failure_of(error)
    told = pb.PredictError(
        code=failure.kind.code.value[0],
        message=failure.message,
        reason=failure.kind.reason,
        field=failure.field,
        retry_after_ms=failure.kind.retry_after_ms,
    )
    return pb.PredictStreamResponse(request_id=request_id, error=told)
