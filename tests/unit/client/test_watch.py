"""Watching receipts, and closing a client while calls are open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import Refuse, ScriptedServer, until_it_ends
from wattserve_client import (
    AsyncClient,
    Cancelled,
    Client,
    NotFound,
    WattserveError,
)
from wattserve_proto.v1 import inference_pb2 as pb


def test_a_watch_yields_receipts_and_has_no_deadline_of_its_own(server: Any, client: Any) -> None:
    server.script["WatchReceipts"] = [[pb.Receipt(receipt_id="r-1"), pb.Receipt(receipt_id="r-2")]]
    assert [each.receipt_id for each in client.watch_receipts(["r-1", "r-2"])] == ["r-1", "r-2"]
    assert [each.receipt_id for each in client.watch_receipts(timeout_s=300)] == ["r-1", "r-2"]
    first, second = server.calls["WatchReceipts"]
    assert list(first.request.receipt_ids) == ["r-1", "r-2"]
    assert list(second.request.receipt_ids) == []
    assert first.seconds_left is None
    assert 200 < second.seconds_left < 400


def test_no_ids_are_not_taken_for_all(server: Any, client: Any) -> None:
    with pytest.raises(ValueError, match="receipt_ids is empty: name some, or leave it out to watch all"):
        list(client.watch_receipts([]))
    assert not server.calls["WatchReceipts"]


def test_a_watch_that_the_server_refuses_raises(server: Any, client: Any) -> None:
    server.script["WatchReceipts"] = [Refuse("NOT_FOUND", "no receipt 'r-9'")]
    with pytest.raises(NotFound, match="no receipt 'r-9'"):
        list(client.watch_receipts(["r-9"]))


def endless(request: Any, call: Any) -> Iterator[pb.Receipt]:
    yield pb.Receipt(receipt_id="r-1")
    call.ended.wait(timeout=60)


def test_leaving_a_watch_ends_it_on_the_server(server: Any, client: Any) -> None:
    server.script["WatchReceipts"] = [endless]
    for receipt in client.watch_receipts():
        assert receipt.receipt_id == "r-1"
        break
    assert server.calls["WatchReceipts"][0].ended.wait(timeout=60)


def test_a_watch_starts_when_it_is_asked_for_not_when_it_is_first_read(server: ScriptedServer) -> None:
    with Client(server.target) as client:
        client.server_info()  # the connection stands: a watch that nobody reads shows no error
        watch = client.watch_receipts()
        assert server.asked("WatchReceipts").wait(timeout=60)
        assert list(watch) == []


def test_a_watch_that_nobody_reads_ends_with_its_last_reference(server: ScriptedServer) -> None:
    server.script["WatchReceipts"] = [endless]
    with Client(server.target) as client:
        client.server_info()  # the connection stands: a watch that nobody reads shows no error
        watch = client.watch_receipts()
        assert server.asked("WatchReceipts").wait(timeout=60)
        del watch
        assert server.calls["WatchReceipts"][0].ended.wait(timeout=60)


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_a_closed_client_says_so_and_may_be_closed_again(server: Any, kind: Any) -> None:
    with kind(server.target) as client:
        client.server_info()
        client.close()
        with pytest.raises(RuntimeError, match="this client is closed"):
            client.server_info()
        with pytest.raises(RuntimeError, match="this client is closed"):
            client.watch_receipts()


def test_closing_the_client_ends_a_call_that_is_open_in_another_thread(server: ScriptedServer) -> None:
    caught: list[BaseException] = []

    def predict() -> None:
        try:
            client.predict("a film")
        except WattserveError as error:
            caught.append(error)

    server.script["Predict"] = [until_it_ends]
    client = Client(server.target)
    thread = threading.Thread(target=predict)
    thread.start()
    assert server.asked("Predict").wait(timeout=60)
    client.close()
    thread.join(timeout=60)
    assert [type(error) for error in caught] == [Cancelled]


async def until_asked(server: ScriptedServer, method: str) -> None:
    assert await asyncio.to_thread(server.asked(method).wait, 60)


async def test_closing_the_async_client_ends_open_calls_as_cancelled_not_their_tasks(
    server: ScriptedServer,
) -> None:
    server.script["Predict"] = [until_it_ends]
    server.script["WatchReceipts"] = [endless]

    async def watch() -> None:
        async for _ in client.watch_receipts():
            pass

    client = AsyncClient(server.target)
    tasks = [asyncio.create_task(client.predict("a film")), asyncio.create_task(watch())]
    await until_asked(server, "Predict")
    await until_asked(server, "WatchReceipts")
    await client.close()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)
    assert [str(error) for error in done] == [f"the client was closed (CANCELLED from {server.target})"] * 2


async def test_cancelling_a_task_cancels_its_call_and_is_never_swallowed(server: ScriptedServer) -> None:
    server.script["Predict"] = [until_it_ends]
    async with AsyncClient(server.target) as client:
        task = asyncio.create_task(client.predict("a film"))
        await until_asked(server, "Predict")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert await asyncio.to_thread(server.calls["Predict"][0].ended.wait, 60)


async def test_cancelling_a_task_counts_even_while_the_client_is_being_closed(server: ScriptedServer) -> None:
    server.script["Predict"] = [until_it_ends]
    client = AsyncClient(server.target)
    task = asyncio.create_task(client.predict("a film"))
    await until_asked(server, "Predict")
    task.cancel()
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await task
