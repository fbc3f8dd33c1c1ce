"""Whose turn it is: what waits for a device, by caller, so that nobody's flood makes others wait. Pure, but
for `Turns`, by which the tokeniser is shared.

Fair queueing by virtual finish times. If the device were shared by tokens at every instant, each of those who
have something waiting would get as many as any other; `_virtual` is how many that would have been by now, for
one who had something waiting all the while. The request that would end first that way goes first, and whole:
none ends later than so, but for a batch, and nearly all end earlier, as those who come later and ask for as
much do not slow it down. Of those who always have something waiting each gets as many tokens as any other,
and who asks for less than that never waits behind them.

Every caller has a start: the tokens that have been computed for it, counted from where it joined, which is
where virtual time then was: nobody saves up. Of one caller's own sequences the oldest goes first, priorities
counted in; they are nobody else's concern.

Where a device is behind, and callers come who have nothing waiting, a batch takes no more than makes it worth
its start: for whatever it takes beyond that, all who come meanwhile would wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, merge, nsmallest
from itertools import chain, count, islice, takewhile
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from wattserve_server.engine.pace import COMES_AGAIN_NS, MOST_REMEMBERED, Demand, Expected
from wattserve_server.engine.policy import BatchCost, turn_ns

if TYPE_CHECKING:
    from wattserve_server.engine.queued import QueuedSequence, Request

# A batch that others may come to wait for has nine tokens for each that starting it costs, so that a tenth of
# the time goes into starting batches. It may always take this long: nobody minds to wait for that, and what a
# lane does between two batches takes a millisecond or two, of which `BatchCost` says nothing.
WORTH_A_START = 9
SHORT_NS = 20_000_000

# Callers that share the tokeniser's time, at most: an endless row of new ones would halt it for the others.
MOST_SHARE = 16

Kind = tuple[str, int]  # a variant and a priority
May = Callable[["QueuedSequence"], bool]  # whether a lane may run it, of several that draw on the queue


class Ahead(NamedTuple):
    """What goes before a request, of one variant."""

    variant: str
    sequences: float
    tokens: float


class ToCome(NamedTuple):
    """What a caller is expected to ask for, that goes before a request."""

    expected: Expected
    most: float  # tokens that are its part


def _by_variant(parts: Iterable[Ahead]) -> list[Ahead]:
    """Their sums."""
    sums: dict[str, tuple[float, float]] = {}
    for variant, sequences, tokens in parts:
        before = sums.get(variant, (0, 0))
        sums[variant] = before[0] + sequences, before[1] + tokens
    return [Ahead(variant, *total) for variant, total in sums.items()]


def within(duration_ns: float, to_come: Iterable[ToCome]) -> list[Ahead]:
    """Of that, what is expected to come so soon."""
    amounts = [(each, min(most, each.rate * duration_ns)) for each, most in to_come]
    return _by_variant(Ahead(each.variant, tokens / each.size, tokens) for each, tokens in amounts)


def _by_age(sequence: QueuedSequence) -> tuple[int, str]:
    return sequence.turn_ns, sequence.request.variant


class Turn(NamedTuple):
    """When a sequence is to run: the least first."""

    at: float  # what its caller will have had when its request has run, or has had when that begins
    number: int  # of the caller's flow
    sequence: QueuedSequence


@dataclass(slots=True)
class Flow:
    """What one caller has waiting."""

    start: float
    number: int  # which of those with the same turn came first
    queues: dict[Kind, dict[QueuedSequence, None]] = field(default_factory=dict)
    tokens: Counter[Kind] = field(default_factory=Counter)
    left: dict[Request, tuple[int, int]] = field(default_factory=dict)  # sequences and tokens that wait
    all_tokens: int = 0
    count: int = 0  # sequences

    @property
    def end(self) -> float:
        """What it will have had when all of it has run."""
        return self.start + self.all_tokens

    def of_variant(self, variant: str) -> list[dict[QueuedSequence, None]]:
        return [queue for (name, _), queue in self.queues.items() if name == variant and queue]

    def oldest(self, may: May | None, not_of: Container[str]) -> QueuedSequence | None:
        """Of those that may run, and of other variants."""
        found = None
        for (variant, _), queue in self.queues.items():
            if queue and variant not in not_of:
                head = next(iter(queue) if may is None else filter(may, queue), None)
                if head is not None and (found is None or _by_age(head) < _by_age(found)):
                    found = head
        return found

    def requests(self) -> Iterable[Request]:
        """In the order of their turns."""
        if len({priority for (_, priority), queue in self.queues.items() if queue}) == 1:
            return self.left  # as they came
        return sorted(self.left, key=lambda request: request.sequences[0].turn_ns)

    def before(self, priority: int, now_ns: int) -> Iterator[Ahead]:
        """What has its turn before a request of its caller's that comes now."""
        turn = turn_ns(now_ns, priority)
        for (variant, level), queue in self.queues.items():
            if level <= priority:
                yield Ahead(variant, len(queue), self.tokens[variant, level])
            else:
                older = [each.length for each in takewhile(lambda each: each.turn_ns <= turn, queue)]
                yield Ahead(variant, len(older), sum(older))

    def newest_first(self) -> Iterator[Request]:
        """Requests of which nothing has run, but for the one that is the oldest of all."""
        oldest = self.oldest(None, ())
        seen = set() if oldest is None else {oldest.request}
        tails = (reversed(queue) for queue in self.queues.values())
        for sequence in merge(*tails, key=lambda sequence: -sequence.turn_ns):
            request = sequence.request
            if request not in seen:
                seen.add(request)
                if self.left[request][0] == len(request.sequences):
                    yield request

    def oldest_if_whole(self) -> Request | None:
        """The request that has waited for longest, if nothing of it has run."""
        oldest = self.oldest(None, ())
        if oldest is None or self.left[oldest.request][0] < len(oldest.request.sequences):
            return None
        return oldest.request

    def in_order(self, variant: str, may: May | None) -> Iterator[Turn]:
        """Oldest first, by when requests end."""
        queues = self.of_variant(variant)
        ordered = merge(*queues, key=lambda sequence: sequence.turn_ns) if len(queues) > 1 else queues[0]
        finish, request = self.start, None
        for sequence in ordered if may is None else filter(may, ordered):
            if sequence.request is not request:
                request = sequence.request
                finish += self.left[request][1]
            yield Turn(finish, self.number, sequence)


