"""What a call's status really says: whether a server took it, and under grpc.aio, how one ended a stream.

A server may end a stream while the client is still writing to it. The write that fails then replaces the
call's status by INTERNAL, "Internal error from Core", often after the true one has come
(https://github.com/grpc/grpc/issues/36066). Each replacement is announced to the call's done callbacks,
so the true status can be noted when it passes.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

T = TypeVar("T")

_MASK = "Internal error from Core"
_NO_SERVER = (
    "connections to all backends failing",
    "failed to connect to all addresses",
    "errors resolving ",
    "DNS resolution failed",
)


def was_never_sent(message: str) -> bool:
    """Whether gRPC says of an UNAVAILABLE call that there was no server to send it to, or none that is ready
    (`backend unhealthy`, by its health check). A connection lost under a call has other words."""
    return message.startswith(_NO_SERVER)


class StatusNotes:
    """Every status that one call has been given."""

    def __init__(self, call: Any) -> None:
        self._seen: list[tuple[grpc.StatusCode, str, grpc.aio.Metadata]] = []
        call.add_done_callback(self._note)

    def unmask(self, error: grpc.RpcError) -> grpc.RpcError | None:
        """The error that ended the call, given the one that was raised; None when it ended well."""
        if error.details() != _MASK:
            return error
        for code, details, trailing in self._seen:
            if details != _MASK:
                if code is grpc.StatusCode.OK:
                    return None
                return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)
        return error

    def _note(self, call: Any) -> None:
        status = _at_once(call.code()), _at_once(call.details()), _at_once(call.trailing_metadata())
        self._seen.append(status)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing left to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("the status of a finished call had to be waited for")
