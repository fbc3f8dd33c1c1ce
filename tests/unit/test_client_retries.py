"""What is sent again and what is never sent again, asked of `Client` and of `AsyncClient`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.scripted_server import Refuse, asked, reply
from wattserve_client import (
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
    WattserveError,
)
from wattserve_client._requests import MAX_MESSAGE_BYTES
from wattserve_proto.v1 import inference_pb2 as pb


@pytest.mark.parametrize("inputs", ["a film", "x" * 3_000_000], ids=["small", "three megabytes"])
def test_a_prediction_refused_by_a_full_queue_is_sent_again(server: Any, client: Any, inputs: str) -> None:
    refusal = Refuse("RESOURCE_EXHAUSTED", "full")
    server.script["Predict"] = [refusal, refusal, reply("positive")]
    assert client.predict(inputs).label == "positive"
    assert [request.text.texts[0] for request in asked(server, "Predict")] == [inputs] * 3


def test_a_queue_that_stays_full_ends_as_overloaded(server: Any, client: Any) -> None:
    server.script["Predict"] = [Refuse("RESOURCE_EXHAUSTED", "full")]
    with pytest.raises(Overloaded, match="full"):
        client.predict("a film")
    assert len(server.calls["Predict"]) == 5


@pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL", "UNKNOWN", "ABORTED", "CANCELLED"])
def test_a_prediction_whose_fate_is_unknown_is_never_sent_again(server: Any, client: Any, code: str) -> None:
    server.script["Predict"] = [Refuse(code, "lost"), reply("positive")]
    with pytest.raises(WattserveError):
        client.predict("a film")
    assert len(server.calls["Predict"]) == 1


def test_a_prediction_whose_answer_is_too_large_ran_and_is_never_sent_again(server: Any, client: Any) -> None:
    size = MAX_MESSAGE_BYTES
    server.script["Predict"] = [
        pb.PredictResponse(output=pb.Tensor(name="x", datatype="UINT8", shape=[size], data=bytes(size)))
    ]
    with pytest.raises(InvalidRequest, match=r"larger than max.*; send fewer sequences per request"):
        client.predict("a film")
    assert len(server.calls["Predict"]) == 1


@pytest.mark.parametrize(
    ("method", "call", "arguments"),
    [
        ("GetReceipt", "receipt", ["r-1"]),
        ("GetServerInfo", "server_info", []),
        ("GetEnergyReport", "energy_report", []),
    ],
)
def test_a_read_is_repeated_when_the_server_was_out_of_reach(
    server: Any, client: Any, method: str, call: str, arguments: list[str]
) -> None:
    server.script[method].insert(0, Refuse("UNAVAILABLE", "starting"))
    getattr(client, call)(*arguments)
    assert len(server.calls[method]) == 2


def test_a_read_is_not_repeated_on_another_refusal(server: Any, client: Any) -> None:
    server.script["GetReceipt"] = [Refuse("NOT_FOUND", "gone"), pb.Receipt()]
    with pytest.raises(NotFound, match="gone"):
        client.receipt("r-1")
    assert len(server.calls["GetReceipt"]) == 1


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_without_retry_every_refusal_is_seen(server: Any, kind: Any) -> None:
    server.script["Predict"] = [Refuse("RESOURCE_EXHAUSTED", "full"), reply("positive")]
    server.script["GetServerInfo"] = [Refuse("UNAVAILABLE", "starting"), pb.ServerInfo()]
    with kind(server.target, retry=False) as client:
        with pytest.raises(Overloaded):
            client.predict("a film")
        with pytest.raises(Unavailable):
            client.server_info()
