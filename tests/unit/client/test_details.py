"""What an error says beside its code: the server's reason, the wrong field, when to come back."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import (
    Refuse,
    ScriptedServer,
    answered,
    details,
    refuse_with_details,
    texts,
)
from wattserve_client import InvalidRequest, NotFound, Overloaded, ServerError, Unavailable, WattserveError
from wattserve_client.errors import Details, details_in
from wattserve_proto.v1 import inference_pb2 as pb

KEY = "grpc-status-details-bin"


def told(error: WattserveError | None) -> tuple[str, str, float | None]:
    assert error is not None
    return error.reason, error.field, error.retry_after_s


def test_a_call_that_fails_says_the_servers_reason_and_the_wrong_field(server: Any, client: Any) -> None:
    server.script["Predict"] = [
        refuse_with_details("INVALID_ARGUMENT", "is empty", "INVALID_REQUEST", fields=("text.texts[1]", "b"))
    ]
    with pytest.raises(InvalidRequest) as caught:
        client.predict("a film")
    assert told(caught.value) == ("INVALID_REQUEST", "text.texts[1]", None)
    assert str(caught.value) == f"is empty (INVALID_ARGUMENT from {server.target})"


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_an_overloaded_server_says_when_to_come_back(server: Any, kind: Any) -> None:
    server.script["Predict"] = [
        refuse_with_details("RESOURCE_EXHAUSTED", "full", "OVERLOADED", retry_after_ms=1500)
    ]
    with kind(server.target, retry=False) as client, pytest.raises(Overloaded) as caught:
        client.predict("a film")
    assert told(caught.value) == ("OVERLOADED", "", 1.5)


@pytest.mark.usefixtures("short_pauses")
def test_the_words_of_a_full_queue_are_never_taken_for_grpcs_own_limit(server: Any, client: Any) -> None:
    message = "the request is larger than max_queue_sequences"
    server.script["Predict"] = [refuse_with_details("RESOURCE_EXHAUSTED", message, "OVERLOADED")]
    with pytest.raises(Overloaded) as caught:
        client.predict("a film")
    assert caught.value.message == message


@pytest.mark.usefixtures("short_pauses")
def test_the_servers_own_words_are_never_explained_as_grpcs(server: Any, client: Any) -> None:
    message = "the handshake failed between the device and its meter"
    server.script["GetServerInfo"] = [refuse_with_details("UNAVAILABLE", message, "SOMETHING_ELSE")]
    with pytest.raises(Unavailable) as caught:
        client.server_info()
    assert caught.value.message == message


def test_an_error_after_some_ran_names_the_receipt(server: Any, client: Any) -> None:
    server.script["Predict"] = [
        refuse_with_details("INTERNAL", "NaN", "INFERENCE_FAILED", receipt_id="r-7"),
        refuse_with_details("INTERNAL", "NaN", "INFERENCE_FAILED", receipt_id="r-7", domain="proxy.example"),
        Refuse("INTERNAL", "without details"),
    ]
    for receipt_id in ("r-7", "", ""):
        with pytest.raises(ServerError) as caught:
            client.predict("a film")
        assert caught.value.receipt_id == receipt_id


def test_a_code_without_an_exception_of_its_own_keeps_its_reason(server: Any, client: Any) -> None:
    server.script["GetServerInfo"] = [refuse_with_details("UNIMPLEMENTED", "no", "NOT_OFFERED")]
    with pytest.raises(ServerError) as caught:
        client.server_info()
    assert (caught.value.code, caught.value.reason) == ("UNIMPLEMENTED", "NOT_OFFERED")


def test_a_watch_that_fails_says_the_servers_reason(server: Any, client: Any) -> None:
    server.script["WatchReceipts"] = [refuse_with_details("NOT_FOUND", "no receipt", "NOT_FOUND")]
    with pytest.raises(NotFound) as caught:
        list(client.watch_receipts(["r-9"]))
    assert caught.value.reason == "NOT_FOUND"


def test_what_ends_a_stream_says_the_servers_reason(server: Any, client: Any) -> None:
    server.script["PredictStream"] = [
        refuse_with_details("UNAVAILABLE", "draining", "STARTING_OR_STOPPING", retry_after_ms=100)
    ]
    with pytest.raises(Unavailable) as caught:
        list(client.predict_many(texts(3)))
    assert told(caught.value) == ("STARTING_OR_STOPPING", "", 0.1)


def test_the_reason_is_not_lost_when_the_server_leaves_amid_the_sending(server: Any, client: Any) -> None:
    """grpc.aio often reports its own failed write in place of the server's status: so, many times."""

    def leave(requests: Iterator[Any], call: Any) -> Iterator[Any]:
        yield answered(next(requests))
        call.refuse(refuse_with_details("UNAVAILABLE", "draining", "STARTING_OR_STOPPING"))

    server.script["PredictStream"] = [leave]
    for _ in range(20):
        with pytest.raises(Unavailable) as caught:
            list(client.predict_many(itertools.cycle(["a film"]), in_flight=500))
        assert (caught.value.message, caught.value.reason) == ("draining", "STARTING_OR_STOPPING")


