"""The Open Inference Protocol v2 with Triton's extensions, as `inference.GRPCInferenceService`.

Its methods, and what they say of the server and its model: metadata, configuration, statistics.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from importlib.metadata import version
from typing import Any

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.engine.engine import Engine
from wattserve_server.engine.policy import FIRST_PRIORITY, LAST_PRIORITY, NORMAL_PRIORITY
from wattserve_server.engine.roster import HostedVariant, Readiness
from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.errors import InvalidRequest, NotFound, UnsupportedError
from wattserve_server.service.caller import CALLER, Caller
from wattserve_server.service.checks import MAX_SHOWN
from wattserve_server.service.generation import Unread
from wattserve_server.service.methods import CALL
from wattserve_server.service.oip_generation import described_inputs, described_outputs, generated
from wattserve_server.service.oip_reply import parameter, response, stream_error
from wattserve_server.service.oip_request import (
    DESCRIBED,
    LOADED,
    VERSION,
    alias,
    alias_of,
    asked_of,
    hosted_named,
    hosted_of,
)
from wattserve_server.service.prediction import Host, Predictor, Serving
from wattserve_server.service.status import failure_of
from wattserve_server.service.streams import answers, many_answers
from wattserve_server.telemetry.observer import Duration, Observer, VariantStatistics

SERVER_NAME = "wattserve"

EXTENSIONS = (
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)

_STATES = {
    Readiness.READY: "READY",
    Readiness.LOADING: "LOADING",
    Readiness.CALIBRATING: "LOADING",
    Readiness.UNLOADED: "UNAVAILABLE",
    Readiness.FAILED: "UNAVAILABLE",
}


class OipService:
    def __init__(self, serving: Serving, predictor: Predictor, observer: Observer) -> None:
        self._serving = serving
        self._predictor = predictor
        self._observer = observer
        self.unread = Unread()

    async def ServerLive(self, request: Any, context: Any) -> oip.ServerLiveResponse:
        return oip.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> oip.ServerReadyResponse:
        return oip.ServerReadyResponse(ready=self._serving.is_accepting)

    async def ModelReady(self, request: oip.ModelReadyRequest, context: Any) -> oip.ModelReadyResponse:
        """Whether a request would be served; on a server that loads lazily, by what is not loaded, too."""
        if not self._serving.is_accepting:
            return oip.ModelReadyResponse(ready=False)
        engine = self._serving.get().engine
        try:
            state = hosted_named(engine, request.name, request.version, DESCRIBED).state
        except NotFound:  # as Triton says it: not ready, rather than an error
            return oip.ModelReadyResponse(ready=False)
        would_load = engine.loader.rules.is_lazy and state is not Readiness.FAILED
        return oip.ModelReadyResponse(ready=state is Readiness.READY or would_load)

    async def ServerMetadata(self, request: Any, context: Any) -> oip.ServerMetadataResponse:
        return oip.ServerMetadataResponse(
            name=SERVER_NAME, version=version("wattserve"), extensions=EXTENSIONS
        )

    async def ModelMetadata(
        self, request: oip.ModelMetadataRequest, context: Any
    ) -> oip.ModelMetadataResponse:
        host = self._serving.get()
        hosted_named(host.engine, request.name, request.version, DESCRIBED)
        return model_metadata(request.name, host)

    async def ModelConfig(self, request: oip.ModelConfigRequest, context: Any) -> oip.ModelConfigResponse:
        host = self._serving.get()
        hosted = hosted_named(host.engine, request.name, request.version, DESCRIBED)
        return oip.ModelConfigResponse(config=model_config(request.name, host, hosted.choice))

    async def ModelStatistics(
        self, request: oip.ModelStatisticsRequest, context: Any
    ) -> oip.ModelStatisticsResponse:
        """Of one name, or of all: the plain name counts every request, an alias those of its variant."""
        engine = self._serving.get().engine
        names = [request.name]
        if not request.name:
            names = [engine.model.name, *(alias(engine, name) for name in engine.roster.names)]
        message = oip.ModelStatisticsResponse()
        for name in names:
            variant = alias_of(engine, name, request.version, DESCRIBED)
            statistics = self._observer.statistics(engine.roster.names if variant is None else [variant])
            hosted = None if variant is None else engine.roster.named(variant)
            message.model_stats.append(model_statistics(name, statistics, hosted))
        return message

    async def ModelInfer(self, request: oip.ModelInferRequest, context: Any) -> oip.ModelInferResponse:
        left_s, caller = context.time_remaining(), CALLER.get()
        if not self._generates:
            return await self._infer(request, left_s, caller)
        replies = generated(request, self._predictor, left_s, caller, may_stream=False)
        async with aclosing(replies):
            return await anext(replies)

    async def ModelStreamInfer(
        self, request_iterator: AsyncIterator[oip.ModelInferRequest], context: Any
    ) -> AsyncIterator[oip.ModelStreamInferResponse]:
        """Answers come in the order of the requests, as Triton's do for models that answer each once; those
        of language models, which may answer one often, as they come."""
        caller = CALLER.get()
        if self._generates:
            call = CALL.get()
            several = partial(self._generated, context, caller)
            async for one in many_answers(request_iterator, several, self._serving):
                with self.unread.waiting(call):
                    yield one
            return

        async def answer(request: oip.ModelInferRequest) -> oip.ModelStreamInferResponse:
            """An error ends its request, not the stream."""
            try:
                reply = await self._infer(request, context.time_remaining(), caller)
            except Exception as error:
                return stream_error(request, failure_of(error))
            reply.parameters["triton_final_response"].CopyFrom(parameter(True))
            return oip.ModelStreamInferResponse(infer_response=reply)

        async for reply in answers(request_iterator, answer, self._serving, self.unread, in_order=True):
            yield reply

    async def _generated(
        self, context: Any, caller: Caller, request: oip.ModelInferRequest
    ) -> AsyncGenerator[oip.ModelStreamInferResponse, None]:
        """A generation's replies. An error ends its request, not the stream."""
        replies = generated(request, self._predictor, context.time_remaining(), caller, may_stream=True)
        try:
            async with aclosing(replies):
                async for reply in replies:
                    is_last = "finish_reason" in reply.parameters
                    reply.parameters["triton_final_response"].bool_param = is_last
                    yield oip.ModelStreamInferResponse(infer_response=reply)
        except Exception as error:
            yield stream_error(request, failure_of(error))

    @property
    def _generates(self) -> bool:
        return self._serving.host is not None and self._serving.host.engine.model.task.generates

    async def RepositoryIndex(
        self, request: oip.RepositoryIndexRequest, context: Any
    ) -> oip.RepositoryIndexResponse:
        return model_index(self._serving.get(), request.ready)

    async def RepositoryModelLoad(
        self, request: oip.RepositoryModelLoadRequest, context: Any
    ) -> oip.RepositoryModelLoadResponse:
        engine = self._serving.get().engine
        self._serving.check_not_draining()
        for name in request.parameters:
            raise InvalidRequest(
                "this server's model is what it was started with: it takes no configuration or files",
                f"parameters[{name[:MAX_SHOWN]}]",
            )
        name = request.model_name or request.repository_name
        variant = hosted_named(engine, name, "", LOADED).choice.name
        CALLER.get().did(f"load {variant}")
        await engine.loader.load_on_request(variant, LOADED.name)
        return oip.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(
        self, request: oip.RepositoryModelUnloadRequest, context: Any
    ) -> oip.RepositoryModelUnloadResponse:
        engine = self._serving.get().engine
        name = request.model_name or request.repository_name
        variant = hosted_named(engine, name, "", LOADED).choice.name
        CALLER.get().did(f"unload {variant}")
        await engine.loader.unload(variant)
        return oip.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    async def SystemSharedMemoryStatus(
        self, request: Any, context: Any
    ) -> oip.SystemSharedMemoryStatusResponse:
        return oip.SystemSharedMemoryStatusResponse()

    async def CudaSharedMemoryStatus(self, request: Any, context: Any) -> oip.CudaSharedMemoryStatusResponse:
        return oip.CudaSharedMemoryStatusResponse()

    async def _not_offered(self, request: Any, context: Any) -> Any:
        raise UnsupportedError("this server offers no shared memory, no traces and no log settings by gRPC")

    SystemSharedMemoryRegister = SystemSharedMemoryUnregister = _not_offered
    CudaSharedMemoryRegister = CudaSharedMemoryUnregister = _not_offered
    TraceSetting = LogSettings = _not_offered

    async def _infer(
        self, request: oip.ModelInferRequest, left_s: float | None, caller: Caller
    ) -> oip.ModelInferResponse:
        with self._predictor.accept(left_s, caller) as prediction:
            host = prediction.host
            first = FIRST_PRIORITY if "priority" in request.parameters else NORMAL_PRIORITY
            shape = request.inputs[0].shape if request.inputs else ()
            prediction.choose(hosted_of(request, host.engine), first, shape[0] if shape else 0)
            return response(request, host, await prediction.answer(asked_of(request, host)))


