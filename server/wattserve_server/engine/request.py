"""A request and its sequences, from acceptance to the end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.receipt import Line, Receipt


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence of a request: the unit that is queued and batched. ids: int64 [tokens]."""

    request: Request
    index: int
    ids: NDArray[np.int64]
    length: int
    queued_ns: int
    line: Line


@dataclass(slots=True, eq=False)
class Request:
    """Queued once, finished once. Owned by the event loop, but for what the batcher's lock guards.

    variant: the name under which it runs. accepted_ns, deadline_ns: monotonic clock; None: no
    deadline. rows: one output row per sequence, filled as they finish. remaining: sequences that
    have neither run nor left the queue. answer: resolved when the last of them is done.
    """

    receipt: Receipt
    variant: str
    accepted_ns: int
    deadline_ns: int | None
    answer: asyncio.Future[None]
    sequences: list[Sequence] = field(default_factory=list)
    rows: list[NDArray[np.float32] | None] = field(default_factory=list)
    remaining: int = 0
    last_started_ns: int = 0
    compute_ns: int = 0
    error: Exception | None = None
    is_cancelled: bool = False

    def add(self, ids: NDArray[np.int64]) -> None:
        line = Line(self.receipt, len(ids))
        self.receipt.lines.append(line)
        self.sequences.append(Sequence(self, len(self.rows), ids, len(ids), self.accepted_ns, line))
        self.rows.append(None)
        self.remaining += 1
