"""Where requests are queued: the batcher of a lane, between the event loop and the lane's thread.

The event loop puts requests in and takes cancelled ones out; the lane asks for what to run next. Whose turn
it is stands in `fair`, and what goes into a batch with it is for `policy` to say; here are the limits and
costs of each variant, for whom there is room, and who leaves without having run. Chores (a warm-up, say) run
on the same thread, one between two batches, so that neither keeps the other from running.

Several lanes may draw on one queue: each by a batcher of its own, which has its chores and what it runs. A
request belongs to the lane that first takes a sequence of it, with all its sequences.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from wattserve_server.engine.fair import SHORT_NS, Ahead, FairQueue, May, shortened, within
from wattserve_server.engine.pace import Pace, Returns
from wattserve_server.engine.policy import (
    BatchCost,
    BatchLimits,
    choose_batch,
    wake_at,
)
from wattserve_server.engine.queued import QueuedSequence, Request
from wattserve_server.errors import HopelessError, OverloadedError

if TYPE_CHECKING:
    from wattserve_server.engine.lane import Lane

# By so much more than was reckoned a request may take, and still be in time.
HEADROOM = 1.25

# So many times as long as its deadline leaves it a request takes that is refused though nothing else waits.
# One batch that was disturbed makes a pace 3.7 times as long: that refuses nobody who would be in time.
HOPELESS = 4.0

# While a request waits others come, for whom it waits longer, while more come: until that adds little.
MOST_LOOKS = 10
LITTLE = 1.02

LOOKAHEAD = 2  # the policy looks at this many times a full batch of the oldest waiting sequences

Chore = Callable[[], object]


class Wanted(NamedTuple):
    """What a request needs room for. caller: empty for several requests together."""

    caller: str
    variant: str
    priority: int
    sequences: int
    tokens: int
    deadline_ns: int | None
    requests: Sequence[Request] = ()  # that want it; none where they are not known yet

    @classmethod
    def by(cls, request: Request) -> Wanted:
        """All of a request."""
        kind = request.caller, request.variant, request.priority
        return cls(*kind, len(request.sequences), request.tokens, request.deadline_ns, [request])


class Evicted(NamedTuple):
    """A request that has left the queue for another's sake."""

    request: Request
    sequences: int  # of it that waited
    error: OverloadedError


def _seconds(duration_ns: float) -> str:
    """To two digits, or whole ones."""
    return f"{duration_ns / 1e9:.2g}" if duration_ns < 99.5e9 else f"{duration_ns / 1e9:.0f}"


