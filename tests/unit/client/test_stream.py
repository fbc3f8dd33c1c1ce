"""`predict_many` over a scripted stream, asked of `Client` and of `AsyncClient`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.fixtures.fake_server.scripted import ScriptedServer, answer_only, answered, texts
from wattserve_client import (
    AsyncClient,
    Client,
    InvalidRequest,
    Overloaded,
    ServerError,
)
from wattserve_proto.v1 import inference_pb2 as pb


def asked(server: ScriptedServer) -> list[pb.PredictRequest]:
    requests: list[pb.PredictRequest] = server.calls["PredictStream"][0].request
    return requests


def test_every_input_is_answered_with_its_index(server: Any, client: Any) -> None:
    answers = list(client.predict_many(texts(200), variant="bf16", in_flight=8))
    assert sorted(answer.index for answer in answers) == list(range(200))
    assert all(answer.result().label == f"text {answer.index}" for answer in answers)
    assert all(answer.prediction is answer.value and answer.error is None for answer in answers)
    assert {request.variant for request in asked(server)} == {"bf16"}


@pytest.mark.parametrize("reason", ["OVERLOADED", "STARTING_OR_STOPPING"])
def test_a_refused_input_is_not_repeated_and_the_docs_say_so(server: Any, client: Any, reason: str) -> None:
    def refuse(requests: Iterator[pb.PredictRequest], call: Any) -> Iterator[pb.PredictStreamResponse]:
        code = {"OVERLOADED": 8, "STARTING_OR_STOPPING": 14}[reason]
        for request in requests:
            error = pb.PredictError(code=code, reason=reason, message="not now")
            yield pb.PredictStreamResponse(request_id=request.request_id, error=error)

    server.script["PredictStream"] = [refuse]
    assert [answer.error.reason for answer in client.predict_many(texts(3))] == [reason] * 3
    assert len(asked(server)) == 3
    for kind in (Client, AsyncClient):
        told = " ".join((kind.predict_many.__doc__ or "").split())
        assert "nothing is repeated, also not an item refused as OVERLOADED or STARTING_OR_STOPPING" in told


@pytest.mark.parametrize(("given", "sent"), [("", ["0", "1"]), ("job 7", ["job 7/0", "job 7/1"])])
def test_each_input_has_a_request_id_under_the_callers_own(
    server: Any, client: Any, given: str, sent: list[str]
) -> None:
    answers = list(client.predict_many(texts(2), request_id=given))
    assert sorted(answer.index for answer in answers) == [0, 1]
    assert [request.request_id for request in asked(server)] == sent


def test_waiting_for_settled_energy_is_asked_for_each_input(server: Any, client: Any) -> None:
    list(client.predict_many(texts(2), wait_for_settled_energy=True))
    assert [request.wait_for_settled_energy for request in asked(server)] == [True, True]


def test_no_inputs_give_no_answers(client: Any) -> None:
    assert list(client.predict_many([])) == []


def test_answers_come_as_they_finish(server: Any, client: Any) -> None:
    def backwards(requests: Iterator[Any], call: Any) -> Iterator[Any]:
        return (answered(request) for request in reversed(list(requests)))

    server.script["PredictStream"] = [backwards]
    answers = list(client.predict_many(texts(5)))
    assert [answer.index for answer in answers] == [4, 3, 2, 1, 0]
    assert answers[0].result().label == "text 4"


def test_an_input_that_fails_does_not_disturb_the_others(server: Any, client: Any) -> None:
    def picky(requests: Iterator[Any], call: Any) -> Iterator[Any]:
        for request in requests:
            if request.request_id == "1":
                error = pb.PredictError(code=8, message="full")
                yield pb.PredictStreamResponse(request_id="1", error=error)
            else:
                yield answered(request)

    server.script["PredictStream"] = [picky]
    first, second, third = sorted(client.predict_many(texts(3)), key=lambda answer: answer.index)
    assert (first.result().label, third.result().label) == ("text 0", "text 2")
    assert (second.prediction, str(second.error)) == (
        None,
        f"full (RESOURCE_EXHAUSTED from {server.target})",
    )
    with pytest.raises(Overloaded):
        second.result()


def test_an_input_that_cannot_be_sent_is_answered_with_the_reason(server: Any, client: Any) -> None:
    answers = sorted(client.predict_many(["a", [1.5], [], "b"]), key=lambda answer: answer.index)
    assert [type(answer.error) for answer in answers] == [
        type(None),
        InvalidRequest,
        InvalidRequest,
        type(None),
    ]
    assert isinstance(answers[1].error.__cause__, TypeError)
    assert isinstance(answers[2].error.__cause__, ValueError)
    assert answers[3].result().label == "b"
    assert [request.request_id for request in asked(server)] == ["0", "3"]


def test_an_answer_that_makes_no_sense_is_an_error_of_its_input(server: Any, client: Any) -> None:
    def garbled(requests: Iterator[Any], call: Any) -> Iterator[Any]:
        for request in requests:
            response = answered(request)
            if request.request_id == "0":
                response.response.output.datatype = "FP99"
            yield response

    server.script["PredictStream"] = [garbled]
    first, second = sorted(client.predict_many(texts(2)), key=lambda answer: answer.index)
    assert isinstance(first.error, ServerError)
    assert second.result().label == "text 1"


def test_no_more_inputs_are_taken_than_may_be_in_flight(server: Any, client: Any) -> None:
    taken: list[int] = []

    def counted() -> Iterator[str]:
        for n in itertools.count():
            taken.append(n)
            yield f"text {n}"

    answers = client.predict_many(counted(), in_flight=3)
    for answered_so_far in range(1, 20):
        next(answers)
        assert len(taken) <= answered_so_far - 1 + 3
    answers.close()


def test_the_stream_goes_on_while_some_inputs_are_unanswered(server: Any, client: Any) -> None:
    """Two of three places are held by inputs that are never answered; the third is enough."""
    server.script["PredictStream"] = [answer_only(*range(2, 12))]
    answers = client.predict_many(texts(1000), in_flight=3)
    assert [next(answers).index for _ in range(10)] == list(range(2, 12))
    answers.close()


def test_a_slow_source_does_not_hold_answers_back_until_all_places_are_taken(client: Any) -> None:
    taken, places = 0, 20_000  # which it would take minutes to take

    def slow() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            time.sleep(0.005)
            yield "a film"

    answers = client.predict_many(slow(), in_flight=places)
    next(answers)
    answers.close()
    assert taken < places


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("inputs", "options", "reason"),
    [
        ("a film", {}, "an iterable of inputs, not one str"),
        ({"x": 1}, {}, "an iterable of inputs, not one dict"),
        (7, {}, "not iterable"),
        ([], {"in_flight": 0}, "in_flight is 0"),
        ([], {"in_flight": True}, "in_flight is True"),
        ([], {"timeout_s": -1}, "timeout_s is -1"),
    ],
)
def test_senseless_arguments_are_refused_at_the_call(
    kind: Any, inputs: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        kind().predict_many(inputs, **options)


async def test_the_async_client_takes_async_iterables_and_does_not_wait_for_their_next(
    server: ScriptedServer,
) -> None:
    answered_first = asyncio.Event()

    async def slow() -> AsyncIterator[str]:
        yield "first"
        await answered_first.wait()  # only set once the first answer is out
        yield "second"

    labels = []
    async with AsyncClient(server.target) as client:
        async for answer in client.predict_many(slow(), timeout_s=60):
            labels.append(answer.result().label)
            answered_first.set()
    assert labels == ["first", "second"]


async def test_a_slow_source_is_not_the_servers_silence(server: ScriptedServer) -> None:
    async def slow() -> AsyncIterator[str]:
        yield "first"
        await asyncio.sleep(1.5)
        yield "second"

    async with AsyncClient(server.target) as client:
        answers = [answer async for answer in client.predict_many(slow(), timeout_s=1)]
    assert [answer.index for answer in answers] == [0, 1]
