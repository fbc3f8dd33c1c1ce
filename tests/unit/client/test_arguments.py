"""What the caller names beside the inputs, and what both clients say of an argument of the wrong kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fixtures.fake_server.scripted import asked, texts
from wattserve_client import Answer, AsyncClient, Client, InvalidRequest
from wattserve_client._channel import Link
from wattserve_client._requests import with_inputs
from wattserve_client._stream import StreamBook
from wattserve_proto.limits import MAX_MESSAGE_BYTES
from wattserve_proto.v1 import inference_pb2 as pb


def test_every_way_to_predict_sends_its_priority_and_says_nothing_by_default(
    server: Any, client: Any
) -> None:
    pixels = np.ones((3, 2, 2))
    for options in ({"priority": 1}, {"priority": np.int64(3)}, {}):
        client.predict("a film", **options)
        client.predict_images(pixels, **options)
    assert [request.priority for request in asked(server, "Predict")] == [1, 1, 3, 3, 0, 0]


def test_a_stream_sends_its_priority_with_each_input(server: Any, client: Any) -> None:
    list(client.predict_many(texts(2), priority=3))
    ((first, second),) = asked(server, "PredictStream")
    assert (first.priority, second.priority) == (3, 3)


def test_a_level_that_only_the_server_can_judge_is_sent(server: Any, client: Any) -> None:
    client.predict("a film", priority=9)
    assert asked(server, "Predict")[0].priority == 9


@pytest.mark.parametrize(
    ("method", "arguments", "options", "reason"),
    [
        ("predict", ["a"], {"variant": 3}, "variant is an int; it must be a str"),
        ("predict", ["a"], {"variant": None}, "variant is a NoneType; it must be a str"),
        ("predict", ["a"], {"request_id": 7}, "request_id is an int; it must be a str"),
        ("predict", ["a"], {"request_id": b"7"}, "request_id is a bytes; it must be a str"),
        (
            "predict",
            ["a"],
            {"wait_for_settled_energy": "no"},
            "wait_for_settled_energy is a str; it must be True or False",
        ),
        ("predict", ["a"], {"wait_for_settled_energy": 1}, "wait_for_settled_energy is an int"),
        ("predict", ["a"], {"priority": "first"}, "priority is a str; it must be a whole number"),
        ("predict", ["a"], {"priority": 1.0}, "priority is a float; it must be a whole number"),
        ("predict", ["a"], {"priority": True}, "priority is a bool; it must be a whole number"),
        ("predict", ["a"], {"timeout_s": "1"}, "timeout_s is '1'; it must be a number of seconds"),
        ("predict_images", [np.ones((3, 2, 2))], {"variant": 3}, "variant is an int"),
        ("predict_many", [["a"]], {"variant": 3}, "variant is an int; it must be a str"),
        ("predict_many", [["a"]], {"wait_for_settled_energy": "no"}, "wait_for_settled_energy is a str"),
        ("predict_many", [["a"]], {"priority": "first"}, "priority is a str"),
        ("receipt", [7], {}, "receipt_id is an int; it must be a str"),
        ("receipt", ["r-1"], {"wait_until_settled": "no"}, "wait_until_settled is a str"),
        ("watch_receipts", [[7]], {}, r"receipt_ids\[0\] is an int; it must be a str"),
        ("watch_receipts", [7], {}, "receipt_ids is an int; it must be a list of ids"),
        ("load_variant", [3], {}, "name is an int; it must be a str"),
        ("unload_variant", [None], {}, "name is a NoneType; it must be a str"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named_and_nothing_is_sent(
    server: Any, client: Any, method: str, arguments: list[Any], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        getattr(client, method)(*arguments, **options)
    assert server.calls == {}


@pytest.mark.parametrize("priority", [-1, 2**32])
def test_a_priority_that_cannot_be_written_is_refused_before_anything_is_sent(
    server: Any, client: Any, priority: int
) -> None:
    with pytest.raises(ValueError, match=f"priority is {priority}"):
        client.predict("a film", priority=priority)
    with pytest.raises(ValueError, match=f"priority is {priority}"):
        client.predict_many(["a film"], priority=priority)
    assert server.calls == {}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"request_id": "\ud800"}, "request_id is not Unicode text"),
        ({"variant": "\ud800"}, "variant is not Unicode text"),
        ({"max_energy_uj": 0}, "max_energy_uj is 0; it must be at least 1"),
        ({"max_energy_uj": 2**64}, r"max_energy_uj is .*; it must be at least 1, and less than 2\*\*64"),
    ],
)
def test_a_value_that_cannot_be_written_is_named_and_nothing_is_sent(
    server: Any, client: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        client.predict("a film", **options)
    assert server.calls == {}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retry": "no"}, "retry is 'no'; it must be True or False"),
        ({"tls": "ca.pem"}, "tls is 'ca.pem'; it must be True, False or a Tls"),
        ({"target": 50051}, "target is 50051; it must be an address"),
        ({"target": b"h:1"}, "target is b'h:1'; it must be an address"),
        ({"target": ["h:1", 2]}, r"target\[1\] is 2; it must be a str"),
    ],
)
def test_a_client_is_not_made_of_arguments_of_the_wrong_kind(
    kind: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        kind(**options)


def test_an_input_that_its_own_place_makes_too_large_for_a_stream_is_not_sent() -> None:
    bare = pb.PredictRequest()
    length = MAX_MESSAGE_BYTES - 100
    overhead = with_inputs(bare, "x" * length).ByteSize() - length
    largest = "x" * (MAX_MESSAGE_BYTES - overhead)
    assert with_inputs(bare, largest).ByteSize() == MAX_MESSAGE_BYTES
    book = StreamBook(Link("h:1", timeout_s=1, retry=True), [], bare, in_flight=1)
    answer = book.ask(largest)
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, InvalidRequest)
