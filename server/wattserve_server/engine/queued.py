"""What is queued: requests and their sequences, from being accepted to being answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.attribution import BY_TIME
from wattserve_server.energy.receipt import Line, Outcome, Receipt, Window
from wattserve_server.engine.policy import NORMAL_PRIORITY, turn_ns
from wattserve_server.engine.worktime import TaskWork
from wattserve_server.errors import WattserveError

if TYPE_CHECKING:  # who simulates the queue needs no torch
    from wattserve_server.engine.lane import Lane
    from wattserve_server.engine.roster import Resident
    from wattserve_server.engine.tasks import Item


class Order(NamedTuple):
    """How a request wants to be treated, and whose it is."""

    request_id: str = ""
    deadline_ns: int | None = None
    priority: int = NORMAL_PRIORITY
    waits_until_ns: int | None = None  # when it leaves the queue, if not at its deadline
    tenant: str = ""  # whose the receipt is
    caller: str = ""  # among whom the device is shared
    # Is told its receipt at once: a caller who leaves gets no answer. bool: nobody is.
    on_open: Callable[[Receipt], object] = bool


NO_ORDER = Order()


class Answer(NamedTuple):
    """What a request gets that has run."""

    receipt: Receipt
    rows: list[NDArray[np.float32]]  # the model's output, one row for each sequence
    accepted_ns: int
    queue_ns: int  # from being accepted until its last sequence was in a batch, less what earlier ones took
    compute_ns: int  # of all batches that held a sequence of it


def earlier(one_ns: int | None, other_ns: int | None) -> int | None:
    """Of two instants that may never come, which are None."""
    if one_ns is None or other_ns is None:
        return other_ns if one_ns is None else one_ns
    return min(one_ns, other_ns)


@dataclass(slots=True, eq=False)
class QueuedSequence:
    """One sequence of a request: the unit that is queued and batched."""

    request: Request
    index: int
    item: Item
    length: int  # in tokens
    queued_ns: int
    turn_ns: int  # see `policy.turn_ns`
    line: Line

    @property
    def deadline_ns(self) -> int | None:
        """By when it has to run."""
        return self.request.leaves_ns


@dataclass(slots=True, eq=False)
class Request:
    """Queued once, answered once. Belongs to the event loop, except for what the batcher's lock guards."""

    receipt: Receipt
    resident: Resident  # what runs it, kept in memory until it has
    lane: Lane  # of the device that runs it; of several before it is bound to one, any
    accepted_ns: int
    deadline_ns: int | None  # on the monotonic clock, as `accepted_ns`; None: no deadline
    answer: asyncio.Future[Answer]
    priority: int = NORMAL_PRIORITY
    caller: str = ""  # among whom the device is shared
    is_bound: bool = True  # to its lane; not while several draw on the queue, and none has run any of it
    waits_until_ns: int | None = None  # which its deadline may be before; None: until then
    expiry: int | None = None  # the alarm that ends it while it waits, if there is one
    work: TaskWork | None = None  # of the task that serves it
    sequences: list[QueuedSequence] = field(default_factory=list)
    tokens: int = 0  # of its sequences
    remaining: int = 0  # sequences that have neither run nor left the queue
    _rows: dict[int, NDArray[np.float32]] = field(default_factory=dict)  # by the sequence's index
    _last_started_ns: int = 0
    _last_compute_ns: int = 0  # of the batch that started last
    _compute_ns: int = 0
    _error: Exception | None = None

    @property
    def variant(self) -> str:
        """The name under which it runs."""
        return self.receipt.variant

    @property
    def leaves_ns(self) -> int | None:
        """When it leaves the queue without having run; None: never."""
        return earlier(self.deadline_ns, self.waits_until_ns)

    def bind(self, lane: Lane) -> None:
        """Of several lanes this one runs it, all of it."""
        self.lane, self.is_bound = lane, True
        self.receipt.device = lane.device
        if self.receipt.idle_policy == BY_TIME:
            lane.run_log.came(self.receipt)

    def add(self, item: Item, length: int) -> None:
        line = Line(self.receipt, length)
        self.receipt.lines.append(line)
        turn = turn_ns(self.accepted_ns, self.priority)
        sequence = QueuedSequence(self, len(self.sequences), item, length, self.accepted_ns, turn, line)
        self.sequences.append(sequence)
        self.tokens += length
        self.remaining += 1

    def ran_in(self, window: Window, warning: str) -> None:
        """A batch has run that held sequences of it. warning: see BatchResult."""
        if warning and warning not in self.receipt.warnings:
            self.receipt.warnings.append(warning)
        if window.start_ns > self._last_started_ns:
            self._last_started_ns, self._last_compute_ns = window.start_ns, window.duration_ns
        self._compute_ns += window.duration_ns

    def finish(self, index: int, row: NDArray[np.float32]) -> bool:
        """One of its sequences has run. Whether that was the last."""
        self._rows[index] = row
        return self.leave(1)

    def leave(self, count: int, error: Exception | None = None) -> bool:
        """Sequences of it are done with. Whether those were the last. error: why they have no row."""
        self.remaining -= count
        self._error = error or self._error
        return not self.remaining and self.receipt.outcome is Outcome.OPEN

    def end(self) -> None:
        """Give the answer, or the error, to whoever waits for it, unless that was cancelled. Lets go of its
        sequences: each refers back to it, and such a cycle would stay until Python looks for garbage."""
        if self.answer.cancelled():
            self.receipt.end(Outcome.CANCELLED)
        elif self._error is not None:
            self.receipt.end(Outcome.FAILED)
            self.answer.set_exception(self._own(self._error))
        else:
            self.receipt.end(Outcome.COMPLETED)
            rows = [self._rows[sequence.index] for sequence in self.sequences]
            queue_ns = self._last_started_ns - self.accepted_ns - (self._compute_ns - self._last_compute_ns)
            self.answer.set_result(
                Answer(self.receipt, rows, self.accepted_ns, max(0, queue_ns), self._compute_ns)
            )
        self.sequences.clear()

    def _own(self, error: Exception) -> Exception:
        """The error of a batch is one for all requests in it; each is told its own receipt."""
        if not isinstance(error, WattserveError) or not self.receipt.ran:
            return error
        own = copy(error)
        own.receipt_id = self.receipt.receipt_id
        return own
