"""The directory, which Ray runs as an actor, on a loop of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from wattserve_server.ray_serve import directory
from wattserve_server.ray_serve.directory import Directory, answer_questions


class Remote:
    """As Ray's handle of an actor: `handle.method.remote(...)`."""

    def __init__(self, actor: Directory) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        class Method:
            remote = staticmethod(self._calling(name))

        return Method

    def _calling(self, name: str) -> Any:
        def call(*arguments: Any) -> Awaitable[Any]:
            made = getattr(self._actor, name)(*arguments)
            if not asyncio.iscoroutine(made):
                done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                done.set_result(made)
                return done
            return made

        return call


def seated(actor: Directory, name: str) -> asyncio.Task[None]:
    async def answer(question: str) -> bytes:
        return f"{name} {question}".encode()

    return asyncio.create_task(answer_questions(Remote(actor), name, answer))


async def test_each_replica_is_asked_and_named() -> None:
    actor = Directory()
    tasks = []
    for instance_id in ("first", "second"):
        name = await actor.sit()
        tasks.append(seated(actor, name))
        actor.join(name, instance_id)
    both = {"replica-0": b"replica-0 report", "replica-1": b"replica-1 report"}
    assert await actor.ask_all("report") == both
    assert await actor.ask_all("report") == both
    assert actor.whose("second") == ("replica-1", True)
    assert actor.whose("of nobody") == ("", False)
    assert actor.first() == "first"
    actor.leave("replica-0")
    assert actor.first() == "second"
    for task in tasks:
        task.cancel()


async def test_the_name_of_one_that_has_died_goes_to_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SEAT_S", 0.01)
    actor = Directory()
    dead = await actor.sit()
    actor.join(dead, "before")
    assert await actor.sit() == dead
    actor.join(dead, "now")
    assert actor.whose("before") == (dead, False)
    assert actor.whose("now") == (dead, True)


async def test_one_that_does_not_answer_is_asked_no_more() -> None:
    actor = Directory()
    actor.join(await actor.sit(), "instance")
    assert await actor.ask_all("report", 0.01) == {}
    assert actor.whose("instance") == ("replica-0", False)


async def test_without_questions_a_replica_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "WAIT_S", 0.0)
    actor = Directory()
    assert await actor.next(await actor.sit()) is None