class Batcher:
    """limits: of every variant's batches. max_queue: sequences that may wait, for each lane. on_expired:
    called by `take` with a request whose deadline passed while it waited, and how many sequences of it left
    the queue. max_queue_ns: for how long a request may have to wait when it comes. beside: the batcher of
    another lane, on whose queue this one draws too."""

    lane: Lane  # whose it is; says so itself
    by_end = True  # see FairQueue

    def __init__(
        self,
        limits: BatchLimits,
        max_queue: int,
        on_expired: Callable[[Request, int], object],
        max_queue_ns: float = float("inf"),
        beside: Batcher | None = None,
    ) -> None:
        self.limits = limits
        self._most_for_each = max_queue
        self._max_queue_ns = max_queue_ns
        self._together: list[Batcher] = [] if beside is None else beside._together  # that share what follows
        self._together.append(self)
        self._pace: Pace = Pace() if beside is None else beside._pace
        self._costs: dict[str, BatchCost] = {} if beside is None else beside._costs
        self._learned: dict[str, BatchLimits] = {} if beside is None else beside._learned
        self._waiting: FairQueue = FairQueue(self.by_end) if beside is None else beside._waiting
        self._changed: threading.Condition = threading.Condition() if beside is None else beside._changed
        self._returns = Returns()
        self._running: tuple[str, int, int, int] | None = None  # variant, sequences, tokens, when it began
        self._running_until_ns = 0  # when the batch that runs will have ended, as far as is known
        self._on_expired = on_expired
        self._chores: deque[Chore] = deque()
        self._is_chores_turn = True
        self._is_closed = False

    def __len__(self) -> int:
        """Sequences that wait. Any thread."""
        return len(self._waiting)

    @property
    def _max_queue(self) -> int:
        return self._most_for_each * len(self._together)

    @property
    def callers(self) -> int:
        """Who have something waiting. Any thread."""
        return self._waiting.callers

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for the device. Any thread."""
        return len(self._waiting) > 0

    @property
    def _is_idle(self) -> bool:
        """Whether nothing goes before who comes now: then nobody's pace has to be believed."""
        return not self._waiting

    def set_cost(self, variant: str, cost: BatchCost, tokens: int = 0, duration_ns: int = 0) -> None:
        """What a variant's batches cost, as measured at warm-up, where one of so many tokens took so long."""
        with self._changed:
            self._costs[variant] = cost
            if tokens:
                self._pace.begin(variant, tokens, cost, duration_ns)

    def limit_tokens(self, variant: str, tokens: int) -> None:
        """From now on no batch of a variant computes more tokens than that, as it has been found not to fit
        into memory; one sequence longer than that still runs, alone. `limits.max_tokens` lifts it."""
        with self._changed:
            self._learned[variant] = replace(self.limits, max_tokens=tokens)

    @property
    def undisturbed(self) -> AbstractContextManager[object]:
        """For several calls of `put`: the lane hears of them together, when the block ends."""
        return self._changed

    def put(self, request: Request, now_ns: int | None = None, has_room: bool = False) -> Sequence[Evicted]:
        """Queue all sequences of a request, or none: OverloadedError when they do not fit, or would have to
        wait for too long. has_room: `have_room` said so. Who has left the queue to make room: others'
        newest requests."""
        with self._changed:
            now_ns = time.monotonic_ns() if now_ns is None else now_ns
            leaving = () if has_room else self._check(Wanted.by(request), now_ns)
            evicted = [self._evict(each, now_ns) for each in leaving]
            self._waiting.put(request, now_ns)
            self._returns.came(request.variant, len(request.sequences), now_ns)
            leaves_ns, first_ns = request.leaves_ns, self._waiting.first_leaves_ns
            if leaves_ns is not None and (first_ns is None or leaves_ns < first_ns):
                self._waiting.first_leaves_ns = leaves_ns
            self._changed.notify()
            return evicted

    def have_room(self, requests: Sequence[Request], now_ns: int) -> bool:
        """Whether `put` would take all of these, as far as one look for all of them tells: as if each went
        behind all that waits and behind the others."""
        variants = {request.variant for request in requests}
        if len(variants) > 1:
            return False
        (variant,) = variants
        sequences = sum([len(request.sequences) for request in requests])
        tokens = sum([request.tokens for request in requests])
        first_ns = min(
            [request.deadline_ns for request in requests if request.deadline_ns is not None], default=None
        )
        with self._changed:
            ahead = [*self._waiting.everything(), Ahead(variant, sequences, tokens)]
            wanted = Wanted("", variant, 0, sequences, tokens, first_ns, requests)
            return self._has_room_behind(ahead, wanted, now_ns)

    def check_room(
        self, variant: str, priority: int, deadline_ns: int | None, caller: str = "", sequences: int = 1
    ) -> None:
        """Raises OverloadedError as `put` would for a request of the shortest sequences."""
        if self._waiting:
            with self._changed:
                self._check(
                    Wanted(caller, variant, priority, sequences, sequences, deadline_ns), time.monotonic_ns()
                )

    def wait_ns(self, now_ns: int) -> float:
        """For how long what waits will take, as far as is known. Any thread."""
        with self._changed:
            return self._wait_ns(self._waiting.everything(), now_ns)

    def _check(self, wanted: Wanted, now_ns: int) -> list[Request]:
        """Who has to leave a full queue for its sake. Raises OverloadedError."""
        self._waiting.demand.came(wanted.caller, now_ns)
        self._check_hope(wanted, now_ns)
        if self._is_idle and wanted.sequences <= self._max_queue:
            return []
        if self._has_room_behind(self._waiting.everything(), wanted, now_ns):  # that is told at once
            return []
        leaving = self._to_evict(wanted) if self._lacks(wanted) > 0 else []
        refusal = self._refusal(wanted, leaving, now_ns)
        if refusal is not None:
            self._waiting.refused(wanted.caller, wanted.tokens, now_ns)
            raise refusal
        return leaving

    def _refusal(self, wanted: Wanted, leaving: list[Request], now_ns: int) -> OverloadedError | None:
        waiting = self._waiting
        wait_ns = self._wait_ns(waiting.ahead(wanted.caller, wanted.priority, now_ns), now_ns, wanted)
        if self._lacks(wanted) > 0 and not leaving:
            own, part = waiting.waiting(wanted.caller), self._part(wanted)
            if own and (excess := own + wanted.sequences - part) > 0:
                until_ns = self._until_ns(wait_ns, excess / own, wanted, now_ns)
            else:  # others make room
                all_ns = self._wait_ns(waiting.everything(), now_ns, wanted)
                part_of_all = self._lacks(wanted) / max(1, len(waiting))
                until_ns = self._until_ns(all_ns, part_of_all, wanted, now_ns)
            whose = "" if own == len(waiting) else f", {own} of them this caller's, whose part is {part}"
            return OverloadedError(
                f"the queue is full: {len(waiting)} of {self._max_queue} sequences wait{whose}, and this "
                f"request has {wanted.sequences}; try again later",
                "sequences",
                until_ns / 1e9 or None,
            )
        before_ns = late_ns = 0.0
        if wanted.deadline_ns is not None and wanted.deadline_ns > now_ns:  # else it expires in the queue
            before_ns = self._before_ns(wanted, now_ns)
            late_ns = self._late_ns(wanted, before_ns, now_ns)
        if wait_ns > self._max_queue_ns:
            return OverloadedError(
                f"the queue is full: what goes before it will take {_seconds(wait_ns)} s, and no more than "
                f"{self._max_queue_ns / 1e9:g} s may wait; try again later",
                "time",
                max(wait_ns - self._max_queue_ns, late_ns) / 1e9,
            )
        if late_ns > 0 and before_ns:
            own_ns, left_ns = self._own_ns(wanted, now_ns), (wanted.deadline_ns or 0) - now_ns
            return OverloadedError(
                f"the deadline cannot be met: what goes before it, or is likely to, will take "
                f"{_seconds(before_ns)} s and it itself {_seconds(own_ns)} s beside others, and the request "
                f"has {_seconds(left_ns)} s; try again later, or with more time",
                "deadline",
                (self._drained_ns(wanted, late_ns, now_ns) if self.by_end else late_ns) / 1e9,
            )
        return None

    def _late_ns(self, wanted: Wanted, before_ns: float, now_ns: int) -> float:
        """By how much it is expected to end too late; negative where it has time to spare."""
        if wanted.deadline_ns is None:
            return -inf
        return before_ns + self._own_ns(wanted, now_ns) - (wanted.deadline_ns - now_ns) / HEADROOM

    def _drained_ns(self, wanted: Wanted, late_ns: float, now_ns: int) -> float:
        """Until so little waits that it would be in time, or nothing does; not before the batch that runs has
        ended. late_ns: after which it would be if time alone did away with what goes before, as where its
        caller has something waiting."""
        waiting, rest_ns = self._waiting, self._wait_ns([], now_ns, wanted)
        all_ns = self._wait_ns(waiting.everything(), now_ns, wanted)
        if all_ns <= rest_ns:  # nothing is known of what waits
            return max(rest_ns, late_ns)
        if not waiting.waiting(wanted.caller):
            token_ns = (all_ns - rest_ns) / sum([each.tokens for each in waiting.everything()])
            # Another batch will run then.
            spare_ns = max(0.0, -self._late_ns(wanted, self._pace.batch_ns, now_ns)) / HEADROOM
            left_ns = (wanted.deadline_ns or now_ns) - now_ns
            asked = wanted.caller, wanted.tokens, spare_ns / token_ns, now_ns, left_ns
            late_ns = max(late_ns, rest_ns + token_ns * waiting.tokens_until(*asked))
        return min(all_ns, max(rest_ns, late_ns))

    def _before_ns(self, wanted: Wanted, now_ns: int) -> float:
        """For how long it will wait, with others' requests that end before it would, and with those that are
        still to come while it waits."""
        asked = wanted.caller, wanted.priority, now_ns, wanted.tokens
        ahead, to_come = self._waiting.ahead(*asked), self._waiting.to_come(*asked)
        before_ns, own_ns = self._wait_ns(ahead, now_ns, wanted), self._own_ns(wanted, now_ns)
        for _ in range(MOST_LOOKS if to_come else 0):
            ends_ns = before_ns + own_ns
            before_ns = self._wait_ns([*ahead, *within(ends_ns, to_come)], now_ns, wanted)
            if before_ns + own_ns <= LITTLE * ends_ns:
                break
        return before_ns

    def _has_room_behind(self, ahead: list[Ahead], wanted: Wanted, now_ns: int) -> bool:
        """Whether it has, even if all of these went before it, which are no less than really do."""
        if len(self._waiting) + wanted.sequences > self._max_queue:
            return False
        wait_ns = self._wait_ns(ahead, now_ns, wanted)
        if wait_ns > self._max_queue_ns:
            return False
        if wanted.deadline_ns is None:
            return True
        if most := self._waiting.most_to_come(wanted.caller, now_ns, wanted.deadline_ns):
            wait_ns = self._wait_ns([*ahead, Ahead(wanted.variant, 1, most)], now_ns, wanted)
        return self._late_ns(wanted, wait_ns, now_ns) <= 0

    def _check_hope(self, wanted: Wanted, now_ns: int) -> None:
        """Raises HopelessError where it would be too late even alone and at a much better pace than that of a
        moment ago."""
        if wanted.deadline_ns is None or not self._pace.is_fresh(wanted.variant, now_ns):
            return
        left_ns = wanted.deadline_ns - now_ns
        alone_ns = self._ns(wanted.variant, wanted.sequences, wanted.tokens)
        if 0 < left_ns < alone_ns / HOPELESS:
            raise HopelessError(
                f"the deadline cannot be met: the request takes {_seconds(alone_ns)} s by itself, and has "
                f"{_seconds(left_ns)} s; give it more time"
            )

    def _own_ns(self, wanted: Wanted, now_ns: int) -> float:
        """For how long it will run; who comes later joins its batch."""
        return max(self._ns(wanted.variant, wanted.sequences, wanted.tokens), self._pace.batch_ns)

    def _lacks(self, wanted: Wanted) -> int:
        """Sequences for which there is no room."""
        return len(self._waiting) + wanted.sequences - self._max_queue

    def _part(self, wanted: Wanted) -> int:
        """Of the queue, its caller's."""
        waiting = self._waiting
        return self._max_queue // (waiting.callers + (not waiting.waiting(wanted.caller)))

    def _to_evict(self, wanted: Wanted) -> list[Request]:
        """Who leaves a full queue for its sake: none where its caller has enough of it. Who has nothing
        waiting may have more than his part at once, else he might wait for ever."""
        own, part = self._waiting.waiting(wanted.caller), self._part(wanted)
        then = own + wanted.sequences
        if own and then > part:
            return []
        kept = self._max_queue // 2 if then <= part else self._max_queue
        return self._waiting.to_evict(self._lacks(wanted), wanted.caller, then if own else 0, part, kept)

    def _evict(self, request: Request, now_ns: int) -> Evicted:
        own = self._waiting.waiting(request.caller)
        ahead = self._waiting.ahead(request.caller, request.priority, now_ns)
        wanted = Wanted.by(request)
        wait_ns = self._wait_ns(ahead, now_ns, wanted)
        until_ns = self._until_ns(wait_ns, len(request.sequences) / own, wanted, now_ns)
        error = OverloadedError(
            f"the queue is full: {len(self._waiting)} of {self._max_queue} sequences wait, {own} of them "
            "this caller's, and this request made room for another's; try again later",
            "sequences",
            until_ns / 1e9 or None,
        )
        return Evicted(request, self._waiting.remove(request.sequences), error)

    def _wait_ns(self, ahead: Iterable[Ahead], now_ns: int, wanted: Wanted | None = None) -> float:
        """The rest of the batch that runs, and what goes before: until a lane has nothing else to do, where
        there are several. wanted: by whom it is waited for; None: by nobody."""
        rests_ns = sorted(float(max(0, lane._running_until_ns - now_ns)) for lane in self._together)
        until_ns = sum(self._ns(*each) for each in ahead)
        waits_ns = []
        for lanes, rest_ns in enumerate(rests_ns, 1):  # those that are free first share the work
            until_ns += rest_ns
            waits_ns.append(until_ns / lanes)
        return min(waits_ns)

    def _until_ns(self, wait_ns: float, part: float, wanted: Wanted, now_ns: int) -> float:
        """Until that part of what is waited for has left the queue: nothing does while a batch runs."""
        rest_ns = self._wait_ns([], now_ns, wanted)
        return rest_ns + max(0.0, wait_ns - rest_ns) * min(1.0, part)

    def _ns(self, variant: str, sequences: float, tokens: float) -> float:
        cost, limits = self._costs.get(variant, BatchCost()), self._learned.get(variant, self.limits)
        return self._pace.ns(variant, sequences, tokens, cost, limits)

    def withdraw(self, request: Request) -> int:
        """Take a request's waiting sequences out of the queue; how many there were."""
        with self._changed:
            return self._left(request)

    def _left(self, request: Request) -> int:
        """It waits no longer, and nobody refused it; how many sequences of it waited."""
        count = self._waiting.remove(request.sequences)
        if 0 < count == len(request.sequences):  # none: it has been answered
            self._waiting.demand.left(request.caller, request.tokens, request.sequences[0].queued_ns)
        return count

    def add_chore(self, chore: Chore) -> None:
        """Have the lane's thread call it. Not called any more once the batcher is closed."""
        with self._changed:
            self._chores.append(chore)
            self._changed.notify_all()

    def close(self) -> None:
        """`next_work` returns None from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def give_up(self) -> dict[Request, int] | None:
        """Its lane runs nothing more: the requests that belong to it leave the queue, each with so many
        sequences, and the other lanes run the rest. None, and nothing has changed, where there are none."""
        with self._changed:
            if len(self._together) == 1:
                return None
            self._is_closed = True
            self._together.remove(self)
            own = {
                each.request: 0
                for each in self._waiting
                if each.request.is_bound and each.request.lane is self.lane
            }
            for request in own:
                own[request] = self._waiting.remove(request.sequences)
            self._changed.notify_all()  # the lane may have been woken for what another can run
            return own

    def next_work(self) -> Any:
        """The next batch (a list of QueuedSequence), its lines marked as running, or the next chore; blocks
        until there is one. None once closed."""
        with self._changed:
            self.ended(time.monotonic_ns())
            while not self._is_closed:
                if self._chores and self._is_chores_turn:
                    return self._next_chore()
                now_ns = time.monotonic_ns()
                batch = self.take(now_ns)
                if isinstance(batch, list):
                    for sequence in batch:
                        if not sequence.request.is_bound:
                            sequence.request.bind(self.lane)
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
        first_ns = self._waiting.first_leaves_ns
        if first_ns is not None and first_ns <= now_ns:
            self._expire(now_ns)
        first = self._waiting.first(self._may)
        if first is None:
            return None
        variant = first.request.variant
        limits, cost = self._learned.get(variant, self.limits), self._costs.get(variant, BatchCost())
        waiting = self._waiting.in_order(variant, LOOKAHEAD * limits.max_sequences, self._may)
        wake_ns = wake_at(waiting, limits)
        if wake_ns > now_ns:
            return wake_ns
        batch = choose_batch(waiting, limits, cost)
        late, others_come = self._late(batch, now_ns), self._waiting.others_may_come(now_ns)
        if late or others_come:
            short = shortened(batch, waiting, cost, self._pace.tokens(variant, SHORT_NS))
            hopeless = self._late(short, now_ns)
            if others_come:
                batch, late = short, hopeless
            elif hopeless != late:
                chosen = set(batch)
                batch = self._in_time(short, [each for each in waiting if each in chosen], hopeless, now_ns)
                late = self._late(batch, now_ns)
        if len(batch) == len(waiting) < limits.max_sequences and self._may_rest:
            wake_ns = self._returns.rest_ends_ns(variant)
            if wake_ns > now_ns:
                return wake_ns
        in_time = [sequence for sequence in batch if sequence.request not in late]
        if late and in_time:  # else a pace that is wrong would stay so
            for request in late:
                self._on_expired(request, self._left(request))
            batch = in_time
        self._waiting.take(batch, cost.packs)
        return batch

    def _late(self, batch: list[QueuedSequence], now_ns: int) -> dict[Request, None]:
        """Every request whose deadline passes before the batch ends, or before all of it could have run:
        nobody would be there for it."""
        variant = batch[0].request.variant
        batch_ns = self._ns(variant, len(batch), sum(each.length for each in batch))

        def least_ns(request: Request) -> float:
            return max(batch_ns, self._ns(variant, *self._waiting.left(request)))

        return {
            request: None
            for request in dict.fromkeys(each.request for each in batch)
            if request.deadline_ns is not None and request.deadline_ns < now_ns + least_ns(request)
        }

    def _in_time(
        self,
        short: list[QueuedSequence],
        batch: list[QueuedSequence],
        hopeless: Container[Request],
        now_ns: int,
    ) -> list[QueuedSequence]:
        """As much of a batch, beside a short one, as makes nobody in it late who is not anyway."""
        variant, tokens, first_ns = batch[0].request.variant, 0, inf
        for count, sequence in enumerate(batch, 1):
            request = sequence.request
            tokens += sequence.length
            if request.deadline_ns is not None and request not in hopeless:
                first_ns = min(first_ns, request.deadline_ns)
            if count > len(short) and now_ns + HEADROOM * self._ns(variant, count, tokens) > first_ns:
                return batch[: count - 1]
        return batch

    def began(self, batch: list[QueuedSequence], now_ns: int) -> None:
        """It runs from now on. Called as `take`."""
        variant, tokens = batch[0].request.variant, sum(sequence.length for sequence in batch)
        self._running = (variant, len(batch), tokens, now_ns)
        self._running_until_ns = now_ns + int(self._ns(variant, len(batch), tokens))

    def ended(self, now_ns: int) -> None:
        """What ran, if anything did, has ended. Called as `take`."""
        if self._running is not None:
            variant, sequences, tokens, begun_ns = self._running
            cost = self._costs.get(variant, BatchCost())
            self._pace.learn(variant, tokens, cost, now_ns - begun_ns, now_ns)
            self._returns.ended(variant, sequences, now_ns, self._pace.start_ns(variant, cost))
            self._running, self._running_until_ns = None, 0

    @property
    def _may_rest(self) -> bool:
        """Whether nothing else wants what waits, or the device: no other lane of the queue, no chore."""
        return not self._chores and len(self._together) == 1

    @property
    def _may(self) -> May | None:
        """Which sequences it may run, of a queue on which several draw."""
        return self._may_run if len(self._together) > 1 else None

    def _may_run(self, sequence: QueuedSequence) -> bool:
        return not sequence.request.is_bound or sequence.request.lane is self.lane

    def _next_chore(self) -> Chore:
        self._is_chores_turn = False
        return self._chores.popleft()

    def _expire(self, now_ns: int) -> None:
        """Every request leaves whose deadline has passed."""
        timed = {
            sequence.request: leaves_ns
            for sequence in self._waiting
            if (leaves_ns := sequence.request.leaves_ns) is not None
        }
        expired = [request for request, leaves_ns in timed.items() if leaves_ns <= now_ns]
        for request in expired:
            self._on_expired(request, self._left(request))
            del timed[request]
        self._waiting.first_leaves_ns = min(timed.values(), default=None)