def test_an_answer_of_a_stream_carries_its_own_reason_field_and_time(server: Any, client: Any) -> None:
    errors = [
        pb.PredictError(code=3, message="m", reason="INVALID_REQUEST", field="text.texts[0]"),
        pb.PredictError(code=8, message="m", reason="OVERLOADED", retry_after_ms=250),
        pb.PredictError(code=5, message="of an older server"),
        pb.PredictError(code=13, message="m", reason="INFERENCE_FAILED", receipt_id="r-7"),
    ]

    def refuse_each(requests: Iterator[Any], call: Any) -> Iterator[Any]:
        for request, error in zip(requests, errors, strict=False):
            yield pb.PredictStreamResponse(request_id=request.request_id, error=error)

    server.script["PredictStream"] = [refuse_each]
    found = [answer.error for answer in client.predict_many(texts(4), in_flight=1)]
    assert [type(error) for error in found] == [InvalidRequest, Overloaded, NotFound, ServerError]
    assert [error.receipt_id for error in found] == ["", "", "", "r-7"]
    assert [told(error) for error in found] == [
        ("INVALID_REQUEST", "text.texts[0]", None),
        ("OVERLOADED", "", 0.25),
        ("", "", None),
        ("INFERENCE_FAILED", "", None),
    ]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_an_error_that_is_not_the_servers_has_no_reason(kind: Any) -> None:
    with ScriptedServer() as gone:
        target = gone.target
    with kind(target) as client, pytest.raises(Unavailable) as caught:
        client.predict("a film")
    assert told(caught.value) == ("", "", None)


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xff\xff", b"\x1a\x05\x0a\xff", details(5, "gone", "NOT_FOUND")[:-3]]
)
def test_details_that_make_no_sense_do_not_hide_the_error(server: Any, client: Any, garbage: bytes) -> None:
    server.script["GetReceipt"] = [Refuse("NOT_FOUND", "gone", ((KEY, garbage),))]
    with pytest.raises(NotFound, match="gone") as caught:
        client.receipt("r-1")
    assert told(caught.value) == ("", "", None)


@given(st.binary(max_size=60))
def test_any_bytes_can_be_read_for_details(data: bytes) -> None:
    assert isinstance(details_in([(KEY, data)]), Details)


def test_a_detail_that_makes_no_sense_leaves_those_before_it() -> None:
    status = status_pb2.Status.FromString(details(5, "m", "NOT_FOUND"))
    status.details.add(type_url="type.googleapis.com/google.rpc.BadRequest", value=b"\xff")
    assert details_in([(KEY, status.SerializeToString())]) == Details(reason="NOT_FOUND")


@pytest.mark.parametrize("metadata", [None, (), [("other", "x")], [(KEY, "text in place of bytes")]])
def test_no_details_are_none(metadata: Any) -> None:
    assert details_in(metadata) == Details("", "", None)


def test_the_reason_of_somebody_between_is_not_taken_for_the_servers() -> None:
    assert details_in([(KEY, details(14, "m", "QUOTA", domain="proxy.example"))]) == Details()


def test_an_unknown_detail_is_passed_over() -> None:
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.DebugInfo(detail="x"))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="NOT_FOUND", domain="wattserve"))
    assert details_in([(KEY, status.SerializeToString())]) == Details(reason="NOT_FOUND")


def test_a_time_to_come_back_is_never_before_now() -> None:
    assert details_in([(KEY, details(8, "m", "OVERLOADED", retry_after_ms=-5))]).retry_after_s == 0.0


def test_an_errors_details_survive_the_way_between_processes() -> None:
    error = Overloaded("full", "RESOURCE_EXHAUSTED", "h:1", reason="OVERLOADED", field="x", retry_after_s=0.5)
    error.receipt_id = "r-7"
    copy = pickle.loads(pickle.dumps(error))
    assert (*told(copy), copy.receipt_id) == ("OVERLOADED", "x", 0.5, "r-7")


def test_the_details_are_those_that_the_server_writes() -> None:
    from wattserve_server.errors import InferenceError, OverloadedError
    from wattserve_server.errors import InvalidRequest as Invalid
    from wattserve_server.service.status import failure_of

    assert details_in(failure_of(Invalid("is empty", "text.texts[1]")).metadata()) == Details(
        "INVALID_REQUEST", "text.texts[1]", None
    )
    assert details_in(failure_of(OverloadedError("full")).metadata()) == Details("OVERLOADED", "", 0.1)
    failed = InferenceError("NaN")
    failed.receipt_id = "r-7"
    assert details_in(failure_of(failed).metadata()) == Details("INFERENCE_FAILED", "", None, "r-7")
