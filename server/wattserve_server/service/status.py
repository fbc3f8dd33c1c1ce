"""The one table from the server's errors to gRPC codes, and the wrappers that apply it."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc

from wattserve_server import errors

log = logging.getLogger(__name__)

CODES: dict[type[errors.WattserveError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.NotPossibleHere: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.ExpiredError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.InferenceError: grpc.StatusCode.INTERNAL,
}

RETRY_AFTER_MS = 100
"""What an overloaded server asks clients to wait; gRPC's own retries honour it."""

MAX_MESSAGE = 600
"""Characters of an error's message."""

INTERNAL_MESSAGE = "internal error; the server's log has the details"

Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Reply = TypeVar("Reply")


def code_and_message(error: Exception) -> tuple[grpc.StatusCode, str]:
    """What the caller is told. An unmapped error is a bug: it is logged and not shown."""
    code = CODES.get(type(error))  # type: ignore[arg-type]
    if code is None:
        log.error("unexpected %s", type(error).__name__, exc_info=error)
        return grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE
    field = getattr(error, "field", "")
    message = f"{field}: {error}" if field else str(error)
    if len(message) > MAX_MESSAGE:  # it may repeat what the caller sent, and metadata has a hard limit
        message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
    return code, message


async def _abort(context: Any, error: Exception) -> NoReturn:
    code, message = code_and_message(error)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        context.set_trailing_metadata((("grpc-retry-pushback-ms", str(RETRY_AFTER_MS)),))
    await context.abort(code, message)
    raise AssertionError("abort returned")


def unary(
    handler: Callable[[Servicer, Request, Any], Awaitable[Reply]],
) -> Callable[[Servicer, Request, Any], Awaitable[Reply]]:
    """A unary handler whose errors become gRPC statuses."""

    @functools.wraps(handler)
    async def wrapped(self: Servicer, request: Request, context: Any) -> Reply:
        try:
            return await handler(self, request, context)
        except Exception as error:
            await _abort(context, error)

    return wrapped


def streaming(
    handler: Callable[[Servicer, Request, Any], AsyncIterator[Reply]],
) -> Callable[[Servicer, Request, Any], AsyncIterator[Reply]]:
    """A handler with a stream of replies whose errors become gRPC statuses."""

    @functools.wraps(handler)
    async def wrapped(self: Servicer, request: Request, context: Any) -> AsyncIterator[Reply]:
        try:
            async for reply in handler(self, request, context):
                yield reply
        except Exception as error:
            await _abort(context, error)

    return wrapped
