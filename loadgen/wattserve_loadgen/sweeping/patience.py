"""What happens when a server is lost: wait, see that the same model is back, heat it up, do it again."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from wattserve_loadgen import words
from wattserve_loadgen.errors import TargetError
from wattserve_loadgen.sweeping.site import ServerChanged, Site

INTERRUPTED = "interrupted by the user"
_MOST_LOSSES = 3  # a server that dies of a cell would die of it for ever

Outcome = TypeVar("Outcome")


class SweepOver(Exception):
    """The sweep cannot go on; `ended` says why, for results. Raised from the TargetError that led to it."""

    def __init__(self, ended: str) -> None:
        super().__init__(ended)
        self.ended = ended


class Patience:
    """Sees things through on servers that may go away for a while."""

    def __init__(
        self,
        seconds: float,
        stopped: Callable[[], bool],
        heat_up: Callable[[Site], Awaitable[None]],
        tell: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        """`seconds`: how long to wait for a server. `heat_up`: every arm of a server that is there again.
        `tell`: the user; `note`: the results.
        """
        self._seconds, self._stopped, self._heat_up = seconds, stopped, heat_up
        self._tell, self._note = tell, note

    async def see_through(self, site: Site, what: str, action: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Do it, and once more after each time that the server was lost in it and came back; else SweepOver.
        `what`: for the user and the results.
        """
        losses = 0
        while True:
            try:
                if losses:
                    await self._heat_up(site)
                return await action()
            except TargetError as error:
                losses += 1
                if losses == _MOST_LOSSES:
                    text = f"the server was lost {losses} times in a row ({what}): {error}"
                    raise SweepOver(text) from error
                await self._wait(site, what, error)

    async def _wait(self, site: Site, what: str, error: TargetError) -> None:
        """Returns when the same model is there again."""
        changed = error if isinstance(error, ServerChanged) else error.__cause__
        if isinstance(changed, ServerChanged) and not changed.restarted:
            raise SweepOver(f"the server changed: {error}") from error
        began = time.monotonic()
        if self._seconds > 0:
            waiting = words.duration(self._seconds)
            self._tell(f"{error}; waiting up to {waiting} for the same model there")
        try:
            is_there = await site.wait(self._seconds, self._stopped)
        except ServerChanged as change:
            raise SweepOver(f"the server changed: {change}") from error
        if not is_there:
            raise SweepOver(INTERRUPTED if self._stopped() else f"the server was lost: {error}") from error
        waited = time.monotonic() - began
        text = f"{error}. The same model was there again after {waited:.0f} s: {what} ran again"
        self._tell(text)
        self._note(text)
