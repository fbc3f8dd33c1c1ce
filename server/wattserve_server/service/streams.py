"""Streams of requests: each is answered by a task of its own; what was read is, when the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from google.protobuf.message import Message

from wattserve_server.service.generation import Unread
from wattserve_server.service.methods import CALL
from wattserve_server.service.prediction import Serving

IN_FLIGHT = 1024  # requests of one stream without an answer yet: the server reads no more until some have one

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Whole = TypeVar("Whole", bound=Message)
Work = Callable[[Request], Coroutine[Any, Any, Reply]]


async def answers(
    requests: AsyncIterator[Request],
    answer: Work[Request, Whole],
    serving: Serving,
    unread: Unread,
    in_order: bool,
) -> AsyncIterator[Whole]:
    """A stream's replies: in the order of the requests, or as they finish. What its caller does not read of
    them is held against him, and ends the stream after a while.

    answer: never raises; an error is a reply. When the server shuts down nothing more is read, what was read
    is answered, and UnavailableError ends the stream. What `requests` raises ends it in the same way.
    """
    done: asyncio.Queue[asyncio.Task[Whole] | None] = asyncio.Queue()
    room = asyncio.Semaphore(IN_FLIGHT)
    call = CALL.get()
    await call.begin_replies()

    def is_there(task: asyncio.Task[Whole]) -> None:
        if not task.cancelled():
            call.hold_reply(task.result().ByteSize())

    def begun(task: asyncio.Task[Whole]) -> None:
        task.add_done_callback(is_there)
        if in_order:
            done.put_nowait(task)
        else:
            task.add_done_callback(done.put_nowait)

    async with _worked_on(requests, answer, serving, room, begun, done) as all_done:
        while (answered := await done.get()) is not None:
            reply = await answered
            with unread.waiting(call):
                yield reply
            call.hold_reply(-reply.ByteSize())
            room.release()
        await all_done


async def many_answers(
    requests: AsyncIterator[Request],
    answer: Callable[[Request], AsyncGenerator[Reply, None]],
    serving: Serving,
) -> AsyncIterator[Reply]:
    """As `answers`, of requests that may have several replies each: they come mixed, each request's in their
    order. Who does not read holds all of them up."""
    replies: asyncio.Queue[Reply | None] = asyncio.Queue()
    way = asyncio.Semaphore(1)  # free once the reply before has been read
    room = asyncio.Semaphore(IN_FLIGHT)

    async def work(request: Request) -> None:
        async with aclosing(answer(request)) as own:
            async for reply in own:
                await way.acquire()
                replies.put_nowait(reply)

    def begun(task: asyncio.Task[None]) -> None:
        task.add_done_callback(lambda _: room.release())

    async with _worked_on(requests, work, serving, room, begun, replies) as all_done:
        while (reply := await replies.get()) is not None:
            yield reply
            way.release()
        await all_done


@asynccontextmanager
async def _worked_on(
    requests: AsyncIterator[Request],
    work: Work[Request, Reply],
    serving: Serving,
    room: asyncio.Semaphore,
    begun: Callable[[asyncio.Task[Reply]], None],
    ends: asyncio.Queue[Any],
) -> AsyncIterator[asyncio.Task[None]]:
    """Within the block each request is worked on by a task, which `begun` is told, while there is room. Then
    `ends` gets None, and the task that the block is given is done: it says what has ended the stream."""
    running: set[asyncio.Task[Reply]] = set()

    async def read() -> None:
        async for request in requests:
            await room.acquire()
            call = CALL.get(None)
            task = asyncio.create_task(work(request))
            running.add(task)
            task.add_done_callback(running.discard)
            if call is not None and (let_go := call.hand_over()) is not None:
                task.add_done_callback(let_go)
            begun(task)

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
            ends.put_nowait(None)

    reader = asyncio.create_task(read())
    feeder = asyncio.create_task(read_all())
    for task in (reader, feeder):  # whoever leaves early does not ask how they ended
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        yield feeder
    finally:
        reader.cancel()  # first, or it might begin one more
        with suppress(asyncio.CancelledError):
            await asyncio.wait((reader,))
        feeder.cancel()
        for answered in tuple(running):
            answered.cancel()
