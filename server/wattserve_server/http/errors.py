"""What a client of OpenAI's API is told of an error: a status, headers and its JSON. Pure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from wattserve_server.service.status import Failure

# By the name of gRPC's code: HTTP's, and what OpenAI calls such errors.
_STATUSES = {
    "INVALID_ARGUMENT": (400, "invalid_request_error"),
    "FAILED_PRECONDITION": (400, "invalid_request_error"),
    "NOT_FOUND": (404, "invalid_request_error"),
    "UNAUTHENTICATED": (401, "authentication_error"),
    "PERMISSION_DENIED": (403, "permission_error"),
    "RESOURCE_EXHAUSTED": (429, "rate_limit_error"),
    "UNAVAILABLE": (503, "server_error"),
    "DEADLINE_EXCEEDED": (504, "server_error"),
    "UNIMPLEMENTED": (405, "invalid_request_error"),
}
_ELSE = (500, "server_error")
_AGAIN = (429, 503)  # of which nothing has run
_MOST_WAIT_MS = 60_000  # for which a client is told to wait by itself; a budget may be spent for a month

MODEL = "model"  # where a request names its model


class Told(NamedTuple):
    status: int
    content: dict[str, Any]
    headers: dict[str, str]


def told(failure: Failure, status: int = 0) -> Told:
    """status: a closer one than the error's own; 0: that."""
    code = failure.reaction.code_name
    own, kind = _STATUSES.get(code, _ELSE)
    status = status or own
    is_unknown_model = code == "NOT_FOUND" and failure.field == MODEL
    content: dict[str, Any] = {
        "message": failure.message,
        "type": kind,
        "param": failure.field or None,
        "code": "model_not_found" if is_unknown_model else failure.reaction.reason.lower(),
    }
    if failure.receipt_id:
        content["receipt_id"] = failure.receipt_id
    if failure.predicted_energy_uj is not None:
        content["predicted_joules"] = failure.predicted_energy_uj / 1e6
    # OpenAI's own clients heed both; others know the whole seconds.
    may_come_again = status in _AGAIN and not failure.receipt_id and failure.in_time
    may_come_again = may_come_again and failure.retry_after_ms <= _MOST_WAIT_MS
    headers = {"x-should-retry": "true" if may_come_again else "false"}
    if may_come_again and failure.retry_after_ms:
        headers["retry-after-ms"] = str(failure.retry_after_ms)
        headers["retry-after"] = str(math.ceil(failure.retry_after_ms / 1000))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return Told(status, {"error": content}, headers)
