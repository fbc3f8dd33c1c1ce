"""The functions that add our services to Ray's gRPC ingress, as its `grpc_servicer_functions` name them.

Ray puts handlers of its own in the place of those that are added, which hand each call to a replica. Here
they are wrapped once more, so that deadlines and details of errors come through (see `envelope`). Runs in a
process of Ray's, so that it imports neither torch nor the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_health.v1 import health_pb2

from wattserve_proto.oip import open_inference_pb2
from wattserve_proto.v1 import inference_pb2
from wattserve_server.ray_serve.envelope import Asked, Status, opened

NATIVE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]
OIP = open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
PATHS = {  # the public name of the Open Inference Protocol's package is not the descriptor's
    NATIVE.full_name: NATIVE,
    f"inference.{OIP.name}": OIP,
    HEALTH.full_name: HEALTH,
}

# What Ray says of a replica that died under a call.
DIED = ("ActorDiedError", "ActorUnavailableError", "WorkerCrashedError", "The actor died", "actor is dead")
WHY_DIED = "the replica that was at work on this has died; a prediction may have run"

# What it says where no application is up, and where there are several.
NO_APPLICATION = "Application metadata not set"
WHY_NONE = (
    "no application of Ray Serve is up yet; or there are several, and the call names none of them in its "
    "metadata 'application'"
)


def add_inference(servicer: object, server: Any) -> None:
    """`wattserve.v1.Inference`."""
    _add(NATIVE.full_name, server)


def add_open_inference(servicer: object, server: Any) -> None:
    """`inference.GRPCInferenceService`."""
    _add(f"inference.{OIP.name}", server)


def add_health(servicer: object, server: Any) -> None:
    """`grpc.health.v1.Health`: as the replica that is asked finds itself."""
    _add(HEALTH.full_name, server)


def _add(path: str, server: Any) -> None:
    service: ServiceDescriptor = PATHS[path]
    named = {method.name: _handler(method) for method in service.methods}
    generic: Any = grpc.method_handlers_generic_handler(path, named)
    server.add_generic_rpc_handlers((generic,))
    routed = generic._method_handlers  # by now Ray's
    for name, handler in routed.items():
        routed[name] = handler._replace(
            unary_unary=_one(handler.unary_unary),
            unary_stream=_several(handler.unary_stream, _asked),
            stream_stream=_several(handler.stream_stream, _asking),
        )


def _handler(method: MethodDescriptor) -> Any:
    """Of bytes, which Ray hands on as they are."""
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(_unrouted)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_unrouted)
    return grpc.unary_unary_rpc_method_handler(_unrouted)


def _unrouted(*_: Any) -> Any:
    raise AssertionError("Ray has put no handler in the place of this one")


def _asked(data: bytes, context: Any) -> Asked:
    return Asked(context.time_remaining(), data)


async def _asking(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Asked | bytes]:
    yield Asked(context.time_remaining())
    async for data in messages:
        yield data


def _one(routed: Callable[[Asked, Any], Any]) -> Callable[[bytes, Any], Any]:
    async def handle(data: bytes, context: Any) -> bytes:
        reply = await routed(_asked(data, context), context)
        told = opened(reply) if reply else None
        if isinstance(told, Status):
            await _end(told, context)
        if told is None:
            _say_better(context)
        return told if isinstance(told, bytes) else b""

    return handle


def _several(
    routed: Callable[[Any, Any], AsyncIterator[bytes]], asked: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], AsyncIterator[bytes]]:
    async def handle(data: Any, context: Any) -> AsyncIterator[bytes]:
        async for reply in routed(asked(data, context), context):
            told = opened(reply)
            if isinstance(told, bytes):
                yield told
            elif isinstance(told, Status):
                await _end(told, context)
            else:
                await context.send_initial_metadata(())
        _say_better(context)

    return handle


async def _end(told: Status, context: Any) -> None:
    code = next(code for code in grpc.StatusCode if code.value[0] == told.code)
    await context.abort(code, told.message, told.metadata)


def _say_better(context: Any) -> None:
    """Of a call that Ray itself has ended: the death of a replica is no bug of what was asked, and what has
    no replica yet may be asked again."""
    details = context.details() or ""
    if isinstance(details, bytes):
        details = details.decode(errors="replace")
    for words, why in ((DIED, WHY_DIED), ((NO_APPLICATION,), WHY_NONE)):
        if any(word in details for word in words):
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            context.set_details(why)
