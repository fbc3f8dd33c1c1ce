"""The one table from the server's errors to what a caller is told: a gRPC code, a message, rich details.

The details are Google's: ErrorInfo with a stable reason, BadRequest with the path of the wrong field,
RetryInfo where coming back later helps. They travel in the trailing metadata of a failed call.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from wattserve_server import errors

log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str | bytes], ...]

DOMAIN = "wattserve"  # ErrorInfo.domain: whose reasons these are

# That an overloaded server asks clients to wait where it cannot reckon it; gRPC's own retries honour it.
RETRY_AFTER_MS = 100
LEAST_RETRY_MS = 10
MOST_RETRY_S = 30 * 86_400.0  # a month; a reply's field holds no more than 49 days

SHORTAGE_MS = 1000  # the same of one that has no memory

MAX_MESSAGE = 600  # bytes of an error's message
MOST_UTF8 = 4  # bytes of a character

INTERNAL_MESSAGE = "internal error; the server's log has the details"


@dataclass(frozen=True, slots=True)
class Reaction:
    """What is told of one class of errors."""

    code: grpc.StatusCode
    reason: str  # ErrorInfo.reason, which never changes
    retry_after_ms: int = 0
    code_number: int = field(init=False)  # which its enumeration takes long to tell
    code_name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code_number", self.code.value[0])
        object.__setattr__(self, "code_name", self.code.name)


REACTIONS: dict[type[errors.WattserveError], Reaction] = {
    errors.InvalidRequest: Reaction(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    errors.NotFound: Reaction(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    errors.NotPossibleHere: Reaction(grpc.StatusCode.FAILED_PRECONDITION, "NOT_POSSIBLE_HERE"),
    errors.EnergyLimitError: Reaction(grpc.StatusCode.FAILED_PRECONDITION, "ENERGY_LIMIT"),
    errors.LawUnknownError: Reaction(grpc.StatusCode.FAILED_PRECONDITION, "LAW_UNKNOWN"),
    errors.UnauthenticatedError: Reaction(grpc.StatusCode.UNAUTHENTICATED, "NO_VALID_KEY"),
    errors.ForbiddenError: Reaction(grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED"),
    errors.OverloadedError: Reaction(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", RETRY_AFTER_MS),
    errors.SpentError: Reaction(grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_SPENT", RETRY_AFTER_MS),
    errors.HopelessError: Reaction(grpc.StatusCode.RESOURCE_EXHAUSTED, "DEADLINE_TOO_SHORT"),
    errors.ShortageError: Reaction(grpc.StatusCode.RESOURCE_EXHAUSTED, "SHORT_OF_MEMORY", SHORTAGE_MS),
    errors.UnavailableError: Reaction(grpc.StatusCode.UNAVAILABLE, "STARTING_OR_STOPPING"),
    errors.CutError: Reaction(grpc.StatusCode.UNAVAILABLE, "CUT_BY_SHUTDOWN"),
    errors.LaneLostError: Reaction(grpc.StatusCode.UNAVAILABLE, "DEVICE_FAILED"),
    errors.ExpiredError: Reaction(grpc.StatusCode.DEADLINE_EXCEEDED, "EXPIRED_IN_QUEUE"),
    errors.OverdueError: Reaction(grpc.StatusCode.DEADLINE_EXCEEDED, "SERVER_DEADLINE"),
    errors.UnsupportedError: Reaction(grpc.StatusCode.UNIMPLEMENTED, "NOT_OFFERED"),
    errors.InferenceError: Reaction(grpc.StatusCode.INTERNAL, "INFERENCE_FAILED"),
}

# Callers who are not there any more to be told anything.
LATE = Reaction(grpc.StatusCode.DEADLINE_EXCEEDED, "")
LEFT = Reaction(grpc.StatusCode.CANCELLED, "")

BUG = Reaction(grpc.StatusCode.INTERNAL, "INTERNAL")  # an error that is in no table


@dataclass(frozen=True, slots=True)
class Failure:
    """What the caller is told of one error."""

    reaction: Reaction
    message: str
    field: str = ""  # its path in the request, or empty
    description: str = ""
    receipt_id: str = ""  # of what ran before, and is charged; empty: nothing did
    retry_after_ms: int = 0  # 0: it does not help
    in_time: bool = True  # whether that may be within the same call
    predicted_energy_uj: int | None = None  # where it would have cost too much

    def metadata(self, left_s: float | None = None) -> Metadata:
        """The trailing metadata: the rich details, and gRPC's own push-back. left_s: until the call's
        deadline, after which gRPC must not wait for what it will not get any more."""
        status = status_pb2.Status(code=self.reaction.code_number, message=self.message)
        more = {}
        if self.receipt_id:
            more["receipt_id"] = self.receipt_id
        if self.predicted_energy_uj is not None:
            more["predicted_energy_uj"] = str(self.predicted_energy_uj)
        status.details.append(_info(self.reaction.reason, **more))
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.description
            )
            status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
        push_back: Metadata = ()
        if self.retry_after_ms:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(self.retry_after_ms)
            status.details.add().Pack(retry)
        if self.retry_after_ms or not self.in_time:
            is_soon = left_s is None or self.retry_after_ms < left_s * 1000
            may_wait = self.in_time and is_soon and not self.receipt_id  # what ran would be charged again
            push_back = (("grpc-retry-pushback-ms", str(self.retry_after_ms) if may_wait else "-1"),)
        return (("grpc-status-details-bin", status.SerializeToString()), *push_back)


@lru_cache(maxsize=64)  # of most errors it says the reason alone
def _info(reason: str, **more: str) -> any_pb2.Any:
    """Shared: copy it rather than change it."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=more))
    return detail


