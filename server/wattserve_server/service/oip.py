"""The Open Inference Protocol v2 with Triton's extensions, as `inference.GRPCInferenceService`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.engine.roster import State
from wattserve_server.errors import InvalidRequest, NotFound, UnsupportedError
from wattserve_server.service import oip_describe as describe
from wattserve_server.service.checks import MAX_SHOWN
from wattserve_server.service.oip_names import DESCRIBED, LOADED, alias, alias_of, entry_of
from wattserve_server.service.oip_reply import parameter, response, stream_error
from wattserve_server.service.oip_request import OipCall
from wattserve_server.service.prediction import Predictor
from wattserve_server.service.serving import Serving
from wattserve_server.service.status import failure_of
from wattserve_server.service.streams import answers
from wattserve_server.telemetry.statistics import Statistics


class OipService:
    def __init__(self, serving: Serving, predictor: Predictor, statistics: Statistics) -> None:
        self._serving = serving
        self._predictor = predictor
        self._statistics = statistics

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
            state = entry_of(engine, request.name, request.version, DESCRIBED).state
        except NotFound:  # as Triton says it: not ready, rather than an error
            return oip.ModelReadyResponse(ready=False)
        would_load = engine.loader.rules.is_lazy and state is not State.FAILED
        return oip.ModelReadyResponse(ready=state is State.READY or would_load)

    async def ServerMetadata(self, request: Any, context: Any) -> oip.ServerMetadataResponse:
        return describe.server_metadata()

    async def ModelMetadata(
        self, request: oip.ModelMetadataRequest, context: Any
    ) -> oip.ModelMetadataResponse:
        ready = self._serving.get()
        entry_of(ready.engine, request.name, request.version, DESCRIBED)
        return describe.model_metadata(request.name, ready)

    async def ModelConfig(self, request: oip.ModelConfigRequest, context: Any) -> oip.ModelConfigResponse:
        ready = self._serving.get()
        entry = entry_of(ready.engine, request.name, request.version, DESCRIBED)
        return oip.ModelConfigResponse(config=describe.model_config(request.name, ready, entry.choice))

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
            found = self._statistics.of(engine.roster.names if variant is None else [variant])
            entry = None if variant is None else engine.roster.named(variant)
            message.model_stats.append(describe.model_statistics(name, found, entry))
        return message

    async def ModelInfer(self, request: oip.ModelInferRequest, context: Any) -> oip.ModelInferResponse:
        return await self._infer(request, context.time_remaining())

    async def ModelStreamInfer(
        self, request_iterator: AsyncIterator[oip.ModelInferRequest], context: Any
    ) -> AsyncIterator[oip.ModelStreamInferResponse]:
        """Answers come in the order of the requests, as Triton's do for models that answer each once."""

        async def answer(request: oip.ModelInferRequest) -> oip.ModelStreamInferResponse:
            return await self._streamed(request, context.time_remaining())

        async for reply in answers(request_iterator, answer, self._serving, in_order=True):
            yield reply

    async def RepositoryIndex(
        self, request: oip.RepositoryIndexRequest, context: Any
    ) -> oip.RepositoryIndexResponse:
        return describe.model_index(self._serving.get(), request.ready)

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
        variant = entry_of(engine, name, "", LOADED).choice.name
        await engine.loader.load_on_request(variant, LOADED.name)
        return oip.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(
        self, request: oip.RepositoryModelUnloadRequest, context: Any
    ) -> oip.RepositoryModelUnloadResponse:
        engine = self._serving.get().engine
        name = request.model_name or request.repository_name
        await engine.loader.unload(entry_of(engine, name, "", LOADED).choice.name)
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

    async def _infer(self, request: oip.ModelInferRequest, left_s: float | None) -> oip.ModelInferResponse:
        return response(request, await self._predictor.predict(OipCall(request), left_s))

    async def _streamed(
        self, request: oip.ModelInferRequest, left_s: float | None
    ) -> oip.ModelStreamInferResponse:
        """An error ends its request, not the stream."""
        try:
            reply = await self._infer(request, left_s)
        except Exception as error:
            return stream_error(request, failure_of(error))
        reply.parameters["triton_final_response"].CopyFrom(parameter(True))
        return oip.ModelStreamInferResponse(infer_response=reply)
