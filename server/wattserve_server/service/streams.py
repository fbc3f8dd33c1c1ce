"""A stream of requests, each answered by a task of its own; the same for every protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from wattserve_server.service.serving import Serving

IN_FLIGHT = 1024
"""Requests of one stream whose answers are not sent yet; the server reads no more of it until some are."""

Request = TypeVar("Request")
Reply = TypeVar("Reply")


async def answers(
    requests: AsyncIterator[Request],
    answer: Callable[[Request], Coroutine[Any, Any, Reply]],
    serving: Serving,
    in_order: bool,
) -> AsyncIterator[Reply]:
    """The replies: in the order of the requests, or as they finish.

    answer: never raises; an error is a reply. When the server shuts down nothing more is read, what was read
    is answered, and UnavailableError ends the stream. So does, in the same way, what `requests` raises.
    """
    done: asyncio.Queue[asyncio.Task[Reply] | None] = asyncio.Queue()
    room = asyncio.Semaphore(IN_FLIGHT)
    running: set[asyncio.Task[Reply]] = set()

    async def read() -> None:
        async for request in requests:
            await room.acquire()
            task = asyncio.create_task(answer(request))
            running.add(task)
            task.add_done_callback(running.discard)
            if in_order:
                done.put_nowait(task)
            else:
                task.add_done_callback(done.put_nowait)

    async def read_all() -> None:
        draining = asyncio.create_task(serving.draining.wait())
        try:
            await asyncio.wait((reader, draining), return_when=asyncio.FIRST_COMPLETED)
            was_cut_short = not reader.done()
            reader.cancel()
            if running:
                await asyncio.wait(running)
            if was_cut_short:
                serving.check_not_draining()
            else:
                reader.result()
        finally:
            draining.cancel()
            done.put_nowait(None)

    reader = asyncio.create_task(read())
    feeder = asyncio.create_task(read_all())
    for task in (reader, feeder):  # whoever leaves early does not ask how they ended
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        while (answered := await done.get()) is not None:
            yield await answered
            room.release()
        await feeder
    finally:
        reader.cancel()  # first, or it might begin one more
        with suppress(asyncio.CancelledError):
            await asyncio.wait((reader,))
        feeder.cancel()
        for answered in tuple(running):
            answered.cancel()
