"""One client of several servers: who answers what; asked of both clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import (
    Refuse,
    ScriptedServer,
    asked,
    refuse_with_details,
    texts,
)
from wattserve_client import AsyncClient, Client, Unavailable
from wattserve_client._channel import Tries
from wattserve_proto.v1 import inference_pb2 as pb

Two = tuple[ScriptedServer, ScriptedServer]


@pytest.fixture
def servers() -> Iterator[Two]:
    with ScriptedServer() as first, ScriptedServer() as second:
        yield first, second


@pytest.fixture(params=BOTH, ids=["sync", "async"])
def client(request: Any, servers: Two) -> Iterator[Any]:
    with request.param([each.target for each in servers]) as client:
        yield client


def until_both_serve(client: Any, servers: Two) -> None:
    """The second connection stands a moment after the first."""
    while not all(each.asked("Predict").is_set() for each in servers):
        client.predict("a film")


def test_predictions_take_turns(servers: Two, client: Any) -> None:
    until_both_serve(client, servers)
    before = [len(each.calls["Predict"]) for each in servers]
    for _ in range(10):
        client.predict("a film")
    after = [len(each.calls["Predict"]) for each in servers]
    assert [late - early for early, late in zip(before, after, strict=True)] == [5, 5]


def test_a_stream_stays_with_one_server(servers: Two, client: Any) -> None:
    until_both_serve(client, servers)
    for _ in range(2):
        assert sorted(answer.index for answer in client.predict_many(texts(5))) == [0, 1, 2, 3, 4]
    assert [[len(read) for read in asked(each, "PredictStream")] for each in servers] == [[5], [5]]


@pytest.mark.parametrize("leaver", [0, 1])
def test_when_one_server_is_gone_the_other_serves_on(servers: Two, client: Any, leaver: int) -> None:
    until_both_serve(client, servers)
    servers[leaver].stop()
    for _ in range(20):
        client.predict("a film")


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_server_that_was_never_there_is_passed_over(kind: Any) -> None:
    with ScriptedServer() as gone, ScriptedServer() as there:
        gone.stop()
        with kind((gone.target, there.target)) as client:
            for _ in range(5):
                client.predict("a film")
    assert len(there.calls["Predict"]) == 5


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_name_without_an_address_is_passed_over_and_has_its_member(kind: Any) -> None:
    with ScriptedServer() as there:
        targets = [there.target, "no-such-host.invalid:50051"]
        with kind(targets) as client:
            assert client.predict("a film").label == "positive"
            assert [member.target for member in client.members] == targets
            client.members[0].server_info()
            with pytest.raises(Unavailable):
                client.members[1].server_info(timeout_s=1)


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_when_no_server_is_there_the_error_names_all(kind: Any) -> None:
    with ScriptedServer() as first, ScriptedServer() as second:
        targets = [first.target, second.target]
    with kind(targets) as client, pytest.raises(Unavailable) as caught:
        client.predict("a film")
    assert caught.value.target == ", ".join(targets) == client.target


def test_a_server_that_says_it_does_not_serve_is_passed_over_until_it_does(servers: Two, client: Any) -> None:
    servers[0].say_health(serving=False)
    for _ in range(10):
        client.predict("a film")
    list(client.predict_many(texts(2)))
    assert servers[0].calls == {}
    servers[0].say_health(serving=True)
    until_both_serve(client, servers)


def say_that_none_serves(servers: Two) -> None:
    for each in servers:
        each.say_health(serving=False)


def test_a_prediction_that_no_server_is_ready_for_waits_until_one_is(servers: Two, client: Any) -> None:
    say_that_none_serves(servers)
    ready = threading.Timer(0.1, servers[1].say_health, [True])
    ready.start()
    assert client.predict("a film").label == "positive"
    assert (len(servers[0].calls["Predict"]), len(servers[1].calls["Predict"])) == (0, 1)


def test_a_prediction_that_no_server_is_ready_for_keeps_its_deadline(
    servers: Two, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float | None] = []
    pause_s = Tries.pause_s

    def noted(tries: Tries, failure: Unavailable) -> float | None:
        pauses.append(pause_s(tries, failure))
        return pauses[-1]

    monkeypatch.setattr(Tries, "pause_s", noted)
    say_that_none_serves(servers)
    with pytest.raises(Unavailable):
        client.predict("a film", timeout_s=1)
    assert pauses[-1] is None
    assert len(pauses) < 5  # so many tries there would be without a deadline


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_when_no_server_is_ready_the_error_says_that_nothing_ran(servers: Two, kind: Any) -> None:
    say_that_none_serves(servers)
    with kind([each.target for each in servers], retry=False) as client:
        with pytest.raises(Unavailable, match=r"^no server took the call, so nothing ran \(") as caught:
            client.predict("a film")
        with pytest.raises(Unavailable, match="so nothing ran") as caught_of_many:
            list(client.predict_many(texts(5)))
    for error in (caught.value, caught_of_many.value):
        assert (error.never_sent, error.reason) == (True, "")  # a reason would be the server's own word
        assert not hasattr(error, "__notes__")  # of inputs whose fate is not known
    assert servers[0].calls == servers[1].calls == {}


@pytest.mark.usefixtures("short_pauses")
def test_a_prediction_refused_by_a_server_that_stops_goes_to_the_other(servers: Two, client: Any) -> None:
    until_both_serve(client, servers)
    stopping = refuse_with_details("UNAVAILABLE", "shutting down", "STARTING_OR_STOPPING")
    servers[0].script["Predict"] = [stopping]
    for _ in range(4):
        assert client.predict("a film").label == "positive"


def test_a_prediction_refused_by_a_full_server_goes_to_the_other(servers: Two, client: Any) -> None:
    until_both_serve(client, servers)
    servers[0].script["Predict"] = [Refuse("RESOURCE_EXHAUSTED", "full")]
    for _ in range(4):
        assert client.predict("a film").label == "positive"


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("server_info", []),
        ("energy_report", []),
        ("load_variant", ["int8"]),
        ("unload_variant", ["int8"]),
        ("watch_receipts", []),
        ("watch_receipts", [["a-1"]]),
    ],
)
def test_what_concerns_one_server_is_not_left_to_chance(
    servers: Two, client: Any, method: str, arguments: list[Any]
) -> None:
    with pytest.raises(ValueError, match=r"this concerns one server.*: ask each of client\.members"):
        getattr(client, method)(*arguments)
    assert servers[0].calls == servers[1].calls == {}


def test_each_member_asks_its_own_server(servers: Two, client: Any) -> None:
    for each, name in zip(servers, "ab", strict=True):
        each.script["GetServerInfo"] = [pb.ServerInfo(instance_id=name)]
    assert [member.target for member in client.members] == [each.target for each in servers]
    assert [member.server_info().instance_id for member in client.members] == ["a", "b"]


def test_the_member_of_a_client_with_one_server_is_itself() -> None:
    for kind in (Client, AsyncClient):
        for target in ("10.0.0.1:1", ["10.0.0.1:1"]):
            client: Any = kind(target)
            assert client.members == (client,)
            assert client.target == "10.0.0.1:1"


def test_members_are_closed_with_their_client(servers: Two, client: Any) -> None:
    members = client.members
    members[0].server_info()
    client.close()
    for member in members:
        with pytest.raises(RuntimeError, match="this client is closed"):
            member.server_info()
    with pytest.raises(RuntimeError, match="this client is closed"):
        client.receipt("a-1")
