"""Where requests are queued: the batcher of one device, between the event loop and the lane's thread.

The event loop puts requests in and takes cancelled ones out; the lane asks for what to run next. What goes
into a batch is for `policy` to say; here are the limits and costs of each variant, whose turn it is, and who
leaves without having run. Chores (a warm-up, say) run on the same thread, one between two batches, so that
neither keeps the other from running.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.receipt import Line, Outcome, Receipt, Window
from wattserve_server.engine.pace import Pace
from wattserve_server.engine.policy import (
    LAST_PRIORITY,
    NORMAL_PRIORITY,
    BatchCost,
    BatchLimits,
    choose_batch,
    turn_ns,
    wake_at,
)
from wattserve_server.errors import OverloadedError, WattserveError

if TYPE_CHECKING:  # who simulates the queue needs no torch
    from wattserve_server.engine.lane import Lane
    from wattserve_server.engine.roster import Resident
    from wattserve_server.engine.tasks import Item

# By so much more than was reckoned a request may take, and still be in time.
HEADROOM = 1.25

LOOKAHEAD = 2  # the policy looks at this many times a full batch of the oldest waiting sequences

Chore = Callable[[], object]


class Answer(NamedTuple):
    """What a request gets that has run."""

    receipt: Receipt
    rows: list[NDArray[np.float32]]  # the model's output, one row for each sequence
    accepted_ns: int
    queue_ns: int  # from being accepted until its last sequence was in a batch, less what earlier ones took
    compute_ns: int  # of all batches that held a sequence of it


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
    lane: Lane  # of the device that runs it
    accepted_ns: int
    deadline_ns: int | None  # on the monotonic clock, as `accepted_ns`; None: no deadline
    answer: asyncio.Future[Answer]
    priority: int = NORMAL_PRIORITY
    waits_until_ns: int | None = None  # which its deadline may be before; None: until then
    sequences: list[QueuedSequence] = field(default_factory=list)
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
        ends_ns = [end_ns for end_ns in (self.deadline_ns, self.waits_until_ns) if end_ns is not None]
        return min(ends_ns, default=None)

    def add(self, item: Item, length: int) -> None:
        line = Line(self.receipt, length)
        self.receipt.lines.append(line)
        turn = turn_ns(self.accepted_ns, self.priority)
        sequence = QueuedSequence(self, len(self.sequences), item, length, self.accepted_ns, turn, line)
        self.sequences.append(sequence)
        self.remaining += 1

    def ran_in(self, window: Window) -> None:
        """A batch has run that held sequences of it."""
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


class Batcher:
    """limits: of every variant's batches. max_queue: sequences that may wait. on_expired: called by `take`
    with a request whose deadline passed while it waited, and how many sequences of it left the queue.
    max_queue_ns: for how long a request may have to wait when it comes."""

    def __init__(
        self,
        limits: BatchLimits,
        max_queue: int,
        on_expired: Callable[[Request, int], object],
        max_queue_ns: float = float("inf"),
    ) -> None:
        self.limits = limits
        self._max_queue = max_queue
        self._max_queue_ns = max_queue_ns
        self._pace = Pace()
        self._tokens: Counter[tuple[str, int]] = Counter()  # that wait, by variant and priority
        self._running: tuple[str, int, int] | None = None  # a batch's variant, its tokens, when it began
        self._running_until_ns = 0  # when the batch that runs will have ended, as far as is known
        self._on_expired = on_expired
        self._costs: dict[str, BatchCost] = {}
        self._learned: dict[str, BatchLimits] = {}
        self._waiting: dict[tuple[str, int], dict[QueuedSequence, None]] = {}  # by variant and priority
        self._count = 0
        self._first_deadline_ns: int | None = None  # no request that waits has an earlier one
        self._changed = threading.Condition()
        self._chores: deque[Chore] = deque()
        self._is_chores_turn = True
        self._is_closed = False

    def __len__(self) -> int:
        """Sequences that wait. Any thread."""
        return self._count

    def set_cost(self, variant: str, cost: BatchCost) -> None:
        """What a variant's batches cost, as measured at warm-up."""
        with self._changed:
            self._costs[variant] = cost

    def limit_tokens(self, variant: str, tokens: int) -> None:
        """From now on no batch of a variant computes more tokens than that, as it has been found not to fit
        into memory; one sequence longer than that still runs, alone. `limits.max_tokens` lifts it."""
        with self._changed:
            self._learned[variant] = replace(self.limits, max_tokens=tokens)

    def put(self, request: Request, now_ns: int | None = None) -> None:
        """Queue all sequences of a request, or none: OverloadedError when they do not fit, or would have to
        wait for too long."""
        with self._changed:
            count = len(request.sequences)
            tokens = sum(sequence.length for sequence in request.sequences)
            wanted = (request.variant, request.priority, request.deadline_ns)
            self._check(count, tokens, *wanted, time.monotonic_ns() if now_ns is None else now_ns)
            queue = self._waiting.setdefault((request.variant, request.priority), {})
            queue.update(dict.fromkeys(request.sequences))
            self._count += count
            self._tokens[request.variant, request.priority] += tokens
            leaves_ns, first_ns = request.leaves_ns, self._first_deadline_ns
            if leaves_ns is not None and (first_ns is None or leaves_ns < first_ns):
                self._first_deadline_ns = leaves_ns
            self._changed.notify()

    def check_room(self, variant: str, priority: int, deadline_ns: int | None) -> None:
        """Raises OverloadedError as `put` would for the smallest request."""
        if self._count:
            with self._changed:
                self._check(1, 1, variant, priority, deadline_ns, time.monotonic_ns())

    def wait_ns(self, now_ns: int) -> float:
        """For how long a request that comes now will wait, as far as is known. Any thread."""
        with self._changed:
            return self._wait_ns(LAST_PRIORITY, now_ns)

    def _check(
        self, count: int, tokens: int, variant: str, priority: int, deadline_ns: int | None, now_ns: int
    ) -> None:
        wait_ns = self._wait_ns(priority, now_ns)
        if (excess := self._count + count - self._max_queue) > 0:
            until_ns = wait_ns * min(1.0, excess / max(1, self._count))
            raise OverloadedError(
                f"the queue is full: {self._count} of {self._max_queue} sequences wait, and this "
                f"request has {count}; try again later",
                "sequences",
                until_ns / 1e9 or None,
            )
        if not self._count:  # then nobody's pace has to be believed
            return
        if wait_ns > self._max_queue_ns:
            raise OverloadedError(
                f"the queue is full: what waits will take {wait_ns / 1e9:.2g} s, and no more than "
                f"{self._max_queue_ns / 1e9:g} s may wait; try again later",
                "time",
                (wait_ns - self._max_queue_ns) / 1e9,
            )
        if deadline_ns is None or deadline_ns <= now_ns:  # it expires in the queue
            return
        own_ns = max(self._ns(variant, count, tokens), self._pace.batch_ns)  # who comes later joins its batch
        late_ns = HEADROOM * (wait_ns + own_ns) - (deadline_ns - now_ns)
        if wait_ns and late_ns > 0:
            raise OverloadedError(
                f"the deadline cannot be met: what waits will take {wait_ns / 1e9:.2g} s, and the request "
                f"has {(deadline_ns - now_ns) / 1e9:.2g} s; try again later, or with more time",
                "deadline",
                late_ns / HEADROOM / 1e9,
            )

    def _wait_ns(self, priority: int, now_ns: int) -> float:
        """What waits before a request of that priority, and the rest of the batch that runs."""
        return max(0, self._running_until_ns - now_ns) + sum(
            self._ns(variant, len(queue), self._tokens[variant, level])
            for (variant, level), queue in self._waiting.items()
            if queue and level <= priority
        )

    def _ns(self, variant: str, sequences: int, tokens: int) -> float:
        cost, limits = self._costs.get(variant, BatchCost()), self._learned.get(variant, self.limits)
        return self._pace.ns(variant, sequences, tokens, cost, limits)

    def withdraw(self, request: Request) -> int:
        """Take a request's waiting sequences out of the queue; how many there were."""
        with self._changed:
            return self._remove(request.sequences)

    def add_chore(self, chore: Chore) -> None:
        """Have the lane's thread call it. Not called any more once the batcher is closed."""
        with self._changed:
            self._chores.append(chore)
            self._changed.notify()

    def close(self) -> None:
        """`next_work` returns None from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def next_work(self) -> list[QueuedSequence] | Chore | None:
        """The next batch, its lines marked as running, or the next chore; blocks until there is one. None
        once closed."""
        with self._changed:
            self.ended(time.monotonic_ns())
            while not self._is_closed:
                if self._chores and self._is_chores_turn:
                    return self._next_chore()
                now_ns = time.monotonic_ns()
                batch = self.take(now_ns)
                if isinstance(batch, list):
                    for sequence in batch:
                        sequence.line.enter(len(batch))
                    self._is_chores_turn = True
                    self.began(batch, now_ns)
                    return batch
                if self._chores:
                    return self._next_chore()
                self._changed.wait(None if batch is None else (batch - now_ns) / 1e9)
            return None

    def take(self, now_ns: int) -> list[QueuedSequence] | int | None:
        """The batch to run now; or the instant until which it is worth waiting for company; or None where
        nothing waits. Called with the lock held, or by one thread alone."""
        if self._first_deadline_ns is not None and self._first_deadline_ns <= now_ns:
            self._expire(now_ns)
        turns = [(next(iter(queue)).turn_ns, name) for (name, _), queue in self._waiting.items() if queue]
        if not turns:
            return None
        variant = min(turns)[1]  # whose oldest sequence has waited longest, priorities counted in
        limits = self._learned.get(variant, self.limits)
        queues = [queue for (name, _), queue in self._waiting.items() if name == variant and queue]
        oldest: Iterable[QueuedSequence] = queues[0]
        if len(queues) > 1:
            oldest = merge(*queues, key=lambda sequence: sequence.turn_ns)
        waiting = list(islice(oldest, LOOKAHEAD * limits.max_sequences))
        wake_ns = wake_at(waiting, limits)
        if wake_ns > now_ns:
            return wake_ns
        batch = choose_batch(waiting, limits, self._costs.get(variant, BatchCost()))
        batch = self._without_late(batch, now_ns)
        self._remove(batch)
        return batch

    def _without_late(self, batch: list[QueuedSequence], now_ns: int) -> list[QueuedSequence]:
        """Every request leaves whose deadline passes before the batch ends: nobody would be there for it.
        Where that is all of them the batch runs all the same: else a pace that is wrong would stay so."""
        end_ns = now_ns + self._ns(batch[0].request.variant, len(batch), sum(each.length for each in batch))
        late = {
            each.request: None
            for each in batch
            if each.request.deadline_ns is not None and each.request.deadline_ns < end_ns
        }
        in_time = [sequence for sequence in batch if sequence.request not in late]
        if not late or not in_time:
            return batch
        for request in late:
            self._on_expired(request, self._remove(request.sequences))
        return in_time

    def began(self, batch: list[QueuedSequence], now_ns: int) -> None:
        """It runs from now on. Called as `take`."""
        variant, tokens = batch[0].request.variant, sum(sequence.length for sequence in batch)
        self._running = (variant, tokens, now_ns)
        self._running_until_ns = now_ns + int(self._ns(variant, len(batch), tokens))

    def ended(self, now_ns: int) -> None:
        """What ran, if anything did, has ended. Called as `take`."""
        if self._running is not None:
            variant, tokens, begun_ns = self._running
            self._pace.learn(variant, tokens, self._costs.get(variant, BatchCost()), now_ns - begun_ns)
            self._running, self._running_until_ns = None, 0

    def _next_chore(self) -> Chore:
        self._is_chores_turn = False
        return self._chores.popleft()

    def _remove(self, sequences: Iterable[QueuedSequence]) -> int:
        """Take out those that wait; how many there were."""
        removed = 0
        for sequence in sequences:
            queue = self._waiting.get((sequence.request.variant, sequence.request.priority), {})
            if sequence in queue:
                del queue[sequence]
                removed += 1
                self._tokens[sequence.request.variant, sequence.request.priority] -= sequence.length
        self._count -= removed
        return removed

    def _expire(self, now_ns: int) -> None:
        """Every request leaves whose deadline has passed."""
        timed = {
            sequence.request: leaves_ns
            for queue in self._waiting.values()
            for sequence in queue
            if (leaves_ns := sequence.request.leaves_ns) is not None
        }
        expired = [request for request, leaves_ns in timed.items() if leaves_ns <= now_ns]
        for request in expired:
            self._on_expired(request, self._remove(request.sequences))
            del timed[request]
        self._first_deadline_ns = min(timed.values(), default=None)
