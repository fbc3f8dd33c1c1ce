"""Inputs of `predict_many` that are larger than a server may take, asked of `Client` and of `AsyncClient`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.fixtures.fake_server.scripted import Call, Refuse, ScriptedServer, answered, until_it_ends
from wattserve_client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    InvalidRequest,
    Unavailable,
    _stream,
)
from wattserve_proto.v1 import inference_pb2 as pb

LIMIT = 1000
LARGE = "x" * LIMIT


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "SHARED_BYTES", LIMIT)


def limited(requests: Iterator[pb.PredictRequest], call: Call) -> Iterator[pb.PredictStreamResponse]:
    """As gRPC does it: what is too large ends the stream."""
    for request in requests:
        if request.ByteSize() > LIMIT:
            call.refuse(Refuse("RESOURCE_EXHAUSTED", "SERVER: Received message larger than max (9 vs. 8)"))
        yield answered(request)


def silent_for_large(requests: Iterator[pb.PredictRequest], call: Call) -> Iterator[Any]:
    for request in requests:
        if request.ByteSize() > LIMIT:
            yield from until_it_ends(requests, call)
        yield answered(request)


def test_an_input_that_the_server_does_not_take_disturbs_no_other(server: Any, client: Any) -> None:
    server.script["PredictStream"] = [limited]
    inputs = ["good", "good", LARGE, "good", LARGE]
    answers = sorted(client.predict_many(inputs, in_flight=2), key=lambda answer: answer.index)
    assert [answer.error is None for answer in answers] == [True, True, False, True, False]
    assert isinstance(answers[2].error, InvalidRequest)
    assert answers[2].error.message.endswith("larger than max (9 vs. 8); send less in one request")


def test_a_large_input_is_answered_where_the_server_takes_it(server: Any, client: Any) -> None:
    answers = client.predict_many([LARGE, "small", LARGE], request_id="mine")
    assert {answer.index: answer.result().label for answer in answers} == {0: LARGE, 1: "small", 2: LARGE}
    sent = sorted([each.request_id for each in call.request] for call in server.calls["PredictStream"])
    assert sent == [["mine/0"], ["mine/1"], ["mine/2"]]


def test_the_answer_to_a_large_input_may_be_the_last(server: Any, client: Any) -> None:
    shared_is_over, others_came = threading.Event(), threading.Event()

    def large_last(requests: Iterator[pb.PredictRequest], call: Call) -> Iterator[Any]:
        for request in requests:
            if request.ByteSize() > LIMIT:
                assert shared_is_over.wait(timeout=60)
                assert others_came.wait(timeout=60)
                yield answered(request)
                return
            yield answered(request)
        call.context.add_callback(shared_is_over.set)

    server.script["PredictStream"] = [large_last]
    coming = client.predict_many([LARGE, "a", "b"])
    answers = [next(coming), next(coming)]
    others_came.set()
    answers += coming
    assert [answer.index for answer in answers] == [1, 2, 0]
    assert all(answer.error is None for answer in answers)


def test_a_large_input_that_is_never_answered_is_told_so(server: Any, client: Any) -> None:
    def leaves_large(requests: Iterator[pb.PredictRequest], call: Call) -> Iterator[Any]:
        return (answered(request) for request in requests if request.ByteSize() <= LIMIT)

    server.script["PredictStream"] = [leaves_large]
    first, second = sorted(client.predict_many([LARGE, "a"]), key=lambda answer: answer.index)
    assert isinstance(first.error, Unavailable)
    assert first.error.message.startswith("the server ended the stream before everything was answered")
    assert second.error is None


def test_large_inputs_count_among_those_in_flight(server: Any, client: Any) -> None:
    server.script["PredictStream"] = [silent_for_large]
    taken: list[str] = []

    def inputs() -> Iterator[str]:
        for text in ["a", LARGE, LARGE, LARGE, LARGE]:
            taken.append(text)
            yield text

    answers = client.predict_many(inputs(), in_flight=2, timeout_s=2.0)
    assert next(answers).index == 0
    with pytest.raises(DeadlineExceeded) as caught:
        next(answers)
    assert caught.value.__notes__ == ["sent and not answered, so their fate is not known: inputs 1, 2"]
    assert len(taken) == 3


def test_leaving_the_loop_cancels_large_inputs(server: Any, client: Any) -> None:
    server.script["PredictStream"] = [silent_for_large]
    answers = client.predict_many([LARGE, LARGE, "a"])
    assert next(answers).index == 2
    calls, until_s = server.calls["PredictStream"], time.monotonic() + 60
    while len(calls) < 3 and time.monotonic() < until_s:  # large ones may be on their way
        time.sleep(0.01)
    answers.close()
    assert len(calls) == 3
    assert all(call.ended.wait(timeout=60) for call in calls)


def test_closing_the_client_ends_large_inputs(server: ScriptedServer) -> None:
    server.script["PredictStream"] = [silent_for_large]
    client = Client(server.target)
    answers = client.predict_many([LARGE, "a"])
    assert next(answers).index == 1
    client.close()
    with suppress(Cancelled):  # the shared stream's, where it had not ended
        assert [type(answer.error) for answer in answers] == [Cancelled]


async def test_closing_the_async_client_ends_large_inputs_and_leaves_no_task(server: ScriptedServer) -> None:
    server.script["PredictStream"] = [silent_for_large]
    client = AsyncClient(server.target)
    answers = client.predict_many([LARGE, "a"])
    assert (await anext(answers)).index == 1
    await client.close()
    with suppress(Cancelled):  # the shared stream's, where it had not ended
        assert [type(answer.error) async for answer in answers] == [Cancelled]
    if ending := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(ending, timeout=30)
    assert asyncio.all_tasks() == {asyncio.current_task()}
