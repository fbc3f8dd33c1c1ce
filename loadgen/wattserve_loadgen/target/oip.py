"""A peer: any server of the Open Inference Protocol (Triton, MLServer, KServe), in the words of the native
protocol, so that the rest of loadgen does not change.

A model of the peer stands for a variant. It has no receipts and no ledger; its joules are `own_meter`'s.
Knows nothing of the hot path, which sends over `connection` the bytes that `make_requests` made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from wattserve_client import ServerInfo, Tls
from wattserve_client.wire import from_message
from wattserve_common.dataset import Dataset
from wattserve_loadgen.errors import PlanError, TargetError
from wattserve_loadgen.target.oip_tensors import Feed, choose_feed, fill_inputs, read_answer
from wattserve_loadgen.target.wire import MODEL_INFER, Connection, cause, open_channel
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb

NO_METER = "a server of the Open Inference Protocol says nothing of energy"
_SERVICE = "/inference.GRPCInferenceService"
_QUESTION_S = 30.0
_SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAUTHENTICATED)
# Names of outputs whose rows are scores of classes; others, such as an embedding, predict no label.
_SCORES = ("logit", "output", "prob", "score", "class", "label")
_MOST_LABELS = 100_000


class OipTarget:
    """One server. Every question raises TargetError when it does not answer."""

    protocol = "open inference protocol"

    def __init__(self, address: str, model: str, tls: Tls | None = None) -> None:
        """model: a name, or several joined by commas, each of which becomes a variant."""
        self.address = address
        self.models = tuple(dict.fromkeys(name.strip() for name in model.split(",") if name.strip()))
        if not self.models:
            raise PlanError("no model named: a server of the Open Inference Protocol hosts many")
        self.connection = Connection(address, MODEL_INFER, tls=tls)
        self._channel = open_channel(address, tls)
        self._feeds: dict[str, Feed] = {}

    async def server_info(self, limit_s: float = _QUESTION_S) -> ServerInfo:
        """What the server says of itself and of the models; TargetError when nobody answers within `limit_s`,
        or when a model is unknown, not ready, or cannot be fed.
        """
        try:
            live = await self._ask("ServerLive", oip.ServerLiveRequest(), limit_s)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                raise TargetError(
                    f"{self.address} speaks gRPC, but not the Open Inference Protocol; is it the right port?"
                ) from None
            raise self._lost(error) from None
        if not live.live:
            raise TargetError(
                f"{self.address} answers, and says that it is not live; wait until it has started"
            )
        try:
            server = await self._ask("ServerMetadata", oip.ServerMetadataRequest(), limit_s)
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from None
        described = [await self._describe(name, limit_s) for name in self.models]
        self._feeds = {feed.model: feed for feed, _ in described}
        return self._synthesised(server, [metadata for _, metadata in described])

    async def close(self) -> None:
        await self._channel.close()

    def make_requests(self, dataset: Dataset, groups: Sequence[Sequence[int]], variant: str) -> list[bytes]:
        """A serialised request for each group of row numbers, padded to its longest; equal groups share their
        bytes. Needs `server_info` first. Raises PlanError for rows that the model's shapes do not allow.
        """
        feed = self._feeds.get(variant)
        if feed is None:
            raise PlanError(f"unknown model {variant!r}; asked for were {', '.join(self.models)}")
        requests = {group: self._request(feed, dataset, group) for group in set(map(tuple, groups))}
        return [requests[tuple(group)] for group in groups]

    def read(self, answer: bytes) -> pb.PredictResponse:
        """The answer in native words; `variant` is the model that answered. Raises ValueError, with words
        for the failure of that request, when there are no logits in it.
        """
        return read_answer(answer)

    def _request(self, feed: Feed, dataset: Dataset, group: tuple[int, ...]) -> bytes:
        if bool(dataset.pixel_shape) != (feed.pixels is not None):
            held, taken = ("images", "tokens") if dataset.pixel_shape else ("tokens", "images")
            raise PlanError(f"{dataset.folder}: holds {held}, and model {feed.model!r} takes {taken}")
        request = oip.ModelInferRequest(model_name=feed.model)
        if feed.output:
            request.outputs.add(name=feed.output)
        fill_inputs(feed, [dataset.rows[row] for row in group], request)
        return request.SerializeToString()

    async def _describe(self, name: str, limit_s: float) -> tuple[Feed, oip.ModelMetadataResponse]:
        try:
            ready = await self._ask("ModelReady", oip.ModelReadyRequest(name=name), limit_s)
            if not ready.ready:
                raise TargetError(
                    f"{self.address}: the model {name!r} is not ready or not there"
                    f"{await self._others(limit_s)}"
                )
            metadata = await self._ask("ModelMetadata", oip.ModelMetadataRequest(name=name), limit_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in _SILENT:
                raise self._lost(error) from None
            raise TargetError(
                f"{self.address}: the model {name!r} cannot be asked: {cause(error)}"
                f"{await self._others(limit_s)}"
            ) from None
        return choose_feed(name, metadata, await self._config(name, limit_s)), metadata

    async def _config(self, model: str, limit_s: float) -> oip.ModelConfig | None:
        """None where the server has none: an extension of Triton's."""
        try:
            reply = await self._ask("ModelConfig", oip.ModelConfigRequest(name=model), limit_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in _SILENT:
                raise self._lost(error) from None
            return None
        config: oip.ModelConfig = reply.config
        return config

    async def _others(self, limit_s: float) -> str:
        """Which models there are, where the server says."""
        try:
            index = await self._ask("RepositoryIndex", oip.RepositoryIndexRequest(), limit_s)
        except grpc.aio.AioRpcError:
            return ""
        states = {model.name: model.state or "UNKNOWN" for model in index.models}
        return (
            f"; it has {', '.join(f'{name} ({state})' for name, state in states.items())}" if states else ""
        )

    def _synthesised(
        self, server: oip.ServerMetadataResponse, described: Sequence[oip.ModelMetadataResponse]
    ) -> ServerInfo:
        feeds = list(self._feeds.values())
        shapes = {feed.pixel_shape for feed in feeds}
        if len(shapes) > 1:
            raise TargetError(f"{self.address}: the models {', '.join(self.models)} take different inputs")
        version = f"{server.name} {server.version}".strip()
        info = pb.ServerInfo(
            server_version=version,
            model_name=self.models[0],
            model_source="; ".join(dict.fromkeys(model.platform for model in described if model.platform)),
            task="sequence-classification" if _labels(feeds) else "",
            labels=_labels(feeds),
            default_variant=self.models[0],
            variants=[
                pb.VariantInfo(
                    name=feed.model,
                    detail=feed.detail,
                    state=pb.VARIANT_STATE_READY,
                    verification="a peer's model: what it runs at is its own word, and nobody has seen it",
                )
                for feed in feeds
            ],
            meter=pb.MeterInfo(
                source=pb.EnergySource(
                    name="none", method="none", quality=pb.ENERGY_QUALITY_NONE, note=NO_METER
                )
            ),
            limits=pb.Limits(
                max_sequence_tokens=min((feed.length for feed in feeds if feed.length), default=0),
                max_request_sequences=min(
                    (most for feed in feeds if (most := feed.batch or feed.max_batch)), default=0
                ),
            ),
            versions={server.name: server.version} if server.name else {},
            pixel_shape=shapes.pop(),
        )
        return from_message(ServerInfo, info)

    async def _ask(self, name: str, request: Any, limit_s: float) -> Any:
        call: Any = self._channel.unary_unary(
            f"{_SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(oip, f"{name}Response").FromString,
        )
        return await call(request, timeout=limit_s)

    def _lost(self, error: grpc.aio.AioRpcError) -> TargetError:
        return TargetError(f"{self.address} does not answer: {error.code().name} {cause(error)}".rstrip())


def _labels(feeds: Sequence[Feed]) -> list[str]:
    """Numbers: the protocol has no names. None where the models do not all score the same classes."""
    widths = {feed.width for feed in feeds}
    named = all(any(word in feed.output.lower() for word in _SCORES) for feed in feeds)
    width = widths.pop() if len(widths) == 1 else None
    return [str(index) for index in range(width)] if named and width and width <= _MOST_LABELS else []
