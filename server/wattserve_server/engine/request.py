"""A request and its sequences, from acceptance to the end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.receipt import Line, Receipt
from wattserve_server.engine.policy import NORMAL_PRIORITY, turn_ns
from wattserve_server.engine.roster import Resident
from wattserve_server.engine.tasks import Item


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence of a request: the unit that is queued and batched. length: in tokens. turn_ns: see
    `policy.turn_ns`."""

    request: Request
    index: int
    item: Item
    length: int
    queued_ns: int
    turn_ns: int
    line: Line

    @property
    def deadline_ns(self) -> int | None:
        return self.request.deadline_ns


@dataclass(slots=True, eq=False)
class Request:
    """Queued once, finished once. Owned by the event loop, but for what the batcher's lock guards.

    variant: the name under which it runs. resident: what runs it, kept in memory until it has.
    accepted_ns, deadline_ns: monotonic clock; None: no deadline. rows: one output row per sequence, filled
    as they finish. remaining: sequences that have neither run nor left the queue. last_compute_ns: of the
    batch that started last. answer: resolved when the
    last of them is done.
    """

    receipt: Receipt
    variant: str
    resident: Resident
    accepted_ns: int
    deadline_ns: int | None
    answer: asyncio.Future[None]
    priority: int = NORMAL_PRIORITY
    sequences: list[Sequence] = field(default_factory=list)
    rows: list[NDArray[np.float32] | None] = field(default_factory=list)
    remaining: int = 0
    last_started_ns: int = 0
    last_compute_ns: int = 0
    compute_ns: int = 0
    error: Exception | None = None
    is_cancelled: bool = False

    @property
    def queue_ns(self) -> int:
        """From being accepted until its last sequence was in a batch, less the time that earlier ones ran."""
        return max(0, self.last_started_ns - self.accepted_ns - (self.compute_ns - self.last_compute_ns))

    def add(self, item: Item, length: int) -> None:
        line = Line(self.receipt, length)
        self.receipt.lines.append(line)
        turn = turn_ns(self.accepted_ns, self.priority)
        self.sequences.append(Sequence(self, len(self.rows), item, length, self.accepted_ns, turn, line))
        self.rows.append(None)
        self.remaining += 1
