"""Names of replicas, which of them wrote a receipt, and the ledgers of all: an actor of Ray's.

A replica has no address of its own in Ray, and a call reaches any of them. So each one is named here, waits
for questions, and answers them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

NAME = "wattserve-directory"
WAIT_S = 10.0  # that a replica waits for a question before it asks for one again
ANSWER_S = 2.0  # within which it answers, unless it is dead
SEAT_S = 10.0  # likewise, where its name would go to another

Question = tuple[int, str]


class Directory:
    """On one event loop, Ray's."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # of replicas, by the instances of which they are or were
        self._inboxes: dict[str, asyncio.Queue[Question]] = {}  # of those that are here
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = count()
        self._seating = asyncio.Lock()

    async def sit(self) -> str:
        """A name for a new replica: one that is free, if possible that of one that has died, whose accounts
        it then goes on with."""
        async with self._seating:
            await self.ask_all("", SEAT_S)
            name = next(name for name in map("replica-{}".format, count()) if name not in self._inboxes)
            self._inboxes[name] = asyncio.Queue()
            return name

    def join(self, name: str, instance_id: str) -> None:
        self._names[instance_id] = name

    def leave(self, name: str) -> None:
        self._inboxes.pop(name, None)

    def whose(self, instance_id: str) -> tuple[str, bool]:
        """The name of the replica that was that instance, empty where none was; and whether it is still."""
        name = self._names.get(instance_id, "")
        return name, name in self._inboxes and self._newest()[name] == instance_id

    def first(self) -> str:
        """The instance of the first of the replicas that are here, by their names: for all of them."""
        newest = self._newest()
        return next((newest[name] for name in sorted(self._inboxes) if name in newest), "")

    def _newest(self) -> dict[str, str]:
        """The last instance of each name."""
        return {name: instance for instance, name in self._names.items()}

    async def next(self, name: str) -> Question | None:
        """What that replica is asked; None where it is asked nothing for a while."""
        inbox = self._inboxes.setdefault(name, asyncio.Queue())
        try:
            async with asyncio.timeout(WAIT_S):
                return await inbox.get()
        except TimeoutError:
            return None

    def answer(self, number: int, data: bytes) -> None:
        waiting = self._answers.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(data)

    async def ask_all(self, question: str, within_s: float = ANSWER_S) -> dict[str, bytes]:
        """By the names of the replicas. One that does not answer has died, and is asked no more unless it
        asks for questions again."""
        asked = {}
        for name, inbox in self._inboxes.items():
            number = next(self._numbers)
            asked[name] = self._answers[number] = asyncio.get_running_loop().create_future()
            inbox.put_nowait((number, question))
        if asked:
            await asyncio.wait(asked.values(), timeout=within_s)
        for name in [name for name, waiting in asked.items() if not waiting.done()]:
            self.leave(name)
        return {name: waiting.result() for name, waiting in asked.items() if waiting.done()}


async def answer_questions(directory: Any, name: str, answer: Callable[[str], Awaitable[bytes]]) -> None:
    """Of a replica, until cancelled. directory: Ray's handle of the actor."""
    while True:
        question = await directory.next.remote(name)
        if question is not None:
            number, asked = question
            directory.answer.remote(number, await answer(asked))
