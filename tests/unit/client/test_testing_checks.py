"""What the fake server for users' own tests refuses: what the real one does, by the same field."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wattserve_client import Client, InvalidRequest
from wattserve_client._fake.requests import (
    MAX_SEQUENCES,
    MAX_TOKENS,
    VOCABULARY_SIZE,
    Refusal,
    check,
    request_of,
)
from wattserve_client._requests import bare_request, with_inputs
from wattserve_client.testing import FakeServer
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server import errors as real_errors
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.service.checks import check_ids
from wattserve_server.service.inference import asked_of


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        fake.otherwise(label="positive")
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target, retry=False) as made:
        yield made


def asking(inputs: Any, request_id: str = "", priority: int = 0) -> pb.PredictRequest:
    bare = bare_request(variant="", request_id=request_id, wait_for_settled_energy=False, priority=priority)
    return with_inputs(bare, inputs)


def tensors(rows: list[list[int]], dtype: str = "int64") -> dict[str, Any]:
    """The ids second, so that their place matters."""
    ids = np.array(rows, dtype)
    return {"attention_mask": np.ones_like(ids), "input_ids": ids}


FACTS = InputFacts(max_tokens=MAX_TOKENS, vocabulary_size=VOCABULARY_SIZE)
READY: Any = SimpleNamespace(
    engine=SimpleNamespace(
        model=SimpleNamespace(facts=FACTS), limits=SimpleNamespace(max_request=MAX_SEQUENCES)
    )
)

WRONG = {
    "priority": asking("a film", priority=4, request_id="x"),
    "request id": asking("a film", request_id="x" * 257),
    "empty text": asking(["a film", ""]),
    "blank text": asking(["a film", " \n"]),
    "null character": asking(["a", "b", "a\0film"]),
    "no text": pb.PredictRequest(text=pb.TextInput()),
    "many texts": asking(["a film"] * (MAX_SEQUENCES + 1)),
    "much text": asking(["x" * 100_000] * 2 + ["y"]),
    "no input": pb.PredictRequest(),
    "no sequence": pb.PredictRequest(tokens=pb.TokenInput()),
    "empty sequence": pb.PredictRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds()])),
    "many sequences": asking([[1]] * (MAX_SEQUENCES + 1)),
    "long sequence": asking([[1], [1] * (MAX_TOKENS + 1)]),
    "id below": asking([[1], [3, -1]]),
    "id above": asking([VOCABULARY_SIZE]),
    "many rows": asking(tensors([[1]] * (MAX_SEQUENCES + 1))),
    "long row": asking(tensors([[1] * (MAX_TOKENS + 1)])),
    "id of a row": asking(tensors([[1], [VOCABULARY_SIZE]])),
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG.keys())
def test_what_the_real_server_refuses_is_refused_by_the_same_field(message: pb.PredictRequest) -> None:
    with pytest.raises(real_errors.InvalidRequest) as real:
        asked_of(message, READY)
    with pytest.raises(Refusal) as fake:
        check(message, request_of(message, streamed=False).inputs)
    assert (fake.value.code, fake.value.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert fake.value.field == real.value.field


RIGHT = {
    "priority": asking("a film", priority=3, request_id="x" * 256),
    "texts": asking(["x" * 700] * MAX_SEQUENCES),
    "sequence": asking([[0, VOCABULARY_SIZE - 1], [1] * MAX_TOKENS]),
    "rows": asking(tensors([[1] * MAX_TOKENS] * MAX_SEQUENCES)),
}


@pytest.mark.parametrize("message", RIGHT.values(), ids=RIGHT.keys())
def test_what_the_real_server_takes_is_taken(message: pb.PredictRequest) -> None:
    asked_of(message, READY)
    check(message, request_of(message, streamed=False).inputs)


def test_a_text_of_more_words_than_a_sequence_may_have_tokens_is_refused(client: Client) -> None:
    client.predict("word " * MAX_TOKENS)
    with pytest.raises(InvalidRequest) as caught:
        client.predict(["a film", "word " * (MAX_TOKENS + 1)])
    with pytest.raises(real_errors.InvalidRequest) as real:  # once it is tokenised
        check_ids([np.ones(1, np.int64), np.ones(MAX_TOKENS + 1, np.int64)], FACTS, "text.texts")
    assert caught.value.field == real.value.field == "text.texts[1]"


def test_the_limits_are_those_that_it_announces(client: Client) -> None:
    limits = client.server_info().limits
    client.predict([[1]] * limits.max_request_sequences)
    client.predict([limits.vocabulary_size - 1] * limits.max_sequence_tokens)
    for inputs in (
        [[1]] * (limits.max_request_sequences + 1),
        [limits.vocabulary_size],
        [1] * (limits.max_sequence_tokens + 1),
    ):
        with pytest.raises(InvalidRequest, match=r"at most|outside the vocabulary"):
            client.predict(inputs)


def test_a_refused_request_is_told_in_a_call_and_in_a_stream_and_is_among_the_requests(
    server: FakeServer, client: Client
) -> None:
    with pytest.raises(InvalidRequest, match="the text is empty") as caught:
        client.predict(" ")
    (answer,) = client.predict_many([" "])
    assert isinstance(answer.error, InvalidRequest)
    for error in (caught.value, answer.error):
        assert (error.reason, error.field) == ("INVALID_REQUEST", "text.texts[0]")
    assert [each.text for each in server.requests] == [" ", " "]


def test_images_are_counted_too(client: Client) -> None:
    images = np.zeros((MAX_SEQUENCES + 1, 1, 1, 1), np.float32)
    client.predict(images[:MAX_SEQUENCES])
    with pytest.raises(InvalidRequest) as caught:
        client.predict(images)
    assert caught.value.field == "tensors.tensors[0].shape"
