"""The one table from the server's errors to what a caller is told: a gRPC code, a message, rich details.

The details are Google's: ErrorInfo with a stable reason, BadRequest with the path of the wrong field,
RetryInfo where coming back later helps. They travel in the trailing metadata of a failed call.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2, status_pb2

from wattserve_server import errors

log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str | bytes], ...]

DOMAIN = "wattserve"
"""ErrorInfo.domain: whose reasons these are."""

RETRY_AFTER_MS = 100
"""What an overloaded server asks clients to wait; gRPC's own retries honour it."""

MAX_MESSAGE = 600
"""Bytes of an error's message."""

INTERNAL_MESSAGE = "internal error; the server's log has the details"


@dataclass(frozen=True, slots=True)
class Kind:
    """What is told of one class of errors. reason: ErrorInfo.reason, which never changes."""

    code: grpc.StatusCode
    reason: str
    retry_after_ms: int = 0


KINDS: dict[type[errors.WattserveError], Kind] = {
    errors.InvalidRequest: Kind(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    errors.NotFound: Kind(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    errors.NotPossibleHere: Kind(grpc.StatusCode.FAILED_PRECONDITION, "NOT_POSSIBLE_HERE"),
    errors.OverloadedError: Kind(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", RETRY_AFTER_MS),
    errors.UnavailableError: Kind(grpc.StatusCode.UNAVAILABLE, "STARTING_OR_STOPPING"),
    errors.ExpiredError: Kind(grpc.StatusCode.DEADLINE_EXCEEDED, "EXPIRED_IN_QUEUE"),
    errors.UnsupportedError: Kind(grpc.StatusCode.UNIMPLEMENTED, "NOT_OFFERED"),
    errors.InferenceError: Kind(grpc.StatusCode.INTERNAL, "INFERENCE_FAILED"),
}

LATE = Kind(grpc.StatusCode.DEADLINE_EXCEEDED, "")
LEFT = Kind(grpc.StatusCode.CANCELLED, "")
"""Callers who are not there any more to be told anything."""

BUG = Kind(grpc.StatusCode.INTERNAL, "INTERNAL")
"""An error that is in no table."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What the caller is told of one error. field: its path in the request, or empty."""

    kind: Kind
    message: str
    field: str = ""
    description: str = ""

    def metadata(self) -> Metadata:
        """The trailing metadata: the rich details, and gRPC's own push-back."""
        status = status_pb2.Status(code=self.kind.code.value[0], message=self.message)
        info = error_details_pb2.ErrorInfo(reason=self.kind.reason, domain=DOMAIN)
        status.details.add().Pack(info)
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.description
            )
            status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
        push_back: Metadata = ()
        if self.kind.retry_after_ms:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(self.kind.retry_after_ms)
            status.details.add().Pack(retry)
            push_back = (("grpc-retry-pushback-ms", str(self.kind.retry_after_ms)),)
        return (("grpc-status-details-bin", status.SerializeToString()), *push_back)


def kind_of(error: Exception) -> Kind:
    return KINDS.get(type(error), BUG)  # type: ignore[arg-type]


def failure_of(error: Exception) -> Failure:
    """What the caller is told. An unmapped error is a bug: it is logged and not shown."""
    kind = kind_of(error)
    if kind is BUG:
        log.error("unexpected %s", type(error).__name__, exc_info=error)
        return Failure(BUG, INTERNAL_MESSAGE)
    field, description = _shortened(getattr(error, "field", "")), _shortened(str(error))
    message = _shortened(f"{field}: {error}" if field else str(error))
    return Failure(kind, message, field, description)


def _shortened(text: str) -> str:
    """It may repeat what the caller sent, and metadata has a hard limit."""
    data = text.encode(errors="replace")
    if len(data) <= MAX_MESSAGE:
        return text
    head, tail = data[: MAX_MESSAGE // 2], data[-MAX_MESSAGE // 2 :]
    return f"{head.decode(errors='ignore')} ... {tail.decode(errors='ignore')}"
