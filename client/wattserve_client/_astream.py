"""What the asyncio client's `predict_many` waits for: the next event, the next input. No grpc here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from wattserve_client._requests import Inputs
from wattserve_client._stream import StreamBook


async def next_event(events: asyncio.Queue[Any], book: StreamBook, timeout_s: float) -> Any:
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