def model_metadata(name: str, host: Host) -> oip.ModelMetadataResponse:
    """Shapes with the batch dimension, where there is one."""
    has_batch = not host.engine.model.task.generates
    return oip.ModelMetadataResponse(
        name=name,
        versions=[VERSION],
        platform=SERVER_NAME,
        inputs=[_metadata(tensor, has_batch) for tensor in _inputs(host)],
        outputs=[_metadata(tensor, has_batch) for tensor in _outputs(host.engine)],
    )


def _metadata(
    tensor: oip.ModelInput | oip.ModelOutput, has_batch: bool
) -> oip.ModelMetadataResponse.TensorMetadata:
    is_text = tensor.data_type == oip.TYPE_STRING
    datatype = "BYTES" if is_text else oip.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return oip.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=datatype, shape=(-1, *tensor.dims) if has_batch else tensor.dims
    )


def model_config(name: str, host: Host, choice: Choice) -> oip.ModelConfig:
    """Dimensions without that of the batch. choice: the variant that the name stands for."""
    engine = host.engine
    limits, is_decoupled = engine.limits.batch[choice.device], engine.model.task.generates
    parameters = {
        "task": engine.model.task.name,
        "variant": choice.name,
        "variants": ",".join(engine.roster.names),
    }
    return oip.ModelConfig(
        name=name,
        platform=SERVER_NAME,
        backend=SERVER_NAME,
        max_batch_size=0 if is_decoupled else engine.limits.max_request,
        input=_inputs(host),
        output=_outputs(engine),
        dynamic_batching=oip.ModelDynamicBatching(
            preferred_batch_size=[limits.max_sequences],
            max_queue_delay_microseconds=limits.max_wait_ns // 1000,
            priority_levels=LAST_PRIORITY,
            default_priority_level=NORMAL_PRIORITY,
        ),
        parameters={key: oip.ModelParameter(string_value=value) for key, value in parameters.items()},
        model_transaction_policy=oip.ModelTransactionPolicy(decoupled=is_decoupled),
    )


