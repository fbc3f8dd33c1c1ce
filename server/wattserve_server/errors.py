"""The errors of the server, sorted by who must act.

    WattserveError
    ├── ConfigError          the operator: the server does not start (exit code 2)
    │   └── OutOfMemoryError     a variant does not fit; the others stay
    ├── RequestError         the caller: the request cannot be served as it is
    │   ├── InvalidRequest       something in it is wrong
    │   ├── NotFound             it names something that is not here
    │   └── NotPossibleHere      it is well formed, but not on this device or in this state
    │       ├── EnergyLimitError     it would cost more than it says that it may
    │       └── LawUnknownError      what it would cost is not known
    ├── UnauthenticatedError the caller: it shows no API key that is known here
    ├── ForbiddenError       the caller: its key, or its place, does not allow this
    ├── OverloadedError      the caller, later: the queue is full
    │   └── SpentError           its tenant's budget of joules is used up
    ├── ShortageError        the operator: this process has no memory left; the caller, later
    ├── UnavailableError     the caller, elsewhere or later: the server is starting or shutting down
    ├── CutError             nobody: the server shut down under the request, which may have run
    ├── LaneLostError        the caller: one of several devices failed under it; others go on
    ├── ExpiredError         nobody: the caller's deadline passed while the request waited
    ├── OverdueError         the caller: it gave the server more time than that gives any call
    ├── UnsupportedError     nobody: a method of the protocol that this server does not offer
    ├── InferenceError       the operator: the model failed on a batch (the details are in the log)
    └── MeterError           nobody: the answer is good, its energy is unknown and says why

No error here knows a gRPC code; `service/status.py` holds the one table that maps them.
"""

from __future__ import annotations


class WattserveError(Exception):
    """Base of every error that Wattserve raises on purpose.

    `receipt_id`: of what had run of the request, and is charged; empty when nothing had.
    """

    receipt_id = ""


class ConfigError(WattserveError):
    """The server cannot start as it was told to; the message says what to change."""


class OutOfMemoryError(ConfigError):
    """A variant could not be made because its device has no memory left for it."""


class RequestError(WattserveError):
    """The caller can repair the request. `field` is its path in the request message, or empty."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class InvalidRequest(RequestError):
    """A value in the request is wrong."""


class NotFound(RequestError):
    """The request names something that does not exist here."""


class NotPossibleHere(RequestError):
    """The request is well formed but this server cannot do it now."""


class EnergyLimitError(NotPossibleHere):
    """The request would cost more than it says that it may; nothing of it ran."""

    def __init__(self, message: str, field: str, predicted_energy_uj: int) -> None:
        super().__init__(message, field)
        self.predicted_energy_uj = predicted_energy_uj


class LawUnknownError(NotPossibleHere):
    """The request says what it may cost, and what it will cost is not known; nothing of it ran."""


class UnauthenticatedError(WattserveError):
    """The call shows no API key, or none that is known; the message repeats nothing of it."""


class ForbiddenError(WattserveError):
    """The caller is known and lacks a right, which the message names."""


class OverloadedError(WattserveError):
    """There is no room for the request; nothing of it ran.

    `retry_after_s`: when there will be, if nobody else comes; None where that is not known. `limit`: which
    one it met, of `REFUSALS`.
    """

    def __init__(self, message: str, limit: str = "sequences", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_s = retry_after_s


class HopelessError(OverloadedError):
    """Its deadline is too short for the request even where it has the device for itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "deadline")


class SpentError(OverloadedError):
    """A tenant's budget of joules is used up; nothing of the request ran."""


# The limits that a request can meet: of the queue in sequences and in time, its own deadline, the tokeniser's
# queue, how many may watch, what its tenant may use, what a caller without one may, how long messages may be
# together, and who reads metrics.
REFUSALS = (
    "sequences", "time", "deadline", "tokenizer", "watchers", "tenant_rate", "tenant_in_flight",
    "tenant_budget", "peer_in_flight", "message_bytes", "metrics_connections",
)  # fmt: skip


class ShortageError(WattserveError):
    """The server has no memory left for a request; nothing of it ran."""


class UnavailableError(WattserveError):
    """The server is starting or shutting down; nothing of the request ran."""


class CutError(WattserveError):
    """The server shut down before it could finish; what ran of the request is charged."""


class LaneLostError(WattserveError):
    """The device that ran it, one of several, has failed; what ran is charged, and the others go on."""


class ExpiredError(WattserveError):
    """The caller's deadline passed before the request ran."""


class OverdueError(WattserveError):
    """The server's own deadline for every call passed; what ran of the request is charged."""


class UnsupportedError(WattserveError):
    """The protocol has such a method, this server does not offer it."""


class InferenceError(WattserveError):
    """The model failed on a batch."""


class MeterError(WattserveError):
    """A meter could not be opened or read; the message says why and what to do."""
