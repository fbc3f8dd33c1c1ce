"""What can go wrong between a caller and a server, sorted by what the caller can do about it.

    WattserveError
    ├── InvalidRequest      repair the request: a value in it is wrong
    ├── NotFound            name something that exists: no such variant, or the receipt's time is over
    ├── NotPossible         ask another server: this one cannot do it on its device or in its state
    ├── NotAllowed          show an API key, or one that may do this
    ├── Overloaded          come back later: the queue is full and nothing of the request ran
    ├── Unavailable         look at the server: it is down, draining or out of reach
    ├── DeadlineExceeded    give it more time; whether it ran is not known
    ├── Cancelled           nothing: the call was cancelled, or the client was closed under it
    └── ServerError         report it: the server failed, or said something that makes no sense

An input that cannot be sent at all raises `TypeError` or `ValueError` before anything is sent.
Knows nothing of grpc: codes are names here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

DOMAIN = "wattserve"  # ErrorInfo.domain of the server's reasons
DETAILS_KEY = "grpc-status-details-bin"  # of the trailing metadata

# The gRPC status codes by number: the wire's numbers inside a stream's answers.
CODE_NAMES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


class WattserveError(Exception):
    """Base of every error that comes from a call.

    `message`: the server's words, or the transport's. `code`: the name of the gRPC status code, such
    as "NOT_FOUND". `target`: the address that was called. The grpc error, where there was one, is
    `__cause__`.

    What only the server itself can say: `reason`, a word for programs that never changes, such as
    "OVERLOADED"; empty when the error is not the server's. `field`: the path of what is wrong in the
    request, or empty. `retry_after_s`: after how many seconds to come back; None when nothing was said.
    `receipt_id`: of what ran before the failure, and is charged; empty when nothing had, or when nobody said
    (`find_receipts` finds it by your own request id).
    """

    def __init__(
        self,
        message: str,
        code: str,
        target: str,
        *,
        reason: str = "",
        field: str = "",
        retry_after_s: float | None = None,
        receipt_id: str = "",
    ) -> None:
        super().__init__(message, code, target)
        self.message = message
        self.code = code
        self.target = target
        self.reason = reason
        self.field = field
        self.retry_after_s = retry_after_s
        self.receipt_id = receipt_id

    def __str__(self) -> str:
        return f"{self.message or 'no message'} ({self.code} from {self.target})"


class InvalidRequest(WattserveError):
    """INVALID_ARGUMENT, OUT_OF_RANGE: something in the request is wrong."""


class NotFound(WattserveError):
    """NOT_FOUND: the request names something that does not exist there."""


class NotPossible(WattserveError):
    """FAILED_PRECONDITION: well formed, but this server cannot do it."""


class NotAllowed(WattserveError):
    """UNAUTHENTICATED, PERMISSION_DENIED: the server knows no such API key, or the key lacks a right. Nothing
    of the request ran."""


class Overloaded(WattserveError):
    """RESOURCE_EXHAUSTED: the queue is full. Nothing of the request ran, so it may be sent again."""


class Unavailable(WattserveError):
    """UNAVAILABLE: no server, or one that is starting or shutting down.

    A prediction may have run, unless the reason is STARTING_OR_STOPPING, or the call was `never_sent`: no
    server took it.
    """

    never_sent: bool = False


class DeadlineExceeded(WattserveError):
    """DEADLINE_EXCEEDED: no answer in time. A prediction may have run, and been charged."""


class Cancelled(WattserveError):
    """CANCELLED: by the server, or by closing the client while the call was open."""


class ServerError(WattserveError):
    """INTERNAL and every other code; also an answer that breaks the protocol."""


@dataclasses.dataclass(frozen=True, slots=True)
class Details:
    """What the server says of an error beside its code and its words; as in `WattserveError`."""

    reason: str = ""
    field: str = ""
    retry_after_s: float | None = None
    receipt_id: str = ""


def details_in(metadata: Iterable[Any] | None) -> Details:
    """Google's rich error details in a failed call's trailing metadata, which is pairs of key and value.

    Details that make no sense are left out; they never hide the error that they belong to.
    """
    data = next((value for key, value in metadata or () if key == DETAILS_KEY), None)
    if not isinstance(data, bytes):
        return Details()
    # Not at the top: only errors need them, and importing the client must stay light.
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    retry_after_s: float | None = None
    try:
        for detail in status_pb2.Status.FromString(data).details:
            detail.Unpack(info)  # each takes only what is of its own kind
            detail.Unpack(bad_request)
            if detail.Unpack(retry):
                delay = retry.retry_delay
                retry_after_s = max(0.0, float(delay.seconds + delay.nanos / 1e9))
    except DecodeError:
        pass  # what came before it holds
    is_servers = info.domain == DOMAIN
    return Details(
        reason=info.reason if is_servers else "",
        field=next((violation.field for violation in bad_request.field_violations), ""),
        retry_after_s=retry_after_s,
        receipt_id=info.metadata.get("receipt_id", "") if is_servers else "",
    )


BY_CODE: dict[str, type[WattserveError]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "OUT_OF_RANGE": InvalidRequest,
    "NOT_FOUND": NotFound,
    "FAILED_PRECONDITION": NotPossible,
    "UNAUTHENTICATED": NotAllowed,
    "PERMISSION_DENIED": NotAllowed,
    "RESOURCE_EXHAUSTED": Overloaded,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "CANCELLED": Cancelled,
}


_TLS = re.compile(r"\bTls\.(ca|cert|key|server_name)\b")


def in_shared_flags(message: str) -> str:
    """The library's words, with options in place of its arguments: those that every command has that calls a
    server."""
    in_options = _TLS.sub(lambda match: f"--tls-{match[1].replace('_', '-')}", message)
    return in_options.replace("pass tls=", "pass --tls").replace("api_key_file", "--api-key-file")


def error_for(code: str, message: str, target: str, details: Details | None = None) -> WattserveError:
    """The error of a status code's name."""
    details = details or Details()
    kind = BY_CODE.get(code, ServerError)
    if code == "RESOURCE_EXHAUSTED" and not details.reason and "larger than max" in message:
        # gRPC's own limit on a message, not the server's queue: coming back later cannot help.
        kind, message = InvalidRequest, f"{message}; send less in one request"
    return kind(message, code, target, **dataclasses.asdict(details))


def error_for_number(
    number: int, message: str, target: str, details: Details | None = None
) -> WattserveError:
    """The error of a status code's number; a number that gRPC does not have counts as UNKNOWN."""
    code = CODE_NAMES[number] if 0 < number < len(CODE_NAMES) else "UNKNOWN"
    return error_for(code, message, target, details)