def reaction_of(error: Exception) -> Reaction:
    if isinstance(error, MemoryError) and not getattr(error, "receipt_id", ""):  # nothing has run
        return REACTIONS[errors.ShortageError]
    return REACTIONS.get(type(error), BUG)  # type: ignore[arg-type]


def failure_of(error: Exception) -> Failure:
    """What the caller is told, where an error's way ends. An unmapped one is a bug: logged and not shown.

    The message names the receipt, too: clients of other makers show nothing else of an error.
    """
    failure = _failure_of(error)
    forget_way(error)
    return failure


def forget_way(error: BaseException) -> None:
    """Let go of the frames that an error has passed, and those that led to it. They hold the request, and
    often what holds the error itself: such a cycle stays until Python looks for garbage."""
    if error.__cause__ is None and error.__context__ is None:  # as nearly all
        error.__traceback__ = None
        return
    met: set[int] = set()
    ways: list[BaseException | None] = [error]
    while ways:
        way = ways.pop()
        if way is not None and id(way) not in met:
            met.add(id(way))
            way.__traceback__ = None
            ways += (way.__cause__, way.__context__)


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, MemoryError):
        log.error("no memory is left for a request: give the server more, or less to do at once")
    reaction, receipt_id = reaction_of(error), getattr(error, "receipt_id", "")
    charged = f"; what ran is charged: receipt {receipt_id}" if receipt_id else ""
    if reaction is BUG:
        log.error("unexpected %s", type(error).__name__, exc_info=error)
        return Failure(BUG, INTERNAL_MESSAGE + charged, receipt_id=receipt_id)
    if isinstance(error, MemoryError):
        message = "the server has no memory left for this request; try again later"
        return Failure(reaction, message, retry_after_ms=reaction.retry_after_ms)
    field, description = _shortened(getattr(error, "field", "")), _shortened(str(error))
    message = _shortened(f"{field}: {error}" if field else str(error))
    after_ms, is_late = reaction.retry_after_ms, False
    if isinstance(error, errors.OverloadedError):
        is_late = error.limit == "deadline"  # what is too late for this call stays too late for it
        if error.retry_after_s is not None:
            after_ms = max(LEAST_RETRY_MS, round(min(error.retry_after_s, MOST_RETRY_S) * 1000))
    predicted_uj = getattr(error, "predicted_energy_uj", None)
    return Failure(
        reaction, message + charged, field, description, receipt_id, after_ms, not is_late, predicted_uj
    )


def when_cut(left_s: float | None, total_s: float | None) -> tuple[Reaction, str]:
    """What happened to a call that was cut: its deadline passed, or its caller left.

    left_s: until the deadline, by this server's clock. total_s: what the caller gave. None: no deadline.
    gRPC rounds a deadline up on the wire, by up to one percent, so a caller gives up a little before its
    deadline passes here.
    """
    if left_s is not None and total_s is not None and left_s <= 0.005 + 0.01 * total_s:
        return LATE, "the caller's deadline passed"
    return LEFT, "the caller left"


def _shortened(text: str) -> str:
    """It may repeat what the caller sent, and metadata has a hard limit."""
    if len(text) * MOST_UTF8 <= MAX_MESSAGE:
        return text
    data = text.encode(errors="replace")
    if len(data) <= MAX_MESSAGE:
        return text
    head, tail = data[: MAX_MESSAGE // 2], data[-MAX_MESSAGE // 2 :]
    return f"{head.decode(errors='ignore')} ... {tail.decode(errors='ignore')}"
