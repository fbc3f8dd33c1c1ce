"""The one table from errors to what a caller is told."""

import re
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from tests import ROOT
from wattserve_server import errors
from wattserve_server.service.status import BUG, INTERNAL_MESSAGE, MAX_MESSAGE, REACTIONS, Failure, failure_of

NEVER_ON_THE_WIRE = (errors.ConfigError, errors.MeterError)

Detail = TypeVar("Detail", bound=Message)


def leaves(kind: type[errors.WattserveError]) -> set[type[errors.WattserveError]]:
    below = kind.__subclasses__()
    return set().union(*(leaves(child) for child in below)) if below else {kind}


def details(failure: Failure, kind: type[Detail]) -> list[Detail]:
    data = dict(failure.metadata())["grpc-status-details-bin"]
    assert isinstance(data, bytes)
    status = status_pb2.Status.FromString(data)
    assert (status.code, status.message) == (failure.reaction.code.value[0], failure.message)
    found = []
    for each in status.details:
        detail = kind()
        if each.Unpack(detail):
            found.append(detail)
    return found


def test_every_error_that_a_caller_can_meet_is_in_the_table() -> None:
    met = {kind for kind in leaves(errors.WattserveError) if not issubclass(kind, NEVER_ON_THE_WIRE)}
    kinds_of_others = {errors.NotPossibleHere, errors.OverloadedError}  # raised as they are, too
    assert set(REACTIONS) == met | kinds_of_others


def test_each_class_of_errors_has_a_reason_of_its_own() -> None:
    reasons = [kind.reason for kind in REACTIONS.values()] + [BUG.reason]
    assert len(set(reasons)) == len(reasons)


def test_codes_and_reasons_are_those_that_clients_were_told() -> None:
    told = {error.__name__: (kind.code.name, kind.reason) for error, kind in REACTIONS.items()}
    assert told == {
        "InvalidRequest": ("INVALID_ARGUMENT", "INVALID_REQUEST"),
        "NotFound": ("NOT_FOUND", "NOT_FOUND"),
        "NotPossibleHere": ("FAILED_PRECONDITION", "NOT_POSSIBLE_HERE"),
        "EnergyLimitError": ("FAILED_PRECONDITION", "ENERGY_LIMIT"),
        "LawUnknownError": ("FAILED_PRECONDITION", "LAW_UNKNOWN"),
        "HopelessError": ("RESOURCE_EXHAUSTED", "DEADLINE_TOO_SHORT"),
        "SpentError": ("RESOURCE_EXHAUSTED", "BUDGET_SPENT"),
        "UnauthenticatedError": ("UNAUTHENTICATED", "NO_VALID_KEY"),
        "ForbiddenError": ("PERMISSION_DENIED", "NOT_ALLOWED"),
        "OverloadedError": ("RESOURCE_EXHAUSTED", "OVERLOADED"),
        "ShortageError": ("RESOURCE_EXHAUSTED", "SHORT_OF_MEMORY"),
        "UnavailableError": ("UNAVAILABLE", "STARTING_OR_STOPPING"),
        "LaneLostError": ("UNAVAILABLE", "DEVICE_FAILED"),
        "CutError": ("UNAVAILABLE", "CUT_BY_SHUTDOWN"),
        "ExpiredError": ("DEADLINE_EXCEEDED", "EXPIRED_IN_QUEUE"),
        "OverdueError": ("DEADLINE_EXCEEDED", "SERVER_DEADLINE"),
        "UnsupportedError": ("UNIMPLEMENTED", "NOT_OFFERED"),
        "InferenceError": ("INTERNAL", "INFERENCE_FAILED"),
    }


def test_the_message_names_the_field() -> None:
    failure = failure_of(errors.InvalidRequest("the text is empty", "text.texts[0]"))
    assert failure.reaction.code is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.message == "text.texts[0]: the text is empty"


