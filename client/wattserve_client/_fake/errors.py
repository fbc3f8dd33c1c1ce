"""How the fake server of `testing` refuses, in the real server's form on the wire. Pure: no grpc."""

from __future__ import annotations

from dataclasses import dataclass

from wattserve_client import errors
from wattserve_client._details import DOMAIN
from wattserve_proto.v1 import inference_pb2 as pb

REASONS = {
    "INVALID_ARGUMENT": "INVALID_REQUEST",
    "NOT_FOUND": "NOT_FOUND",
    "FAILED_PRECONDITION": "NOT_POSSIBLE_HERE",
    "RESOURCE_EXHAUSTED": "OVERLOADED",
    "UNAVAILABLE": "STARTING_OR_STOPPING",
    "DEADLINE_EXCEEDED": "EXPIRED_IN_QUEUE",
    "UNIMPLEMENTED": "NOT_OFFERED",
    "INTERNAL": "INFERENCE_FAILED",
}
"""The real server's reason (ErrorInfo.reason) for each status code it ends a call with."""

OVERLOADED_RETRY_AFTER_S = 0.1

MAX_MESSAGE = 600
"""Characters. Metadata has a hard limit, and an error may repeat what the caller sent."""

_CODES: dict[type[errors.WattserveError], str] = {
    errors.InvalidRequest: "INVALID_ARGUMENT",
    errors.NotFound: "NOT_FOUND",
    errors.NotPossible: "FAILED_PRECONDITION",
    errors.Overloaded: "RESOURCE_EXHAUSTED",
    errors.Unavailable: "UNAVAILABLE",
    errors.DeadlineExceeded: "DEADLINE_EXCEEDED",
    errors.Cancelled: "CANCELLED",
    errors.ServerError: "INTERNAL",
}


@dataclass(eq=False)
class Refusal(Exception):
    """Ends a call. code: a gRPC status code's name. field: the path of what is wrong, or empty."""

    code: str
    message: str
    field: str = ""
    reason: str = ""
    retry_after_s: float | None = None

    @property
    def text(self) -> str:
        whole = f"{self.field}: {self.message}" if self.field else self.message
        if len(whole) <= MAX_MESSAGE:
            return whole
        return f"{whole[: MAX_MESSAGE // 2]} ... {whole[-MAX_MESSAGE // 2 :]}"

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The trailing metadata: Google's rich details, and gRPC's own push-back."""
        from google.rpc import error_details_pb2, status_pb2

        if not self.reason:
            return ()
        status = status_pb2.Status(code=errors.CODE_NAMES.index(self.code), message=self.text)
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN))
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.message[:MAX_MESSAGE]
            )
            status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
        push_back: tuple[tuple[str, str | bytes], ...] = ()
        if self._retry_after_ms:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(self._retry_after_ms)
            status.details.add().Pack(retry)
            push_back = (("grpc-retry-pushback-ms", str(self._retry_after_ms)),)
        return (("grpc-status-details-bin", status.SerializeToString()), *push_back)

    def on_a_stream(self, request_id: str) -> pb.PredictStreamResponse:
        """The same as one of a stream's answers."""
        told = pb.PredictError(
            code=errors.CODE_NAMES.index(self.code),
            message=self.text,
            reason=self.reason,
            field=self.field,
            retry_after_ms=self._retry_after_ms,
        )
        return pb.PredictStreamResponse(request_id=request_id, error=told)

    @property
    def _retry_after_ms(self) -> int:
        return round((self.retry_after_s or 0) * 1000)


def refusal(
    error: str | type[errors.WattserveError],
    message: str,
    *,
    field: str = "",
    reason: str = "",
    retry_after_s: float | None = None,
) -> Refusal:
    """error: a status code's name, or the class that the client raises. What is left out is as the real
    server has it for that code."""
    code = error if isinstance(error, str) else _CODES.get(error, "")
    if code not in errors.CODE_NAMES or code == "OK":
        raise ValueError(
            f"{error!r} is no error: give a class such as NotFound, or a gRPC status code's name"
        )
    if retry_after_s is None and code == "RESOURCE_EXHAUSTED":
        retry_after_s = OVERLOADED_RETRY_AFTER_S
    return Refusal(code, message, field, reason or REASONS.get(code, ""), retry_after_s)
