"""The ingress' wrapping, around a stand-in for Ray's server: what a replica answers reaches a client as from
a server that listens itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from wattserve_client import AsyncClient, NotFound, Unavailable
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import NotFound as NotFoundError
from wattserve_server.ray_serve import envelope, ingress
from wattserve_server.ray_serve.envelope import Asked, Status
from wattserve_server.service.status import failure_of


class RayLike:
    """Does with what is added what Ray's server does: puts handlers of its own in the place of each."""

    def __init__(self, answer: Callable[[str, Any, Any], Any]) -> None:
        """answer: of a call's path, what Ray carries to a replica, and the context: bytes, or several."""
        self.server = grpc.aio.server()
        self._answer = answer

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        (handler,) = handlers
        handler._method_handlers = {
            path: old._replace(
                unary_unary=self._one(path),
                unary_stream=self._several(path),
                stream_stream=self._several(path),
            )
            for path, old in handler._method_handlers.items()
        }
        self.server.add_generic_rpc_handlers(handlers)

    def _one(self, path: str) -> Any:
        async def routed(asked: Any, context: Any) -> bytes:
            return bytes(self._answer(path, asked, context))

        return routed

    def _several(self, path: str) -> Any:
        async def routed(asked: Any, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._answer(path, asked, context):
                yield reply

        return routed

    async def start(self) -> str:
        ingress.add_inference(None, self)
        ingress.add_open_inference(None, self)
        ingress.add_health(None, self)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return f"127.0.0.1:{port}"


async def test_a_call_brings_its_deadline_and_takes_its_answer_back() -> None:
    calls = []

    def answer(path: str, asked: Asked, context: Any) -> bytes:
        calls.append((path, asked))
        return envelope.message(pb.ServerInfo(instance_id="abc").SerializeToString()).SerializeToString()

    ray = RayLike(answer)
    async with AsyncClient(await ray.start()) as client:
        assert (await client.server_info(timeout_s=50)).instance_id == "abc"
    ((path, asked),) = calls
    assert path == "/wattserve.v1.Inference/GetServerInfo"
    assert asked.left_s is not None
    assert 0 < asked.left_s <= 51
    await ray.server.stop(0)


async def test_an_error_has_its_details() -> None:
    failure = failure_of(NotFoundError("there is none", "variant"))

    def answer(path: str, asked: Asked, context: Any) -> bytes:
        ended = Status(failure.reaction.code.value[0], failure.message, failure.metadata())
        return envelope.status(ended).SerializeToString()

    ray = RayLike(answer)
    async with AsyncClient(await ray.start()) as client:
        with pytest.raises(NotFound) as told:
            await client.predict("a film", variant="fp9")
    assert (told.value.reason, told.value.field) == ("NOT_FOUND", "variant")
    await ray.server.stop(0)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly", ingress.WHY_DIED),
        ("Application metadata not set. Ping ...", ingress.WHY_NONE),
    ],
)
async def test_what_ray_says_itself_is_said_better(said: str, told: str) -> None:
    def answer(path: str, asked: Asked, context: Any) -> bytes:
        context.set_code(grpc.StatusCode.INTERNAL)
        context.set_details(said)
        return b""

    ray = RayLike(answer)
    async with AsyncClient(await ray.start(), retry=False) as client:
        with pytest.raises(Unavailable, match=told[:40]):
            await client.predict("a film")
    await ray.server.stop(0)


async def test_a_stream_brings_its_deadline_first_and_ends_with_its_status() -> None:
    brought = []

    async def answer(path: str, asking: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:
        yield envelope.HEAD
        async for message in asking:
            brought.append(message)
            yield envelope.message(b"" if isinstance(message, Asked) else message).SerializeToString()
        yield envelope.status(Status(5, "gone", (("reason", "x"),))).SerializeToString()

    ray = RayLike(answer)
    async with grpc.aio.insecure_channel(await ray.start()) as channel:
        method: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        call = method(iter([b"one", b"two"]), timeout=50)
        assert [await call.read() for _ in range(3)] == [b"", b"one", b"two"]
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        assert (await call.code(), await call.details()) == (grpc.StatusCode.NOT_FOUND, "gone")
        assert ("reason", "x") in tuple(await call.trailing_metadata())
    first, *rest = brought
    assert isinstance(first, Asked)
    assert rest == [b"one", b"two"]
    await ray.server.stop(0)


def test_every_method_is_there() -> None:
    names = [method.name for service in ingress.PATHS.values() for method in service.methods]
    assert len(names) == len(set(names))  # a deployment has one method of a name
    assert {"Predict", "ModelInfer", "Check"} <= set(names)
