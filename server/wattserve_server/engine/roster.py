"""The roster: every variant that a server was started with, by name, and whether it is in memory.

Lives on the event loop. Knows who may run; how a variant is made is for the engine to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch

from wattserve_server.engine.variants.catalogue import Choice
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import NotFound


class State(Enum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Resident:
    """A variant in memory. open_requests: accepted and not ended; free: set while there are none."""

    variant: Variant
    open_requests: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.free.set()

    def enter(self) -> None:
        self.open_requests += 1
        self.free.clear()

    def leave(self) -> None:
        self.open_requests -= 1
        if not self.open_requests:
            self.free.set()


@dataclass(slots=True, eq=False)
class Entry:
    """A name on the roster. resident: only while READY. reason: why it FAILED. loading, leaving: while it
    is loaded, and while one that was unloaded still has requests to answer."""

    choice: Choice
    state: State = State.UNLOADED
    reason: str = ""
    resident: Resident | None = None
    loading: asyncio.Task[Resident] | None = None
    leaving: asyncio.Task[None] | None = None

    @property
    def variant(self) -> Variant | None:
        resident = self.resident  # once: a scrape asks from another thread
        return None if resident is None else resident.variant


class Roster:
    """leaving: unloaded, and still in memory until their requests are answered."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._entries = {choice.name: Entry(choice) for choice in choices}
        self.leaving: set[Resident] = set()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @property
    def ready(self) -> list[Variant]:
        return [entry.variant for entry in self if entry.variant is not None]

    def in_memory(self, device: torch.device) -> list[Variant]:
        """Those on a device that take memory: the ready ones and those that are leaving."""
        variants = [*self.ready, *(resident.variant for resident in self.leaving)]
        return [variant for variant in variants if variant.device == device]

    def remove(self, name: str) -> None:
        """Forget a variant that is not in memory."""
        del self._entries[name]

    def named(self, name: str) -> Entry:
        """Raises NotFound for a name that is not on the roster, loaded or not."""
        try:
            return self._entries[name]
        except KeyError:
            raise NotFound(
                f"unknown variant {name[:80]!r}; this server has {', '.join(self._entries)}", "variant"
            ) from None
