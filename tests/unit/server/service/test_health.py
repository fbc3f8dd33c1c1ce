"""Health, with the official messages: who may ask, and that everybody who watches hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from wattserve_server.errors import NotFound, OverloadedError
from wattserve_server.service import listen
from wattserve_server.service.caller import CALLER, Caller
from wattserve_server.service.listen import HealthService

SERVICE = "wattserve.v1.Inference"
Status = health_pb2.HealthCheckResponse


def asked(name: str = SERVICE) -> Any:
    return health_pb2.HealthCheckRequest(service=name)


@pytest.fixture(autouse=True)
def caller() -> None:
    CALLER.set(Caller("ipv4:10.0.0.1"))


async def heard(watch: AsyncIterator[Any]) -> int:
    """The next that a watcher is told; it must not take long."""
    reply = await asyncio.wait_for(anext(watch), timeout=60)
    return int(reply.status)


async def hears_nothing(watch: AsyncIterator[Any]) -> bool:
    """Whether a watcher still waits after everybody else has had a turn. It is then gone."""
    waiting = asyncio.ensure_future(anext(watch))
    for _ in range(5):
        await asyncio.sleep(0)
    is_waiting = not waiting.done()
    waiting.cancel()
    return is_waiting


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_a_server_serves_once_it_says_so(name: str) -> None:
    health = HealthService((SERVICE,))
    assert (await health.Check(asked(name), None)).status == Status.NOT_SERVING
    health.say(serving=True)
    assert (await health.Check(asked(name), None)).status == Status.SERVING
    health.say(serving=False)
    assert (await health.Check(asked(name), None)).status == Status.NOT_SERVING


async def test_an_unknown_service_is_not_found_by_check() -> None:
    with pytest.raises(NotFound, match=r"unknown service 'other'; known: wattserve\.v1\.Inference") as caught:
        await HealthService((SERVICE,)).Check(asked("other"), None)
    assert caught.value.field == "service"


async def test_an_unknown_service_can_be_watched_and_stays_unknown() -> None:
    health = HealthService((SERVICE,))
    watch = health.Watch(asked("other"), None)
    assert await heard(watch) == Status.SERVICE_UNKNOWN
    health.say(serving=True)
    assert await hears_nothing(watch)


async def test_one_watcher_leaves_and_the_other_still_hears_of_changes() -> None:
    health = HealthService((SERVICE,))
    leaving, staying = health.Watch(asked(), None), health.Watch(asked(), None)
    for watch in (leaving, staying):
        assert await heard(watch) == Status.NOT_SERVING
    assert await hears_nothing(leaving)  # cancelled while it waits, as grpc does it
    for serving in (True, False, True):
        health.say(serving)
        assert await heard(staying) == (Status.SERVING if serving else Status.NOT_SERVING)


async def test_what_is_said_again_is_not_told_again() -> None:
    health = HealthService(())
    health.say(serving=True)
    watch = health.Watch(asked(""), None)
    assert await heard(watch) == Status.SERVING
    health.say(serving=True)
    assert await hears_nothing(watch)


async def test_a_watcher_that_was_busy_hears_the_latest() -> None:
    health = HealthService(())
    watch = health.Watch(asked(""), None)
    assert await heard(watch) == Status.NOT_SERVING
    health.say(serving=True)
    health.say(serving=False)
    health.say(serving=True)
    assert await heard(watch) == Status.SERVING


async def test_no_caller_and_all_of_them_hold_no_more_than_so_many_watches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listen, "MOST_WATCHES_OF_ONE", 2)
    monkeypatch.setattr(listen, "MOST_WATCHES", 3)
    health = HealthService(())

    async def watches(who: str) -> AsyncIterator[Any]:
        CALLER.set(Caller(who))
        watch = health.Watch(asked(""), None)
        assert await heard(watch) == Status.NOT_SERVING
        return watch

    first, _ = await watches("ipv4:10.0.0.1"), await watches("ipv4:10.0.0.1")
    with pytest.raises(OverloadedError, match=r"ipv4:10.0.0.1 watches the health of this server 2 times"):
        await watches("ipv4:10.0.0.1")
    await watches("ipv4:10.0.0.2")
    with pytest.raises(OverloadedError, match="all callers 3 times"):
        await watches("ipv4:10.0.0.3")
    assert await hears_nothing(first)  # it leaves
    await watches("ipv4:10.0.0.3")
