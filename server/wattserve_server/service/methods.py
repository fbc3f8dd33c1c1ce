"""From a service's descriptor and an object with its methods to what grpc registers.

Messages are parsed here rather than by grpc, so that bytes which are no message end with INVALID_ARGUMENT
like any other bad request, and every error passes the one table in `status`. The path under which a service
is found need not be its descriptor's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from wattserve_server.errors import InvalidRequest
from wattserve_server.service.status import failure_of


def handlers(path: str, service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """servicer: has an async method of the name of each of the service's."""
    return grpc.method_handlers_generic_handler(
        path, {method.name: _handler(method, getattr(servicer, method.name)) for method in service.methods}
    )


def _handler(method: MethodDescriptor, behaviour: Callable[..., Any]) -> Any:
    parse = _parser(method.input_type)
    write = GetMessageClass(method.output_type).SerializeToString
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(
            _streaming(behaviour, lambda requests: _parsed(requests, parse)), None, write
        )
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_streaming(behaviour, parse), None, write)
    return grpc.unary_unary_rpc_method_handler(_unary(behaviour, parse), None, write)


def _parser(kind: Descriptor) -> Callable[[bytes], Message]:
    message = GetMessageClass(kind)

    def parse(data: bytes) -> Message:
        try:
            return message.FromString(data)
        except DecodeError as error:
            raise InvalidRequest(f"these {len(data)} bytes are not a message {kind.name}: {error}") from error

    return parse


async def _parsed(
    requests: AsyncIterator[bytes], parse: Callable[[bytes], Message]
) -> AsyncIterator[Message]:
    async for data in requests:
        yield parse(data)


def _unary(
    behaviour: Callable[[Any, Any], Awaitable[Message]], parse: Callable[[bytes], Message]
) -> Callable[[bytes, Any], Awaitable[Message]]:
    async def handle(data: bytes, context: Any) -> Message:
        try:
            return await behaviour(parse(data), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error)

    return handle


def _streaming(
    behaviour: Callable[[Any, Any], AsyncIterator[Message]], parse: Callable[[Any], Any]
) -> Callable[[Any, Any], AsyncIterator[Message]]:
    async def handle(data: Any, context: Any) -> AsyncIterator[Message]:
        try:
            async for reply in behaviour(parse(data), context):
                yield reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error)

    return handle


async def _abort(context: Any, error: Exception) -> NoReturn:
    failure = failure_of(error)
    await context.abort(failure.kind.code, failure.message, failure.metadata())
    raise AssertionError("abort returned")