def shortened(
    batch: list[QueuedSequence], waiting: list[QueuedSequence], cost: BatchCost, short_tokens: float
) -> list[QueuedSequence]:
    """A batch without what is more than worth its start. waiting: in whose order it is cut. short_tokens: of
    a batch that takes `SHORT_NS`."""
    longest = max(sequence.length for sequence in batch)
    left = max(WORTH_A_START * cost.overhead_tokens, short_tokens)
    chosen, kept = set(batch), []
    for sequence in waiting:
        if sequence in chosen and left > 0:
            kept.append(sequence)
            left -= sequence.length if cost.packs else longest
    return kept


class FairQueue:
    """Iterates over all sequences that wait. Not safe for threads: its batcher's lock guards it. by_end:
    whose turn it is goes by when requests would end; else by when they would begin."""

    def __init__(self, by_end: bool = True) -> None:
        self._by_end = by_end
        self.demand = Demand()
        self._flows: dict[str, Flow] = {}  # by caller, of those with something waiting
        self._remembered: dict[str, float] = {}  # starts of callers that have nothing waiting
        self._totals: dict[Kind, tuple[int, int]] = {}  # sequences and tokens, of all callers
        self._count = 0  # of all callers
        self._joined = 0
        self._virtual = 0.0  # tokens; where who comes joins
        # Whether something was left waiting when a batch was last taken, or somebody has been refused since.
        self._is_behind = False
        self._others_until_ns = 0  # they may come until then, for whom a batch should be short
        self.first_leaves_ns: int | None = None  # no request that waits leaves the queue earlier

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueuedSequence]:
        queues = (queue for flow in self._flows.values() for queue in flow.queues.values())
        return chain.from_iterable(queues)

    @property
    def callers(self) -> int:
        """Who have something waiting."""
        return len(self._flows)

    def waiting(self, caller: str) -> int:
        """Sequences."""
        flow = self._flows.get(caller)
        return 0 if flow is None else flow.count

    def left(self, request: Request) -> tuple[int, int]:
        """Sequences and tokens of it that wait."""
        return self._flows[request.caller].left[request]

    def refused(self, caller: str, tokens: int, now_ns: int) -> None:
        """It has come, and would have had to wait for too long. tokens: see `Demand.refused`."""
        self.demand.refused(caller, tokens, now_ns)
        self._is_behind = True
        if caller not in self._flows:
            self._has_come(now_ns)

    def with_more(self, held_by: Mapping[str, int], now_ns: int) -> dict[str, int]:
        """Of these, who hold so many places, who hold more than somebody who waits, or is taken to come
        again."""
        least = min((held_by.get(caller, 0) for caller in self._flows), default=inf)
        come = self.demand.with_more(held_by, now_ns)
        return {name: held for name, held in held_by.items() if held > least or name in come}

    def put(self, request: Request, now_ns: int) -> None:
        caller, kind = request.caller, (request.variant, request.priority)
        self.demand.came(caller, now_ns)
        self.demand.let_in(caller, request.variant, request.tokens, now_ns)
        flow = self._flows.get(caller)
        if flow is None:
            self._has_come(now_ns)
            self._joined += 1
            flow = self._flows[caller] = Flow(self._start_of(caller), self._joined)
            self._remembered.pop(caller, None)
        flow.queues.setdefault(kind, {}).update(dict.fromkeys(request.sequences))
        flow.left[request] = len(request.sequences), request.tokens
        self._count_in(flow, kind, len(request.sequences), request.tokens)

    def remove(self, sequences: Iterable[QueuedSequence]) -> int:
        """Take out those that wait; how many there were."""
        removed = 0
        for sequence in sequences:
            request = sequence.request
            kind = (request.variant, request.priority)
            flow = self._flows.get(request.caller)
            if flow is None or sequence not in flow.queues.get(kind, ()):
                continue
            del flow.queues[kind][sequence]
            left, tokens = flow.left[request]
            flow.left[request] = left - 1, tokens - sequence.length
            if left == 1:
                del flow.left[request]
            removed += 1
            self._count_in(flow, kind, -1, -sequence.length)
            if not flow.count:
                del self._flows[request.caller]
                self._remembered[request.caller] = flow.start
        return removed

    def to_evict(self, count: int, caller: str, more_than: int, part: int, kept: int) -> list[Request]:
        """So that so many sequences leave, for that caller's sake: the newest requests of others, each of who
        has most waiting then, and more than that, of which nothing has run. Nobody loses his oldest one, but
        where it is larger than everybody's part, and such ones hold more than `kept` without it: else few of
        them would keep everybody out. None where they are not enough."""
        others = [flow for name, flow in self._flows.items() if name != caller]
        most = [(-flow.count, number) for number, flow in enumerate(others)]
        heapify(most)
        newest = [flow.newest_first() for flow in others]
        found = []
        while count > 0 and most and -most[0][0] > more_than:
            minus_waiting, number = heappop(most)
            if (request := next(newest[number], None)) is not None:
                found.append(request)
                count -= len(request.sequences)
                heappush(most, (minus_waiting + len(request.sequences), number))
        oldest = [flow.oldest_if_whole() for flow in others]
        large = [each for each in oldest if each is not None and len(each.sequences) > part]
        held = sum([len(each.sequences) for each in large])
        for request in sorted(large, key=lambda each: each.accepted_ns, reverse=True):
            held -= len(request.sequences)
            if count <= 0 or held < kept:
                break
            found.append(request)
            count -= len(request.sequences)
        return found if count <= 0 else []

    def first(
        self, may: May | None = None, not_of: Container[str] = (), not_for: Container[str] = ()
    ) -> QueuedSequence | None:
        """The oldest sequence of the caller whose turn it is; None where there is none. may: which ones;
        None: all of them, but for variants (not_of) and callers (not_for) that are left out."""
        first = min(self._turns(may, not_of, not_for), default=None)
        return None if first is None else first[0].sequence

    def in_order(self, variant: str, most: int, may: May | None = None) -> list[QueuedSequence]:
        """The first of a variant, by when their requests end. may: which ones; None: all of them."""
        others = {name for name, _ in self._totals if name != variant}
        firsts = nsmallest(most, self._turns(may, others))  # no others' turn can come
        turns = [flow.in_order(variant, may) for _, flow in firsts]
        return [turn.sequence for turn in islice(merge(*turns), most)]

    def others_may_come(self, now_ns: int) -> bool:
        """While the device is behind: for whom a batch should be short."""
        return now_ns < self._others_until_ns

    def take(self, batch: list[QueuedSequence], packs: bool) -> None:
        """Take out what runs now, and charge each caller what is computed for it, as far as is known."""
        longest = max(sequence.length for sequence in batch)
        self.remove(batch)
        computed = [sequence.length if packs else longest for sequence in batch]
        for sequence, tokens in zip(batch, computed, strict=True):
            self._charge(sequence.request.caller, tokens)
        self._pass(sum(computed))
        self._is_behind = bool(self._flows)
        if not self._flows:  # nobody has to wait for what another has had
            self._remembered.clear()
        while len(self._remembered) > MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def ahead(self, caller: str, priority: int, now_ns: int, tokens: int = 0) -> list[Ahead]:
        """What goes before a request of so many tokens that comes now: of its caller's own what has its turn
        before, of others' the requests whose turn comes no later than its own."""
        own = self._flows.get(caller)
        found = self.own_ahead(caller, priority, now_ns)
        end = self._start_of(caller) + tokens + sum([each.tokens for each in found])
        for flow in self._flows.values():
            if flow is own or flow.start >= end:
                continue
            if flow.end <= end:
                found += [
                    Ahead(kind[0], len(queue), flow.tokens[kind]) for kind, queue in flow.queues.items()
                ]
                continue
            at = flow.start
            for request in flow.requests():
                sequences, left = flow.left[request]
                if at + (left if self._by_end else 0) > end:
                    break
                found.append(Ahead(request.variant, sequences, left))
                at += left
        return _by_variant(found)

    def to_come(self, caller: str, priority: int, now_ns: int, tokens: int) -> list[ToCome]:
        """What others are expected to ask for that would go before a request of so many tokens which comes
        now."""
        if not self._by_end:
            return []
        own_tokens = sum([each.tokens for each in self.own_ahead(caller, priority, now_ns)])
        end, found = self._start_of(caller) + own_tokens + tokens, []
        for name, expected in self.demand.expected(now_ns).items():
            flow = self._flows.get(name)
            part = end - (self._start_of(name) if flow is None else flow.end)
            if expected.size + 1 <= part and name != caller:
                found.append(ToCome(expected, part))
        return found

    def most_to_come(self, caller: str, now_ns: int, until_ns: int) -> float:
        """Tokens: no more than all that others are expected to ask for until then."""
        if not self._by_end:
            return 0.0
        expected = self.demand.expected(now_ns).items()
        return sum([each.rate for name, each in expected if name != caller]) * (until_ns - now_ns)

    def tokens_until(self, caller: str, tokens: int, most_ahead: float, now_ns: int, left_ns: int) -> float:
        """How many will have run until no more than so many go before a request of so many tokens by who has
        nothing waiting, or nothing waits. Of each caller who has more waiting than that request has as many
        go before it, however many have run: who comes later joins at a later virtual time. left_ns: what
        others are expected to ask for within that goes before it then, too."""
        again = {
            name: min(float(tokens), each.rate * left_ns)
            for name, each in self.demand.expected(now_ns).items()
            if each.size + 1 <= tokens and name != caller
        }
        ahead, turns = sum(again.values()) - most_ahead, []
        for name, flow in self._flows.items():
            backlog, comes = flow.end - self._virtual, again.get(name, 0.0)
            ahead += max(0.0, min(tokens, backlog) - comes)
            turns += [(backlog - tokens, 1), (backlog - min(backlog, comes), -1)]
        passed, falling = 0.0, 0  # of virtual time; callers of whom fewer go before it as that passes
        for at, change in sorted(turns):
            gone = falling * max(0.0, at - passed)
            if ahead <= gone:
                break
            ahead -= gone
            passed, falling = max(passed, at), falling + change
        if ahead > 0:
            passed = passed + ahead / falling if falling else inf
        return sum([min(flow.end - self._virtual, passed) for flow in self._flows.values()])

    def everything(self) -> list[Ahead]:
        """All that waits."""
        return [Ahead(variant, *total) for (variant, _), total in self._totals.items()]

    def own_ahead(self, caller: str, priority: int, now_ns: int) -> list[Ahead]:
        """What goes before a request of its caller's own that comes now."""
        own = self._flows.get(caller)
        return [] if own is None else [*own.before(priority, now_ns)]

    def _has_come(self, now_ns: int) -> None:
        """Somebody who has nothing waiting."""
        if self._is_behind and self._flows:
            self._others_until_ns = now_ns + COMES_AGAIN_NS

    def _turns(
        self, may: May | None, not_of: Container[str], not_for: Container[str] = ()
    ) -> Iterator[tuple[Turn, Flow]]:
        """Of each caller the first."""
        for caller, flow in self._flows.items():
            if caller not in not_for and (oldest := flow.oldest(may, not_of)) is not None:
                at = flow.start + (flow.left[oldest.request][1] if self._by_end else 0)
                yield Turn(at, flow.number, oldest), flow

    def _pass(self, tokens: float) -> None:
        """Virtual time passes, while so many tokens are computed: of all whose end is yet to come in it, each
        would get as many of them."""
        all_ends = chain((flow.end for flow in self._flows.values()), self._remembered.values())
        ends = [end for end in all_ends if end > self._virtual]
        heapify(ends)
        while ends:
            until = (ends[0] - self._virtual) * len(ends)
            if tokens < until:
                self._virtual += tokens / len(ends)
                break
            tokens -= until
            self._virtual = heappop(ends)
        later = {name: start for name, start in self._remembered.items() if start > self._virtual}
        self._remembered = later

    def _start_of(self, caller: str) -> float:
        """Where it goes on, or would join."""
        if (flow := self._flows.get(caller)) is not None:
            return flow.start
        return max(self._virtual, self._remembered.get(caller, 0.0))

    def _charge(self, caller: str, tokens: float) -> None:
        if (flow := self._flows.get(caller)) is not None:
            flow.start += tokens
        elif caller in self._remembered:
            self._remembered[caller] += tokens

    def _count_in(self, flow: Flow, kind: Kind, sequences: int, tokens: int) -> None:
        flow.tokens[kind] += tokens
        flow.all_tokens += tokens
        flow.count += sequences
        self._count += sequences
        before = self._totals.get(kind, (0, 0))
        self._totals[kind] = (before[0] + sequences, before[1] + tokens)


