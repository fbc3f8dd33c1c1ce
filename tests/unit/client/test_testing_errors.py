"""The errors of the fake server for users' own tests: as the real server sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from wattserve_client import (
    Client,
    DeadlineExceeded,
    InvalidRequest,
    NotAllowed,
    NotFound,
    NotPossible,
    Overloaded,
    Prediction,
    ServerError,
    Unavailable,
    WattserveError,
)
from wattserve_client._fake.requests import REASONS
from wattserve_client.testing import FakeServer, Reply
from wattserve_server.service.status import REACTIONS


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(variants=("fp32", "bf16")) as fake:
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target, retry=False) as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "reason", "retry_after_s"),
    [
        (InvalidRequest, "INVALID_REQUEST", None),
        (NotFound, "NOT_FOUND", None),
        (NotPossible, "NOT_POSSIBLE_HERE", None),
        (NotAllowed, "NO_VALID_KEY", None),
        (Overloaded, "OVERLOADED", 0.1),
        (Unavailable, "STARTING_OR_STOPPING", None),
        (DeadlineExceeded, "EXPIRED_IN_QUEUE", None),
        (ServerError, "INFERENCE_FAILED", None),
    ],
)
def test_an_error_comes_as_the_real_server_sends_it_once(
    server: FakeServer, client: Client, kind: type[WattserveError], reason: str, retry_after_s: float | None
) -> None:
    server.otherwise(label="positive")
    ways: tuple[Callable[[], Prediction], ...] = (
        lambda: client.predict("a film"),
        lambda: next(client.predict_many(["a film"])).result(),
    )
    for ask in ways:
        server.fail_next(kind, "not now", field="variant")
        with pytest.raises(kind) as caught:
            ask()
        assert type(caught.value) is kind
        assert caught.value.message == "variant: not now"
        assert (caught.value.reason, caught.value.field) == (reason, "variant")
        assert caught.value.retry_after_s == retry_after_s
        assert ask().label == "positive"


def test_an_error_can_name_a_receipt_of_what_ran(server: FakeServer, client: Client) -> None:
    server.fail_next(ServerError, "NaN", receipt_id="r-7", times=2)
    with pytest.raises(ServerError, match="NaN; what ran is charged: receipt r-7") as caught:
        client.predict("a film")
    (answer,) = client.predict_many(["a film"])
    assert answer.error is not None
    assert (caught.value.receipt_id, answer.error.receipt_id) == ("r-7", "r-7")


def test_its_reasons_are_those_of_the_real_server() -> None:
    theirs: dict[str, str] = {}
    for kind in REACTIONS.values():
        theirs.setdefault(kind.code.name, kind.reason)  # the first of a code is the usual one
    assert theirs == REASONS


def test_a_client_that_retries_gets_over_a_refusal(server: FakeServer) -> None:
    server.answer("a film", label="positive")
    server.fail_next(Overloaded, times=2)
    with Client(server.target) as client:
        assert client.predict("a film").label == "positive"
    assert len(server.requests) == 3


@pytest.mark.parametrize("method", ["GetServerInfo", "GetEnergyReport", "LoadVariant"])
def test_any_method_can_be_made_to_fail(server: FakeServer, client: Client, method: str) -> None:
    asks: dict[str, Callable[[], object]] = {
        "GetServerInfo": client.server_info,
        "GetEnergyReport": client.energy_report,
        "LoadVariant": lambda: client.load_variant("fp32"),
    }
    server.fail_next("PERMISSION_DENIED", "who are you?", method=method, reason="NO_TOKEN")
    with pytest.raises(NotAllowed, match="who are you") as caught:
        asks[method]()
    assert (caught.value.code, caught.value.reason) == ("PERMISSION_DENIED", "NO_TOKEN")


def test_a_whole_stream_can_be_made_to_fail(server: FakeServer, client: Client) -> None:
    server.fail_next(Unavailable, "draining", method="PredictStream")
    with pytest.raises(Unavailable, match="draining"):
        list(client.predict_many(["a", "b"]))


def test_a_failure_of_no_method_or_no_kind_is_refused(server: FakeServer) -> None:
    with pytest.raises(ValueError, match="no method 'Guess'"):
        server.fail_next(NotFound, method="Guess")
    with pytest.raises(ValueError, match="is no error"):
        server.fail_next("OK")


def test_one_input_of_a_stream_that_fails_leaves_the_others_alone(server: FakeServer, client: Client) -> None:
    server.answer("a", label="positive")
    server.answer("c", label="negative")
    answers = {each.index: each for each in client.predict_many(["a", "b", "c"])}
    assert [answers[0].result().label, answers[2].result().label] == ["positive", "negative"]
    assert isinstance(answers[1].error, InvalidRequest)


def test_a_script_that_raises_is_told_as_such(server: FakeServer, client: Client) -> None:
    def broken(given: object) -> Reply:
        raise KeyError(given)

    server.otherwise(broken)
    with pytest.raises(ServerError, match="the fake server's script failed: KeyError: 'a film'"):
        client.predict("a film")
