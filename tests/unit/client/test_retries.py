"""What is sent again and what is never sent again, asked of `Client` and of `AsyncClient`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import (
    Refuse,
    ScriptedServer,
    asked,
    refuse_with_details,
    reply,
)
from wattserve_client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
    WattserveError,
)
from wattserve_client._channel import Link, Tries
from wattserve_proto.limits import MAX_MESSAGE_BYTES
from wattserve_proto.v1 import inference_pb2 as pb


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("inputs", ["a film", "x" * 3_000_000], ids=["small", "three megabytes"])
def test_a_prediction_refused_by_a_full_queue_is_sent_again(server: Any, client: Any, inputs: str) -> None:
    refusal = Refuse("RESOURCE_EXHAUSTED", "full")
    server.script["Predict"] = [refusal, refusal, reply("positive")]
    assert client.predict(inputs).label == "positive"
    assert [request.text.texts[0] for request in asked(server, "Predict")] == [inputs] * 3


@pytest.mark.usefixtures("short_pauses")
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
    with pytest.raises(InvalidRequest, match=r"larger than max.*; send less in one request"):
        client.predict("a film")
    assert len(server.calls["Predict"]) == 1


@pytest.mark.parametrize(
    ("method", "call", "arguments"),
    [
        ("GetReceipt", "receipt", ["r-1"]),
        ("FindReceipts", "find_receipts", ["mine"]),
        ("GetServerInfo", "server_info", []),
        ("GetEnergyReport", "energy_report", []),
    ],
)
@pytest.mark.usefixtures("short_pauses")
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
    server.script["Predict"] = [Refuse("RESOURCE_EXHAUSTED", "full"), stopping(), reply("positive")]
    server.script["GetServerInfo"] = [Refuse("UNAVAILABLE", "starting"), pb.ServerInfo()]
    with kind(server.target, retry=False) as client:
        with pytest.raises(Overloaded):
            client.predict("a film")
        with pytest.raises(Unavailable):
            client.server_info()
        with pytest.raises(Unavailable):
            client.predict("a film")


def push_back(milliseconds: int) -> Refuse:
    return Refuse("RESOURCE_EXHAUSTED", "full", (("grpc-retry-pushback-ms", str(milliseconds)),))


def test_a_server_that_asks_not_to_come_back_is_left_alone(server: Any, client: Any) -> None:
    server.script["Predict"] = [push_back(-1), reply("positive")]
    with pytest.raises(Overloaded):
        client.predict("a film")
    assert len(server.calls["Predict"]) == 1


def test_a_push_back_takes_the_place_of_the_usual_pause(server: Any, client: Any) -> None:
    server.script["Predict"] = [push_back(1), push_back(60_000), reply("positive")]
    with pytest.raises((DeadlineExceeded, Overloaded)):
        client.predict("a film", timeout_s=2)
    assert len(server.calls["Predict"]) == 2  # without the push-back there would be a third within 0.2 s


def stopping() -> Refuse:
    return refuse_with_details("UNAVAILABLE", "the server is shutting down", "STARTING_OR_STOPPING")


@pytest.mark.usefixtures("short_pauses")
def test_a_prediction_of_which_nothing_ran_is_sent_again_when_the_server_is_back(
    server: Any, client: Any
) -> None:
    server.script["Predict"] = [stopping(), stopping(), reply("positive")]
    assert client.predict("a film").label == "positive"
    assert [request.text.texts[0] for request in asked(server, "Predict")] == ["a film"] * 3


@pytest.mark.parametrize(
    "refusal",
    [
        refuse_with_details("UNAVAILABLE", "lost", "SOMETHING_ELSE"),
        refuse_with_details("UNAVAILABLE", "lost", "STARTING_OR_STOPPING", domain="proxy.example"),
        refuse_with_details("INTERNAL", "lost", "STARTING_OR_STOPPING"),
        refuse_with_details("UNAVAILABLE", "failed to connect to all addresses: lost", "PROXY", domain="p"),
        Refuse("UNAVAILABLE", "failed to connect to all addresses: lost", (("via", "proxy"),)),
        Refuse("UNAVAILABLE", "lost: failed to connect to all addresses"),
        Refuse("UNAVAILABLE", "lost: Socket closed"),
    ],
)
def test_only_the_servers_own_promise_makes_it_safe(server: Any, client: Any, refusal: Refuse) -> None:
    server.script["Predict"] = [refusal, reply("positive")]
    with pytest.raises(WattserveError, match="lost"):
        client.predict("a film")
    assert len(server.calls["Predict"]) == 1


def refused(reason: str = "STARTING_OR_STOPPING") -> Unavailable:
    return Unavailable("m", "UNAVAILABLE", "h:1", reason=reason)


def pauses(tries: Tries) -> list[float | None]:
    return [tries.pause_s(refused()) for _ in range(6)]


def test_there_are_five_tries_with_growing_pauses() -> None:
    tries = Tries(Link("h:1", timeout_s=1000, retry=True), None)
    first, second, third, fourth, *none = pauses(tries)
    assert none == [None, None]
    for pause, longest in zip((first, second, third, fourth), (0.2, 0.4, 0.8, 1.6), strict=True):
        assert pause is not None
        assert longest / 2 <= pause <= longest


def test_pauses_vary_so_that_clients_refused_together_do_not_come_back_together() -> None:
    link = Link("h:1", timeout_s=1000, retry=True)
    assert len({Tries(link, None).pause_s(refused()) for _ in range(20)}) > 1


def test_there_is_no_pause_that_the_deadline_would_cut() -> None:
    tries = Tries(Link("h:1", timeout_s=1000, retry=True), 0.05)
    assert pauses(tries) == [None] * 6


def test_without_retry_there_is_one_try() -> None:
    assert pauses(Tries(Link("h:1", timeout_s=1000, retry=False), None)) == [None] * 6


def test_a_call_that_no_server_took_is_tried_again_and_one_that_was_lost_is_not() -> None:
    link = Link("h:1", timeout_s=1000, retry=True)
    failure = refused(reason="")
    assert Tries(link, None).pause_s(failure) is None
    failure.never_sent = True
    assert Tries(link, None).pause_s(failure) is not None
    assert Tries(Link("h:1", timeout_s=1000, retry=False), None).pause_s(failure) is None


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_call_cut_while_a_server_had_it_is_not_taken_for_never_sent(server: Any, kind: Any) -> None:
    def vanish(request: Any, call: Any) -> pb.PredictResponse:
        threading.Thread(target=server.stop).start()
        call.ended.wait(timeout=60)
        return reply("positive")

    server.script["Predict"] = [vanish]
    with kind(server.target) as client, pytest.raises(WattserveError) as caught:
        client.predict("a film")
    assert not getattr(caught.value, "never_sent", False)
    assert "nothing ran" not in caught.value.message
    assert len(server.calls["Predict"]) == 1


def test_closing_the_client_ends_a_prediction_that_waits_for_its_next_try(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = threading.Event()

    def pause_s(tries: Tries, failure: Unavailable) -> float:
        pauses.set()
        return 5

    def close() -> None:
        pauses.wait(timeout=60)
        client.close()

    monkeypatch.setattr(Tries, "pause_s", pause_s)
    server.script["Predict"] = [stopping()]
    client = Client(server.target)
    threading.Thread(target=close).start()
    with pytest.raises(Cancelled, match="the client was closed"):
        client.predict("a film")
    assert len(server.calls["Predict"]) == 1


async def test_closing_the_async_client_ends_a_prediction_that_waits_for_its_next_try(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = asyncio.Event()

    def pause_s(tries: Tries, failure: Unavailable) -> float:
        pauses.set()
        return 0.05

    monkeypatch.setattr(Tries, "pause_s", pause_s)
    server.script["Predict"] = [stopping()]
    client = AsyncClient(server.target)
    task = asyncio.create_task(client.predict("a film"))
    await pauses.wait()
    await client.close()
    with pytest.raises(Cancelled, match="the client was closed"):
        await task
    assert len(server.calls["Predict"]) == 1
