"""What the server says of an error beside its code and its words: Google's rich error details.

Knows nothing of grpc: metadata is pairs here. Details that make no sense are left out; they never hide
the error that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

DOMAIN = "wattserve"
"""ErrorInfo.domain of the server's reasons."""

_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class Details:
    """As in `WattserveError`."""

    reason: str = ""
    field: str = ""
    retry_after_s: float | None = None


def details_in(metadata: Iterable[Any] | None) -> Details:
    """What a failed call's trailing metadata, pairs of key and value, holds."""
    for key, value in metadata or ():
        if key == _KEY and isinstance(value, bytes):
            return _read(value)
    return Details()


def _read(data: bytes) -> Details:
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
                retry_after_s = _seconds(retry.retry_delay)
    except DecodeError:
        pass  # what came before it holds
    return Details(
        reason=info.reason if info.domain == DOMAIN else "",
        field=next((each.field for each in bad_request.field_violations), ""),
        retry_after_s=retry_after_s,
    )


def _seconds(delay: Any) -> float:
    return max(0.0, float(delay.seconds + delay.nanos / 1e9))
