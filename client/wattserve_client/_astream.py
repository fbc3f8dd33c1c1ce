"""The loop of the asyncio client's `predict_many`; the blocking client's is in `_answers`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any

import grpc

from wattserve_client._channel import Link
from wattserve_client._requests import Inputs
from wattserve_client._status import StatusNotes
from wattserve_client._stream import StreamBook
from wattserve_client.errors import WattserveError
from wattserve_client.results import Answer
from wattserve_proto.v1 import inference_pb2 as pb


async def answers(
    link: Link, start: Callable[[], Any], inputs: AsyncIterator[Inputs], book: StreamBook, timeout_s: float
) -> AsyncGenerator[Answer, None]:
    """The answers of one stream, which `start` opens."""
    call = start()
    room = asyncio.Semaphore(book.in_flight)
    events: asyncio.Queue[Any] = asyncio.Queue()
    tasks = (
        asyncio.create_task(_send(inputs, book, room, call, events)),
        asyncio.create_task(_forward(link, call, events)),
    )
    try:
        while True:
            match await _next_event(events, book, timeout_s):
                case pb.PredictStreamResponse() as response:
                    yield book.answer(response)
                    room.release()
                case Answer() as answer:
                    yield answer
                    room.release()
                case WattserveError() as error:
                    raise book.broken(error)
                case BaseException() as error:
                    raise error
                case None:
                    book.ended()
                    return
    finally:
        for task in tasks:
            task.cancel()
        call.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(link: Link, call: Any, events: asyncio.Queue[Any]) -> None:
    """Put each response of a stream into `events`, then the error that ended it, or None."""
    notes = StatusNotes(call)
    try:
        async for response in call:
            events.put_nowait(response)
    except grpc.RpcError as raised:
        error = notes.unmask(raised)
        events.put_nowait(None if error is None else link.failure(error))
    except asyncio.CancelledError:
        events.put_nowait(link.closed())
        raise
    else:
        events.put_nowait(None)


async def _send(
    inputs: AsyncIterator[Inputs],
    book: StreamBook,
    room: asyncio.Semaphore,
    call: Any,
    events: asyncio.Queue[Any],
) -> None:
    """Send the inputs as there is room for them; `events` gets what cannot be sent, and what they raise."""
    try:
        while True:
            await room.acquire()
            try:
                asked = book.ask(await anext(inputs))
            except StopAsyncIteration:
                break
            if isinstance(asked, Answer):
                events.put_nowait(asked)
                continue
            try:
                await call.write(asked)
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # the call is over, and `_forward` says why
        book.all_sent = True
        await call.done_writing()
    except BaseException as error:
        events.put_nowait(error)
        raise


async def _next_event(events: asyncio.Queue[Any], book: StreamBook, timeout_s: float) -> Any:
    """The next event; DeadlineExceeded when the server owed something all through `timeout_s`."""
    while events.empty():
        owed = book.owed
        try:
            async with asyncio.timeout(timeout_s):
                return await events.get()
        except TimeoutError:
            if owed:
                raise book.silent(timeout_s) from None
    return events.get_nowait()


class Each(AsyncIterator[Inputs]):
    """A plain iterable, taken from without waiting."""

    def __init__(self, items: Iterable[Inputs]) -> None:
        self._items = iter(items)

    async def __anext__(self) -> Inputs:
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None