def test_the_details_hold_the_reason_and_the_field() -> None:
    failure = failure_of(errors.InvalidRequest("the text is empty", "text.texts[0]"))
    (info,) = details(failure, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("INVALID_REQUEST", "wattserve")
    (bad,) = details(failure, error_details_pb2.BadRequest)
    (violation,) = bad.field_violations
    assert (violation.field, violation.description) == ("text.texts[0]", "the text is empty")
    assert not details(failure, error_details_pb2.RetryInfo)


def test_an_overloaded_server_says_when_to_come_back_in_both_ways() -> None:
    failure = failure_of(errors.OverloadedError("the queue is full"))
    (retry,) = details(failure, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 100
    assert dict(failure.metadata())["grpc-retry-pushback-ms"] == "100"
    assert not details(failure, error_details_pb2.BadRequest)


def test_a_request_that_would_cost_too_much_is_told_the_prediction() -> None:
    failure = failure_of(errors.EnergyLimitError("too much", "max_energy_uj", 1234))
    (info,) = details(failure, error_details_pb2.ErrorInfo)
    assert (info.reason, dict(info.metadata)) == ("ENERGY_LIMIT", {"predicted_energy_uj": "1234"})


def test_a_spent_budget_says_when_its_period_ends() -> None:
    failure = failure_of(errors.SpentError("used up", "tenant_budget", 86_400.0))
    (retry,) = details(failure, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToSeconds() == 86_400


def test_an_error_after_some_ran_names_the_receipt_in_its_details_and_its_words() -> None:
    error = errors.InferenceError("the model failed")
    assert "receipt" not in failure_of(error).message
    assert not details(failure_of(error), error_details_pb2.ErrorInfo)[0].metadata
    error.receipt_id = "3502dd0c195b-1"
    (info,) = details(failure_of(error), error_details_pb2.ErrorInfo)
    assert dict(info.metadata) == {"receipt_id": "3502dd0c195b-1"}
    assert failure_of(error).message == ("the model failed; what ran is charged: receipt 3502dd0c195b-1")


def test_a_bug_after_the_request_ran_names_the_receipt_and_nothing_of_itself() -> None:
    error = KeyError("secret")
    error.receipt_id = "r-1"  # type: ignore[attr-defined]
    failure = failure_of(error)
    assert (failure.receipt_id, failure.message) == (
        "r-1",
        f"{INTERNAL_MESSAGE}; what ran is charged: receipt r-1",
    )


def test_a_bug_shows_nothing_of_itself_to_the_caller() -> None:
    assert failure_of(KeyError("secret")) == Failure(BUG, INTERNAL_MESSAGE)


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_what_repeats_a_callers_huge_value_is_shortened(letter: str) -> None:
    value = letter * 20_000
    failure = failure_of(errors.NotFound(f"unknown variant {value!r}; loaded: fp32", value))
    assert len(failure.message.encode()) <= MAX_MESSAGE + 5
    assert failure.message.endswith("loaded: fp32")
    ((_, data),) = failure.metadata()
    assert len(data) < 4000  # metadata as a whole may take 8 KiB


def test_the_documentation_lists_every_code_with_its_reason() -> None:
    text = (ROOT / "docs" / "clients.md").read_text()
    listed = re.findall(r"^\| `\w+` \| (\w+) \| (\w+) \|", text, re.MULTILINE)
    assert sorted(listed) == sorted((kind.code.name, kind.reason) for kind in (*REACTIONS.values(), BUG))


def test_a_want_of_memory_is_not_the_callers_mistake_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = failure_of(MemoryError())
    assert (failure.reaction.code, failure.reaction.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "SHORT_OF_MEMORY",
    )
    assert details(failure, error_details_pb2.RetryInfo)
    (record,) = caplog.records
    assert record.exc_info is None


def test_a_want_of_memory_after_a_request_has_run_asks_nobody_to_send_it_again() -> None:
    error = MemoryError()
    error.receipt_id = "r-7"  # type: ignore[attr-defined]
    assert failure_of(error).reaction is BUG


def push_back(failure: Failure, left_s: float | None) -> str | bytes:
    return dict(failure.metadata(left_s))["grpc-retry-pushback-ms"]


def test_an_overloaded_server_says_when_there_will_be_room() -> None:
    failure = failure_of(errors.OverloadedError("the queue is full", "time", 1.25))
    (retry,) = details(failure, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 1250
    assert [push_back(failure, left_s) for left_s in (None, 2.0)] == ["1250", "1250"]


def test_grpc_sends_nothing_again_that_has_run_and_is_charged() -> None:
    error = errors.OverloadedError("the queue is full", "time", 1.25)
    error.receipt_id = "r-7"
    assert push_back(failure_of(error), None) == "-1"


def test_grpc_is_not_told_to_wait_for_what_its_call_will_not_get_any_more() -> None:
    full = failure_of(errors.OverloadedError("the queue is full", "time", 1.25))
    assert push_back(full, 1.0) == "-1"
    late = failure_of(errors.OverloadedError("the deadline cannot be met", "deadline", 0.5))
    assert push_back(late, 30.0) == "-1"
    assert details(late, error_details_pb2.RetryInfo)[0].retry_delay.ToMilliseconds() == 500
    hopeless = failure_of(errors.HopelessError("the deadline cannot be met, ever"))
    assert push_back(hopeless, 30.0) == "-1"
    assert not details(hopeless, error_details_pb2.RetryInfo)


@pytest.mark.parametrize("wait_s", [5e6, 1e300, float("inf")])
def test_a_wait_longer_than_a_reply_can_tell_is_told_as_a_month(wait_s: float) -> None:
    failure = failure_of(errors.OverloadedError("much too much", "tenant_rate", wait_s))
    assert failure.retry_after_ms == 30 * 86_400_000 < 2**32
