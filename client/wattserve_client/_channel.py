"""What both clients share around a channel: options, retries, deadlines, and what errors become.

Retries are gRPC's own, by a service config. A read may be repeated when the server was out of reach.
A prediction is repeated only on RESOURCE_EXHAUSTED, where the server promises that nothing of it ran;
one whose fate is not known is never repeated, because it would be charged twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from wattserve_client._requests import MAX_MESSAGE_BYTES
from wattserve_client.errors import Cancelled, ServerError, WattserveError, error_for

DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_TIMEOUT_S = 30.0
DEFAULT_IN_FLIGHT = 64

_SERVICE = "wattserve.v1.Inference"
_READS = ("GetReceipt", "GetServerInfo", "GetEnergyReport")

M = TypeVar("M")
R = TypeVar("R")


def _retry_policy(code: str, first_pause: str) -> dict[str, Any]:
    return {
        "maxAttempts": 5,
        "initialBackoff": first_pause,
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": [code],
    }


_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": _SERVICE, "method": method} for method in _READS],
                "retryPolicy": _retry_policy("UNAVAILABLE", "0.2s"),
            },
            {
                "name": [{"service": _SERVICE, "method": "Predict"}],
                "retryPolicy": _retry_policy("RESOURCE_EXHAUSTED", "0.05s"),
            },
        ]
    }
)


class Link:
    """One client's link to its server, all but the channel: address, options, deadlines, errors."""

    def __init__(self, target: str, timeout_s: float, retry: bool) -> None:
        if not isinstance(target, str) or not target:
            raise ValueError(f"target is {target!r}; it must be an address such as {DEFAULT_TARGET!r}")
        self.target = target
        self.timeout_s = _seconds(timeout_s)
        self.options: list[tuple[str, int | str]] = [
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            # A restarted server is found again within seconds; gRPC's own pauses grow to two minutes.
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 5000),
            # What a call has sent is kept for its retry up to this size; beyond it there is no retry.
            ("grpc.per_rpc_retry_buffer_size", 2 * MAX_MESSAGE_BYTES),
        ]
        if retry:
            self.options.append(("grpc.service_config", _SERVICE_CONFIG))

    def seconds(self, timeout_s: float | None) -> float:
        """A call's own deadline in seconds, or the client's."""
        return self.timeout_s if timeout_s is None else _seconds(timeout_s)

    def failure(self, error: grpc.RpcError) -> WattserveError:
        """The error to raise for a grpc error, which is its cause."""
        failure = error_for(error.code().name, error.details() or "", self.target)
        failure.__cause__ = error
        return failure

    def closed(self) -> Cancelled:
        """The error to raise from a call that was open when its client was closed."""
        return Cancelled("the client was closed", "CANCELLED", self.target)

    def read(self, convert: Callable[[M], R], message: M) -> R:
        """The result in a reply; ServerError when the reply makes no sense."""
        try:
            return convert(message)
        except ValueError as error:
            raise self.nonsense(str(error)) from error

    def nonsense(self, what: str) -> ServerError:
        """The error to raise when the server breaks the protocol."""
        return ServerError(f"the server's answer makes no sense: {what}", "INTERNAL", self.target)


def _seconds(timeout_s: float) -> float:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s is {timeout_s!r}; it must be a number of seconds")
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s is {timeout_s!r}; it must be a positive, finite number of seconds")
    return float(timeout_s)