def _inputs(host: Host) -> list[oip.ModelInput]:
    """Token ids and texts are all optional, because either stands without the other: clients read of an input
    that is not that it must always be sent."""
    facts = host.engine.model.facts
    if host.engine.model.task.generates:
        return described_inputs(host.tokenizer is not None)
    if facts.pixel_shape:
        return [oip.ModelInput(name="pixel_values", data_type=oip.TYPE_FP32, dims=facts.pixel_shape)]
    inputs = [
        oip.ModelInput(name=name, data_type=oip.TYPE_INT64, dims=[-1], allow_ragged_batch=True, optional=True)
        for name in ("input_ids", "attention_mask")
    ]
    if host.tokenizer is not None:
        inputs.append(oip.ModelInput(name="text", data_type=oip.TYPE_STRING, dims=[1], optional=True))
    return inputs


def _outputs(engine: Engine) -> list[oip.ModelOutput]:
    """Its width is -1 when the model's config does not say."""
    model = engine.model
    if model.task.generates:
        return described_outputs()
    width = len(model.labels) or getattr(model.config, "hidden_size", None) or -1
    return [oip.ModelOutput(name=model.task.output_name, data_type=oip.TYPE_FP32, dims=[width])]


def model_index(host: Host, only_ready: bool) -> oip.RepositoryIndexResponse:
    """The model, in the state of its default variant, and each variant."""
    engine = host.engine
    named = [(engine.model.name, engine.roster.named(engine.default_variant))]
    named += [(alias(engine, hosted.choice.name), hosted) for hosted in engine.roster]
    message = oip.RepositoryIndexResponse()
    for name, hosted in named:
        if hosted.state is Readiness.READY or not only_ready:
            message.models.add(
                name=name, version=VERSION, state=_STATES[hosted.state], reason=_reason(hosted, engine)
            )
    return message


def _reason(hosted: HostedVariant, engine: Engine) -> str:
    if hosted.state is Readiness.UNLOADED:
        return "unloaded; a request loads it" if engine.loader.rules.is_lazy else "unloaded"
    if hosted.state is Readiness.CALIBRATING:
        return "calibrating: the meter learns what it costs"
    return hosted.reason


def model_statistics(
    name: str, found: VariantStatistics, hosted: HostedVariant | None
) -> oip.ModelStatistics:
    """hosted: of the variant, when they are those of one."""
    message = oip.ModelStatistics(
        name=name,
        version=VERSION,
        last_inference=found.last_unix_ms,
        inference_count=found.sequences,
        execution_count=sum(duration.count for duration in found.batches.values()),
        inference_stats=oip.InferStatistics(
            success=_duration(found.success),
            fail=_duration(found.fail),
            queue=_duration(found.queue),
            compute_input=_duration(found.tokenize),
            compute_infer=_duration(found.compute),
            compute_output=_duration(found.output),
        ),
        batch_stats=[
            oip.InferBatchStatistics(batch_size=size, compute_infer=_duration(duration))
            for size, duration in sorted(found.batches.items())
        ],
    )
    if hosted is not None and hosted.resident is not None:
        copies = hosted.resident.siblings or {str(hosted.choice.device): hosted.resident.variant}
        for device, variant in copies.items():
            kind, _, number = device.partition(":")
            message.memory_usage.add(
                type="GPU" if kind == "cuda" else "CPU",
                id=int(number or 0),
                byte_size=variant.parameter_bytes,
            )
    return message


def _duration(duration: Duration) -> oip.StatisticDuration:
    return oip.StatisticDuration(count=duration.count, ns=duration.total_ns)
