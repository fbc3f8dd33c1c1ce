"""Where the receipts of several servers are found by one client of theirs; asked of both clients."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import Refuse, ScriptedServer, asked, until_it_ends
from wattserve_client import AsyncClient, Cancelled, Client, NotFound, ServerError, Unavailable
from wattserve_client._servers import Owners
from wattserve_client.errors import DeadlineExceeded, InvalidRequest, WattserveError
from wattserve_proto.v1 import inference_pb2 as pb

Two = tuple[ScriptedServer, ScriptedServer]
GONE = Refuse("NOT_FOUND", "no such receipt")


@pytest.fixture
def servers() -> Iterator[Two]:
    with ScriptedServer() as first, ScriptedServer() as second:
        yield first, second


@pytest.fixture(params=BOTH, ids=["sync", "async"])
def client(request: Any, servers: Two) -> Iterator[Any]:
    with request.param([each.target for each in servers]) as client:
        yield client


def keeps(server: ScriptedServer, run: str) -> None:
    """The server knows the receipts of this run of it, and no other."""

    def find(request: pb.GetReceiptRequest, call: Any) -> pb.Receipt:
        if not request.receipt_id.startswith(f"{run}-"):
            call.refuse(GONE)
        return pb.Receipt(receipt_id=request.receipt_id, energy_uj=7)

    server.script["GetReceipt"] = [find]


@pytest.mark.parametrize("owner", [0, 1])
def test_a_receipt_is_found_wherever_it_is(servers: Two, client: Any, owner: int) -> None:
    keeps(servers[owner], "4ae9")
    keeps(servers[1 - owner], "77b0")
    assert client.receipt("4ae9-1", wait_until_settled=True).receipt_id == "4ae9-1"
    (request,) = asked(servers[owner], "GetReceipt")
    assert request.wait_until_settled


def test_the_server_of_a_run_is_remembered(servers: Two, client: Any) -> None:
    keeps(servers[0], "77b0")
    keeps(servers[1], "4ae9")
    for number in range(1, 6):
        assert client.receipt(f"4ae9-{number}").energy_uj == 7
    assert {request.receipt_id for request in asked(servers[0], "GetReceipt")} <= {"4ae9-1"}
    with pytest.raises(NotFound):
        client.receipt("0000-1")
    assert client.receipt("77b0-1").energy_uj == 7


def test_a_receipt_that_no_server_has_is_not_found(servers: Two, client: Any) -> None:
    keeps(servers[0], "77b0")
    keeps(servers[1], "4ae9")
    with pytest.raises(NotFound) as caught:
        client.receipt("0000-1")
    assert (caught.value.message, caught.value.target) == ("no such receipt", client.target)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("owner", [0, 1])
def test_a_server_out_of_reach_does_not_hide_the_receipt_of_another(
    servers: Two, client: Any, owner: int
) -> None:
    keeps(servers[owner], "4ae9")
    servers[1 - owner].stop()
    assert client.receipt("4ae9-1").energy_uj == 7


@pytest.mark.parametrize("owner", [0, 1])
def test_a_server_that_does_not_answer_does_not_hide_the_receipt_of_another(
    servers: Two, client: Any, owner: int
) -> None:
    keeps(servers[owner], "4ae9")
    servers[1 - owner].script["GetReceipt"] = [until_it_ends]
    assert client.receipt("4ae9-1").energy_uj == 7


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_receipt_that_may_be_with_a_server_out_of_reach_is_not_called_gone(kind: Any, servers: Two) -> None:
    keeps(servers[0], "77b0")
    servers[1].stop()
    targets = [each.target for each in servers]
    with kind(targets, retry=False) as client, pytest.raises(Unavailable) as caught:
        client.receipt("4ae9-1")
    words = f"no server in reach has the receipt '4ae9-1'; out of reach: {servers[1].target}"
    assert caught.value.message == words


def test_a_server_that_fails_over_a_receipt_is_not_called_out_of_reach(servers: Two, client: Any) -> None:
    keeps(servers[0], "77b0")
    servers[1].script["GetReceipt"] = [Refuse("INTERNAL", "a bug")]
    with pytest.raises(ServerError, match="a bug") as caught:
        client.receipt("4ae9-1")
    assert caught.value.target == servers[1].target


def test_closing_the_client_ends_the_search_for_a_receipt(servers: Two) -> None:
    for each in servers:
        each.script["GetReceipt"] = [until_it_ends]
    client = Client([each.target for each in servers])
    caught: list[BaseException] = []

    def look() -> None:
        try:
            client.receipt("4ae9-1")
        except WattserveError as error:
            caught.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    assert all(each.asked("GetReceipt").wait(timeout=60) for each in servers)
    client.close()
    thread.join(timeout=60)
    assert [error.code for error in caught if isinstance(error, WattserveError)] == ["CANCELLED"]


async def test_closing_the_async_client_ends_the_search_for_a_receipt(servers: Two) -> None:
    for each in servers:
        each.script["GetReceipt"] = [until_it_ends]
    client = AsyncClient([each.target for each in servers])
    task = asyncio.create_task(client.receipt("4ae9-1"))
    for each in servers:
        assert await asyncio.to_thread(each.asked("GetReceipt").wait, 60)
    await client.close()
    with pytest.raises(Cancelled, match="the client was closed"):
        await task


async def test_cancelling_a_search_for_a_receipt_cancels_its_calls(servers: Two) -> None:
    for each in servers:
        each.script["GetReceipt"] = [until_it_ends]
    async with AsyncClient([each.target for each in servers]) as client:
        task = asyncio.create_task(client.receipt("4ae9-1"))
        for each in servers:
            asking = asyncio.create_task(asyncio.to_thread(each.asked("GetReceipt").wait, 60))
            await asyncio.wait((asking, task), return_when=asyncio.FIRST_COMPLETED)
            assert not task.done(), task.exception()
        task.cancel()
        for each in servers:
            assert await asyncio.to_thread(each.calls["GetReceipt"][0].ended.wait, 60)
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_calls_that_lost_the_search_are_cancelled(servers: Two, client: Any) -> None:
    was_left: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def wait(request: Any, call: Any) -> pb.Receipt:
        was_left.put(call.ended.wait(timeout=60))
        return pb.Receipt()

    def find(request: Any, call: Any) -> pb.Receipt:
        servers[1].asked("GetReceipt").wait(timeout=60)
        return pb.Receipt(receipt_id="4ae9-1")

    servers[0].script["GetReceipt"], servers[1].script["GetReceipt"] = [find], [wait]
    assert client.receipt("4ae9-1").receipt_id == "4ae9-1"
    assert was_left.get(timeout=60)


def holds(server: ScriptedServer, *created: int, older: bool = False) -> None:
    """The server has receipts of every request id, made at these instants."""
    receipts = [pb.Receipt(receipt_id=f"r-{at}", created_unix_ns=at) for at in created]
    server.script["FindReceipts"] = [pb.FindReceiptsResponse(receipts=receipts, older_left_out=older)]


def test_the_receipts_of_a_request_id_are_those_of_all_servers_newest_first(
    servers: Two, client: Any
) -> None:
    holds(servers[0], 5, 2)
    holds(servers[1], 9, 3, older=True)
    found = client.find_receipts("mine", wait_until_settled=True)
    assert [receipt.receipt_id for receipt in found.receipts] == ["r-9", "r-5", "r-3", "r-2"]
    assert found.older_left_out
    for each in servers:
        (request,) = asked(each, "FindReceipts")
        assert (request.request_id, request.wait_until_settled) == ("mine", True)


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("owner", [0, 1])
def test_a_server_without_receipts_of_a_request_id_hides_none_of_another(
    servers: Two, client: Any, owner: int
) -> None:
    holds(servers[owner], 5)
    servers[1 - owner].script["FindReceipts"] = [GONE]
    found = client.find_receipts("mine")
    assert ([receipt.receipt_id for receipt in found.receipts], found.older_left_out) == (["r-5"], False)
    servers[owner].stop()
    with pytest.raises(Unavailable, match=f"a receipt of the request 'mine'; .*: {servers[owner].target}"):
        client.find_receipts("mine")


def test_a_request_id_that_no_server_knows_is_not_found(servers: Two, client: Any) -> None:
    for each in servers:
        each.script["FindReceipts"] = [GONE]
    with pytest.raises(NotFound) as caught:
        client.find_receipts("mine")
    assert (caught.value.message, caught.value.target) == ("no such receipt", client.target)


def not_found(target: str) -> NotFound:
    return NotFound("gone", "NOT_FOUND", target, reason="NOT_FOUND")


def test_nowhere_means_that_all_have_said_so() -> None:
    owners: Owners[str] = Owners("a, b", "ab")
    error = owners.missing("x-1", [not_found("a"), not_found("b")])
    assert (type(error), error.reason, error.target) == (NotFound, "NOT_FOUND", "a, b")
    late = DeadlineExceeded("late", "DEADLINE_EXCEEDED", "b")
    assert type(owners.missing("x-1", [late, not_found("a")])) is Unavailable
    wrong = InvalidRequest("m", "INVALID_ARGUMENT", "b")
    assert owners.missing("x-1", [not_found("a"), late, wrong]) is wrong
    assert owners.missing("x-1", [late]) is late


def test_an_id_without_a_run_teaches_nothing() -> None:
    owners: Owners[str] = Owners("a, b", "ab")
    owners.note("odd", "b")
    assert owners.to_ask("odd") == ("a", "b")
    owners.note("4a-e9-1", "b")
    assert owners.to_ask("4a-e9-2") == ("b",)
    assert owners.to_ask("4a-1") == ("a", "b")
