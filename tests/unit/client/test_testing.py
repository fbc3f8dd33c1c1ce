"""The fake server for users' own tests, through the real clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from wattserve_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    EnergyState,
    InvalidRequest,
    NotFound,
    NotPossible,
    Unavailable,
    VariantState,
)
from wattserve_client._fake.ledger import fake_variant
from wattserve_client.testing import FakeServer, Reply


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(variants=("fp32", "bf16")) as fake:
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target, retry=False) as made:
        yield made


def test_a_text_is_answered_as_scripted_each_time(server: FakeServer, client: Client) -> None:
    server.answer("a delightful film", label="positive", energy_joules=0.04)
    for _ in range(2):
        answer = client.predict("a delightful film", wait_for_settled_energy=True)
        assert answer.label == "positive"
        assert answer.receipt.energy_uj == 40_000
        assert answer.receipt.state is EnergyState.SETTLED


def test_each_sequence_of_a_request_has_its_own_answer_and_its_own_line(
    server: FakeServer, client: Client
) -> None:
    server.answer("a good film", label="positive", energy_joules=0.04)
    server.answer("bad", label="negative", energy_joules=0.01)
    answer = client.predict(["bad", "a good film"])
    assert answer.labels == ("negative", "positive")
    assert [line.energy_uj for line in answer.receipt.lines] == [10_000, 40_000]
    assert [(line.tokens, line.padded_tokens) for line in answer.receipt.lines] == [(1, 3), (3, 3)]
    assert answer.receipt.energy_uj == 50_000


@pytest.mark.parametrize(
    "asked",
    [
        [101, 7592, 102],
        np.array([[101, 7592, 102]]),
        {"input_ids": np.array([[101, 7592, 102, 0]]), "attention_mask": np.array([[1, 1, 1, 0]])},
    ],
    ids=["list", "array", "tensors"],
)
def test_token_ids_are_answered_as_scripted_however_they_are_sent(
    server: FakeServer, client: Client, asked: Any
) -> None:
    server.answer([101, 7592, 102], label="negative")
    assert client.predict(asked).label == "negative"
    assert server.requests[0].inputs == ((101, 7592, 102),)


def test_the_answer_for_a_variant_goes_before_the_one_for_all(server: FakeServer, client: Client) -> None:
    server.answer("a film", label="positive", energy_joules=0.04)
    server.answer("a film", variant="bf16", label="positive", energy_joules=0.02)
    assert client.predict("a film", variant="bf16").energy_joules == 0.02
    assert client.predict("a film").energy_joules == 0.04


def test_the_next_answers_are_given_once_in_order_and_before_all_others(
    server: FakeServer, client: Client
) -> None:
    server.otherwise(label="positive")
    server.answer_next(label="negative")
    server.answer_next(label="positive")
    server.answer_next(label="negative")
    assert [client.predict("a film").label for _ in range(4)] == [
        "negative",
        "positive",
        "negative",
        "positive",
    ]


def test_a_function_answers_everything_else(server: FakeServer, client: Client) -> None:
    server.answer("a film", label="positive")
    server.otherwise(lambda given: Reply(label="negative", energy_joules=len(given) / 1000))
    assert client.predict("a film").label == "positive"
    assert client.predict("abc").energy_joules == 0.003


def test_what_was_not_scripted_is_refused_by_name(server: FakeServer, client: Client) -> None:
    server.answer("a film", label="positive")
    with pytest.raises(InvalidRequest, match=r"no answer for 'a flim' .* has answers for 'a film'") as caught:
        client.predict("a flim")
    assert (caught.value.field, caught.value.reason) == ("input", "INVALID_REQUEST")
    assert server.requests[0].text == "a flim"


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        ({"label": "neutral"}, "the label 'neutral' is none of"),
        ({"scores": [1.0]}, "hold 2 numbers"),
        ({"label": "negative", "scores": [0.1, 0.9]}, "does not have the highest"),
        ({"label": "positive", "energy_joules": -1.0}, "0 or more"),
        ({"label": "positive", "energy_joules": None}, "with an unknown_reason"),
        ({"label": "positive", "unknown_reason": "no meter"}, "with an unknown_reason"),
        ({"label": "positive", "interval_joules": (1.0, 2.0)}, "does not hold the figure"),
    ],
)
def test_a_reply_that_makes_no_sense_is_refused_when_it_is_scripted(
    server: FakeServer, reply: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        server.answer("a film", **reply)


def test_logits_give_the_label_and_the_scores(server: FakeServer, client: Client) -> None:
    server.answer("a film", output=[0.0, np.log(3.0)])
    answer = client.predict("a film")
    assert answer.label == "positive"
    assert answer.classifications[0].scores.tolist() == pytest.approx([0.25, 0.75])
    assert answer.output.tolist() == [pytest.approx([0.0, np.log(3.0)])]


def test_without_labels_the_answer_is_an_embedding() -> None:
    with FakeServer(labels=()) as server, Client(server.target) as client:
        server.answer("a film", output=[0.5, 0.25, -1.0])
        answer = client.predict("a film")
        assert (answer.output.tolist(), answer.output_name) == ([[0.5, 0.25, -1.0]], "embedding")
        assert answer.labels == ()
        assert client.server_info().task == "feature-extraction"


def test_the_requests_are_plain_values(server: FakeServer, client: Client) -> None:
    server.otherwise(label="positive")
    client.predict(["a", "b"], variant="bf16", request_id="mine", wait_for_settled_energy=True)
    list(client.predict_many(["c"]))
    first, second = server.requests
    assert (first.inputs, first.variant, first.request_id) == (("a", "b"), "bf16", "mine")
    assert (first.wait_for_settled_energy, first.streamed) == (True, False)
    assert (second.inputs, second.variant, second.streamed) == (("c",), "", True)


def test_variants_are_described_loaded_and_unloaded() -> None:
    proxy = replace(fake_variant("int4"), proxy="runs fp32")
    with FakeServer(variants=("fp32", proxy)) as server, Client(server.target) as client:
        server.otherwise(label="positive")
        assert [each.name for each in client.server_info().variants] == ["fp32", "int4"]
        told = client.predict("a film", variant="int4").receipt
        assert (told.proxy, told.unverified) == ("runs fp32", True)
        assert client.unload_variant("int4").state is VariantState.UNLOADED
        with pytest.raises(NotPossible, match="'int4' is unloaded"):
            client.predict("a film", variant="int4")
        assert client.load_variant("int4").state is VariantState.READY
        assert client.predict("a film", variant="int4").label == "positive"
        with pytest.raises(NotFound, match="no variant 'int1'; the fake server has fp32, int4"):
            client.predict("a film", variant="int1")


def test_a_slow_server_runs_into_the_deadline_and_still_closes() -> None:
    with FakeServer(delay_s=600) as server, Client(server.target) as client:
        server.otherwise(label="positive")
        with pytest.raises(DeadlineExceeded):
            client.predict("a film", timeout_s=0.1)
        server.delay_s = 0
        assert client.predict("a film").label == "positive"


def test_it_answers_the_async_client(server: FakeServer) -> None:
    async def ask() -> list[str]:
        async with AsyncClient(server.target) as client:
            one = await client.predict("a film")
            return [one.label, *[each.result().label async for each in client.predict_many(["a film"] * 3)]]

    server.answer("a film", label="positive")
    assert asyncio.run(ask()) == ["positive"] * 4


def test_many_threads_may_ask_at_once(server: FakeServer, client: Client) -> None:
    server.otherwise(label="positive", energy_joules=0.001)
    threads = [
        threading.Thread(target=lambda: [client.predict("a film") for _ in range(25)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 200
    assert client.energy_report().measured_uj == 200_000


def test_a_closed_server_is_out_of_reach() -> None:
    with FakeServer() as server:
        server.close()
        with Client(server.target, retry=False) as client, pytest.raises(Unavailable):
            client.server_info()
