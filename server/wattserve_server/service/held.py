"""The bytes of messages that calls hold: a long request's until its call has ended, or it is answered, and a
long reply's until it is written to a caller who reads it."""

from __future__ import annotations

import asyncio
from collections import Counter

from wattserve_server.errors import OverloadedError

# In messages as long as may be (--max-message-bytes): of all callers, and of one of them.
MOST, MOST_OF_ONE = 64, 16


class HeldBytes:
    """Belongs to the event loop. message_bytes: of a message at the most."""

    def __init__(self, message_bytes: float = float("inf")) -> None:
        self.message_bytes = message_bytes
        self._most, self._most_of_one = MOST * message_bytes, MOST_OF_ONE * message_bytes
        self._by_caller: Counter[str] = Counter()
        self._freed = asyncio.Event()
        self._unread: Counter[str] = Counter()  # of replies, by caller
        self.total = self.unread = 0  # of requests, and of replies

    def take(self, name: str, size: int) -> None:
        """So many more of that caller, until `give_back`. Raises OverloadedError."""
        if not self._has_room(name, size):
            whose, held = (
                (name, self._by_caller[name]) if self.total + size <= self._most else ("", self.total)
            )
            raise OverloadedError(
                f"{whose or 'the server'} holds {held} bytes of messages that are not answered yet, and has "
                f"no room for {size} more: send them once some are",
                "message_bytes",
            )
        self._by_caller[name] += size
        self.total += size

    def give_back(self, name: str, size: int) -> None:
        self.total -= size
        self._by_caller[name] -= size
        if not self._by_caller[name]:
            del self._by_caller[name]
        self._freed.set()

    async def until_room(self, name: str, size: int) -> None:
        """Wait until that caller may take so many."""
        while not self._has_room(name, size):
            self._freed.clear()
            await self._freed.wait()

    def _has_room(self, name: str, size: int) -> bool:
        return self.total + size <= self._most and self._by_caller[name] + size <= self._most_of_one

    def add_reply(self, name: str, size: int) -> None:
        """To that caller; as many fewer once it is written."""
        self.unread += size
        self._unread[name] += size
        if not self._unread[name]:
            del self._unread[name]
        self._freed.set()

    async def until_read(self, name: str) -> None:
        """Wait until that caller may be told more."""
        while not self._may_be_told(name):
            self._freed.clear()
            await self._freed.wait()

    def _may_be_told(self, name: str) -> bool:
        return self.unread < self._most and self._unread[name] < self._most_of_one

    def check_unread(self, name: str) -> None:
        """Whether that caller may be told more. Raises OverloadedError."""
        if self._may_be_told(name):
            return
        whose, unread = (name, self._unread[name]) if self.unread < self._most else ("", self.unread)
        raise OverloadedError(
            f"{unread} bytes of replies{whose and f' to {whose}'} are not read yet: read them first",
            "message_bytes",
        )
