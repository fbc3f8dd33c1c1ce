"""Who computes what in the next step: the queue of a device that generates.

Requests wait in the fair order of `fair`, and are admitted while there is a place in the step and in the
cache. Every step is one variant's: variants with members take turns. It decodes a token for each member that
can, and gives what is left of its tokens to prompts, in parts, so that who decodes waits for a step and no
longer. Prompts have their turns by start-time fair queueing too: of one caller's in the order in which they
were admitted, and a short one does not wait for all that another caller has. Where the cache has no room for
one more token, the member that was admitted last loses its place, and comes back before all who wait.

Several lanes may draw on one queue. A member stays where it was admitted, with its keys and values. A lane
that holds more members than another one leaves to that one what has come since its own last step; of what
still waits it admits one a step, since the other may have no room, or hang.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import fmean
from typing import NamedTuple, cast

from wattserve_server.energy.receipt import Line
from wattserve_server.engine.batcher import Batcher, Chore, Wanted
from wattserve_server.engine.fair import Ahead
from wattserve_server.engine.generation.cache import CachePool
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.pace import AnswerLengths, StepPace, place_free_ns
from wattserve_server.engine.generation.port import FinishReason
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import QueuedSequence, Request
from wattserve_server.errors import ExpiredError, WattserveError

MOST_WAIT_S = 3600.0  # at a time: Python waits for no deadline that is centuries away

OnLeft = Callable[[Member, WattserveError | None], object]


class Part(NamedTuple):
    """What a step computes of one member."""

    member: Member
    tokens: int
    line: Line  # which they charge


@dataclass(frozen=True, slots=True)
class Step:
    """Of members of one variant."""

    variant: str
    parts: list[Part]


class _Turns(NamedTuple):
    """Of prompts, by start-time fair queueing in tokens."""

    lowest: float  # that who is furthest behind has had; where a caller joins
    finish_tags: dict[str, float]  # by caller, of its last prompt, while that is to come

    def finish_tag(self, caller: str, tokens: int) -> float:
        """Of a prompt that is admitted now."""
        return self.finish_tags.get(caller, self.lowest) + tokens


@dataclass(slots=True)
class _Outlook:
    """What goes before who comes, as it was when somebody last asked about it in this step."""

    held_until_ns: list[float]  # of each member: when it will have ended
    read_after: dict[Member, float]  # of each whose prompt is read: by how many steps it will have been
    turns: _Turns
    waiting: int = 0  # of how many that wait what follows was told
    hold_steps: float = 0.0  # for which one of them will hold its place, in the mean


class StepBatcher(Batcher):
    """limits: members at once, and tokens of a step. pool_of: of a variant that is in memory. on_left: called
    with a member that left before its end: its caller had gone (None), its deadline had passed, or its lane
    was lost."""

    def __init__(
        self,
        limits: BatchLimits,
        max_queue: int,
        on_expired: Callable[[Request, int], object],
        max_queue_ns: float,
        pool_of: Callable[[Member], CachePool],
        on_left: OnLeft,
        beside: Batcher | None,
    ) -> None:
        super().__init__(limits, max_queue, on_expired, max_queue_ns, beside)
        self._pool_of = pool_of
        self._on_left = on_left
        self._members: dict[str, list[Member]] = {}  # by variant, of which a step is due longest first
        self._again: deque[Member] = deque()  # that have lost their place
        self._admitted: dict[Member, None] = {}
        self._turns = _Turns(0.0, {})  # as they were when somebody was last admitted
        self._step_pace: StepPace = beside._step_pace if isinstance(beside, StepBatcher) else StepPace()
        self._answers: AnswerLengths = beside._answers if isinstance(beside, StepBatcher) else AnswerLengths()
        self._outlook: _Outlook | None = None
        self._stepping: tuple[int, int] | None = (
            None  # members of the step that runs, and when it was planned
        )
        self._admitting_ns = 0  # when it last looked who waits
        self._is_full = False  # whether the cache had no room then for who came next
        self.preemptions = 0

    @property
    def members(self) -> int:
        """That are admitted. Any thread."""
        return len(self._admitted)

    @property
    def is_wanted(self) -> bool:
        return bool(self._admitted) or bool(self._again) or super().is_wanted

    def leave(self, member: Member) -> None:
        """Its caller has gone, or has had enough. Its place is free before the next step."""
        with self._changed:
            member.is_leaving = True
            self._changed.notify_all()

    def counted(self, member: Member) -> None:
        """The joules of one more of its steps are. On the event loop."""
        with self._changed:
            member.counted += 1
            self._changed.notify_all()

    def next_work(self) -> Step | Chore | None:
        """The next step, its lines marked as running, or the next chore; blocks until there is one. None once
        closed."""
        with self._changed:
            self.stepped(time.monotonic_ns())
            while not self._is_closed:
                now_ns = time.monotonic_ns()
                if self._chores and self._is_chores_turn:
                    return self._next_chore()
                step = self.plan(now_ns)
                if step is not None:
                    self._is_chores_turn = True
                    for part in step.parts:
                        part.line.enter(len(step.parts))
                    return step
                if self._chores:
                    return self._next_chore()
                first_ns = self._waiting.first_leaves_ns
                until_s = MOST_WAIT_S if first_ns is None else (first_ns - now_ns) / 1e9
                self._changed.wait(min(max(0.0, until_s), MOST_WAIT_S))
            return None

    def plan(self, now_ns: int) -> Step | None:
        """The next step; None where there is nothing to do. Called with the lock held."""
        first_ns = self._waiting.first_leaves_ns
        if first_ns is not None and first_ns <= now_ns:
            self._expire(now_ns)
        self._sweep(now_ns)
        self._admit(now_ns)
        self._outlook = None
        for variant in tuple(self._members):
            parts = self._parts(self._members[variant])
            if parts:  # then the others come first now
                self._members[variant] = self._members.pop(variant)
                self._stepping = len(parts), now_ns
                return Step(variant, [Part(*part, part[0].next_line()) for part in parts])
        return None

    def stepped(self, now_ns: int) -> None:
        """What was planned, if anything was, has run. Called with the lock held."""
        if self._stepping is not None:
            members, since_ns = self._stepping
            self._step_pace.learn(members, now_ns - since_ns)
            self._stepping = None

    def make_room(self, members: Iterable[Member]) -> None:
        """They lose their places, for want of memory. On the lane's thread."""
        with self._changed:
            for member in members:
                self._preempt(member)

    def forget(self, member: Member) -> None:
        """It has ended; its room is free. On the lane's thread."""
        with self._changed:
            self._remove(member)

    def lose_all(self, error: WattserveError, stepping: Sequence[Member]) -> None:
        """Its lane is lost, and with it the caches. Who was not in its last step leaves with that error."""
        with self._changed:
            for member in (*self._admitted, *self._again):
                self._remove(member)
                if member not in stepping:
                    self._on_left(member, error)

    def _sweep(self, now_ns: int) -> None:
        """Let go of who has left, and of who has no time left."""
        for member in (*self._admitted, *self._again):
            deadline_ns = member.request.deadline_ns
            is_late = deadline_ns is not None and deadline_ns <= now_ns
            if not (member.is_leaving or is_late):
                continue
            self._remove(member)
            told = "the deadline passed while the answer was generated, after {} of its tokens"
            is_over = is_late and not member.is_leaving
            self._on_left(member, ExpiredError(told.format(len(member.produced))) if is_over else None)

    def _admit(self, now_ns: int) -> None:
        last_ns, self._admitting_ns = self._admitting_ns, now_ns
        has_its_part = self._is_full = False
        while len(self._admitted) < self.limits.max_sequences and not has_its_part:
            member = self._again[0] if self._again else self._first_waiting()
            if member is None:
                return
            if not member.request.is_bound:
                has_its_part = any(lane._held < self._held for lane in self._lanes)
                if has_its_part and member.queued_ns > last_ns:
                    self._changed.notify_all()  # the other one may rest
                    return
            cache = self._pool_of(member).open()
            if not cache.reserve(member.total + 1):
                self._is_full = True
                return
            if self._again:
                self._again.popleft()
            else:
                self._waiting.take([member], packs=True)
            if not member.request.is_bound:
                member.request.bind(self.lane)
            member.cache = cache
            self._give_turn(member)
            self._members.setdefault(member.request.variant, []).append(member)
            self._admitted[member] = None

    def _give_turn(self, member: Member) -> None:
        """To the prompt of one that is being admitted; at once to one that comes back."""
        self._turns = turns = self._turns_now()
        member.finish_tag = turns.lowest
        if not member.preemptions:
            caller = member.request.caller
            turns.finish_tags[caller] = member.finish_tag = turns.finish_tag(caller, member.pending)

    def _turns_now(self) -> _Turns:
        reading = [each.finish_tag - each.pending for each in self._admitted if not each.is_decoding]
        if not reading:  # nobody has to wait for what another has had
            return _Turns(0.0, {})
        lowest = max(self._turns.lowest, min(reading))
        return _Turns(lowest, {whose: tag for whose, tag in self._turns.finish_tags.items() if tag > lowest})

    def _first_waiting(self) -> Member | None:
        """Of those that this lane may run."""
        variant = self._next_variant() if self._waiting else None
        if variant is None:
            return None
        (first,) = self._waiting.in_order(variant, 1, self._may)
        assert isinstance(first, Member)
        return first

    @property
    def _held(self) -> int:
        """Members that are its own."""
        return len(self._admitted) + len(self._again)

    @property
    def _lanes(self) -> list[StepBatcher]:
        """All that draw on the queue."""
        return [each for each in self._together if isinstance(each, StepBatcher)]

    def _parts(self, members: list[Member]) -> list[tuple[Member, int]]:
        """What they compute in the next step. Where one must, the last of them lose their places."""
        decoding: list[tuple[Member, int]] = []
        for member in tuple(members):
            while member in members and member.is_decoding and not member.is_ahead:
                assert member.cache is not None
                if member.cache.reserve(member.cache.length + 1):
                    decoding.append((member, 1))
                    break
                self._preempt(members[-1])
        kept = [part for part in decoding if part[0] in members]
        left = max(self.limits.max_tokens - len(kept), 1)
        for member in _by_turns(members):
            if not member.is_decoding and not member.is_ahead and left > 0:
                count = min(member.next_part, left)
                kept.append((member, count))
                left -= count
        return kept

    def _preempt(self, member: Member) -> None:
        self.preemptions += 1
        member.lose_place()
        self._drop(member)
        del self._admitted[member]
        self._again.appendleft(member)

    def _remove(self, member: Member) -> None:
        if member in self._again:
            self._again.remove(member)
        if member.may_end and member.produced:
            ended = member.reason is FinishReason.STOP
            self._answers.learn(member.request.caller, len(member.produced), ended)
        if member in self._admitted:
            del self._admitted[member]
            self._drop(member)
        if member.cache is not None:
            member.cache.close()

    def _drop(self, member: Member) -> None:
        members = self._members[member.request.variant]
        members.remove(member)
        if not members:
            del self._members[member.request.variant]

    # What waits, waits for places. For how long each is held is reckoned from the last steps and answers.

    @property
    def _is_idle(self) -> bool:
        return not self._waiting and not any(lane._held for lane in self._lanes)

    def _wait_ns(self, ahead: Iterable[Ahead], now_ns: int) -> float:
        lanes, first, turn_ns = self._lanes, [*ahead], self._turn_ns
        waiting = ceil(sum([each.sequences for each in first])) + sum([len(lane._again) for lane in lanes])
        free_ns: list[float] = []
        for lane in lanes:
            held_ns = [until_ns - now_ns for until_ns in lane._outlook_of(now_ns).held_until_ns]
            free = max(0, lane._places - len(held_ns))
            free_ns += held_ns + [turn_ns if held_ns else 0.0] * free  # from the next step on
        hold_ns = self._hold_steps(first, now_ns) * turn_ns if waiting else 0.0
        return max(0.0, place_free_ns(free_ns, waiting, hold_ns))

    def _own_ns(self, wanted: Wanted, now_ns: int) -> float:
        members = _members(each for request in wanted.requests for each in request.sequences)
        # When an answer ends by itself nobody knows: a caller who has nothing else here is let in to show it.
        is_believed = not wanted.caller or self._has_some(wanted.caller)
        answers = [member.left(self._answers) for member in members if is_believed or not member.may_end]
        own = _prompt_tokens(members)
        reading = min(lane._steps_ahead(wanted, own, now_ns) for lane in self._lanes)
        reading += own / self.limits.max_tokens
        return _steps(reading, max(answers, default=0.0)) * self._turn_ns

    def _steps_ahead(self, wanted: Wanted, tokens: int, now_ns: int) -> float:
        """That prompts take which have their turn before the end of a request's, of so many tokens; all of
        them for requests of several callers."""
        outlook = self._outlook_of(now_ns)
        tag = outlook.turns.finish_tag(wanted.caller, tokens) if wanted.caller else inf
        ahead = [
            steps
            for member, steps in outlook.read_after.items()
            if member.request.variant == wanted.variant and member.finish_tag <= tag
        ]
        return max(ahead, default=0.0)

    def _has_some(self, caller: str) -> bool:
        """Whether anything of a caller's runs or waits."""
        if self._waiting.waiting(caller):
            return True
        held = (member for lane in self._lanes for member in (*lane._admitted, *lane._again))
        return any(member.request.caller == caller for member in held)

    def _outlook_of(self, now_ns: int) -> _Outlook:
        """What its members will take: looked at once in each step that somebody asks about."""
        if self._outlook is None:
            held_until_ns, turn_ns, read_after = [], self._turn_ns, self._read_after()
            for member in self._admitted:
                steps = _steps(read_after.get(member, 0.0), member.left(self._answers))
                until_ns, deadline_ns = now_ns + steps * turn_ns, member.request.deadline_ns
                held_until_ns.append(until_ns if deadline_ns is None else min(until_ns, deadline_ns))
            self._outlook = _Outlook(held_until_ns, read_after, self._turns_now())
        return self._outlook

    def _read_after(self) -> dict[Member, float]:
        read_after = {}
        for members in self._members.values():
            tokens = 0
            for member in _by_turns(members):
                if not member.is_decoding:
                    tokens += member.pending
                    read_after[member] = tokens / self.limits.max_tokens
        return read_after

    def _hold_steps(self, ahead: Sequence[Ahead], now_ns: int) -> float:
        """For how many steps one of those who wait will hold its place, in the mean. Where prompts are what
        takes the time, each waits for those of all other places. ahead: what is known where nobody waits
        yet."""
        outlook = self._outlook_of(now_ns)
        count = len(self._waiting) + sum([len(lane._again) for lane in self._lanes])
        if not count:
            return sum(each.tokens for each in ahead) / sum(each.sequences for each in ahead)
        if outlook.waiting != count:
            waiting = [*_members(self._waiting), *(member for lane in self._lanes for member in lane._again)]
            reading = _prompt_tokens(waiting) / self.limits.max_tokens / count
            answer = fmean(member.left(self._answers) for member in waiting)
            outlook.waiting = count
            outlook.hold_steps = max(_steps(reading, answer), reading * self._places)
        return outlook.hold_steps

    @property
    def _turn_ns(self) -> float:
        """From one step of a member to its next one, once those who wait have places too."""
        variants = max(1, len(self._members))
        members = min(self._places, self._held + len(self._waiting) + 1)
        return self._step_pace.step_ns(members / variants) * variants

    @property
    def _places(self) -> int:
        return max(1, self.members) if self._is_full else self.limits.max_sequences


def _steps(reading: float, answer: float) -> float:
    """Of one member: the last of those that read its prompt chooses the first token of its answer."""
    return max(1.0, reading) + max(0.0, answer - 1)


def _prompt_tokens(members: Iterable[Member]) -> int:
    return sum(len(member.prompt) for member in members)


def _by_turns(members: Iterable[Member]) -> list[Member]:
    """Whose prompt comes first."""
    return sorted(members, key=lambda member: member.finish_tag)


def _members(waiting: Iterable[QueuedSequence]) -> list[Member]:
    """What waits here is nothing else."""
    return cast("list[Member]", list(waiting))