class Turns:
    """One at a time, in the order in which the turns would end if all callers who wait shared the time. Who
    takes little of it waits for one turn of who takes much, however many those are. It belongs to the
    event loop.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap: when it would end
        self._count = count()
        self._shared_s = 0.0  # that one who waited all the while would have had by now
        self._last_s: dict[str, float] = {}  # when a caller's last turn would end, where that is yet to come

    @asynccontextmanager
    async def of(self, who: str, likely_s: float) -> AsyncIterator[None]:
        """likely_s: that it takes."""
        ends_s = self._last_s[who] = max(self._last_s.get(who, 0.0), self._shared_s) + likely_s
        if self._is_taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heappush(self._waiting, (ends_s, next(self._count), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if who in self._last_s:
                    self._last_s[who] -= likely_s
                if not turn.cancelled():  # it has just come
                    self._pass_on()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._shared_s += likely_s / min(max(len(self._last_s), 1), MOST_SHARE)
            self._pass_on()

    def _pass_on(self) -> None:
        self._is_taken = False
        while self._waiting and not self._is_taken:
            *_, turn = heappop(self._waiting)
            if not turn.cancelled():
                self._is_taken = True
                turn.set_result(None)
        is_idle = not self._is_taken
        self._last_s = {who: s for who, s in self._last_s.items() if s > self._shared_s and not is_idle}
