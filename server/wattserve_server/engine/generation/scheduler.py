"""Who computes what in the next step: the queue of a device that generates.

Requests wait in the fair order of `fair`, and are admitted while there is a place in the step, and in the
cache of their variant: who waits for that one keeps nobody of another variant waiting. Every step is one
variant's: variants with members take turns. It decodes a token for each member that can, and gives what is
left of its tokens to prompts, in parts, so that who decodes waits for a step and no longer. Prompts have
their turns by start-time fair queueing too: of one caller's in the order in which they were admitted, and a
short one does not wait for all that another caller has. Where the cache has no room for one more token, the
member that was admitted last loses its place, and comes back before all who wait.

Several lanes may draw on one queue. A member stays where it was admitted, with its keys and values. A lane
that holds more members than another one leaves to that one what has come since its own last step; of what
still waits it admits one a step, since the other may have no room, or hang.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from wattserve_server.energy.receipt import Line
from wattserve_server.engine.batcher import Chore
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.places import STAYS_KEPT_NS, by_turns
from wattserve_server.engine.generation.port import FinishReason
from wattserve_server.engine.generation.waits import WaitsBatcher
from wattserve_server.errors import ExpiredError, WattserveError

HAD_TIME = 0.9  # of that before its deadline: who leaves by then leaves of his own accord

MOST_WAIT_S = 3600.0  # at a time: Python waits for no deadline that is centuries away


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


class StepBatcher(WaitsBatcher):
    """The queue of a lane that generates."""

    preemptions = 0
    _stepping: tuple[int, bool, int] | None = None  # members, whether prompts are read, since when
    _admitting_ns = 0  # when it last looked who waits

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
        self._fewest.learn(self._held_by())
        for variant in tuple(self._members):
            parts = self._parts(self._members[variant])
            if parts:  # then the others come first now
                self._members[variant] = self._members.pop(variant)
                reads_prompts = not all(member.is_decoding for member, _ in parts)
                self._stepping = len(parts), reads_prompts, now_ns
                return Step(variant, [Part(*part, part[0].next_line()) for part in parts])
        return None

    def stepped(self, now_ns: int) -> None:
        """What was planned, if anything was, has run. Called with the lock held."""
        if self._stepping is not None:
            members, reads_prompts, since_ns = self._stepping
            self._told.pace.learn(members, reads_prompts, now_ns - since_ns, self.limits.max_sequences)
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
            # Callers leave at their deadlines too, often a little earlier: that tells nothing of them.
            begun_ns = member.request.accepted_ns
            had_time = deadline_ns is None or now_ns < begun_ns + HAD_TIME * (deadline_ns - begun_ns)
            self._remove(member, has_left=member.is_leaving and had_time)
            told = "the deadline passed while the answer was generated, after {} of its tokens"
            is_over = is_late and not member.is_leaving
            self._on_left(member, ExpiredError(told.format(len(member.produced))) if is_over else None)

    def _admit(self, now_ns: int) -> None:
        last_ns, self._admitting_ns = self._admitting_ns, now_ns
        has_its_part = False
        self._full.clear()
        while self._given_ns and self._given_ns[0] <= now_ns - STAYS_KEPT_NS:
            self._given_ns.popleft()
        while not has_its_part:
            member, gives = self._next_member(now_ns)
            if member is None:
                return
            if not member.request.is_bound:
                has_its_part = any(lane._held < self._held for lane in self._lanes)
                if has_its_part and member.queued_ns > last_ns:
                    self._changed.notify_all()  # the other one may rest
                    return
            cache = self._pool_of(member).open()
            if not cache.reserve(member.total + 1):
                self._full.add(member.request.variant)
                continue
            if gives is not None:
                self._preempt(gives)
                if member.request.caller not in self._held_by():
                    self._given_ns.append(now_ns)
            if member in self._again:
                self._again.remove(member)
            else:
                self._waiting.take([member], packs=True)
            if not member.request.is_bound:
                member.request.bind(self.lane)
            member.cache = cache
            self._give_turn(member)
            self._members.setdefault(member.request.variant, []).append(member)
            self._admitted[member] = None

    def _next_member(self, now_ns: int) -> tuple[Member | None, Member | None]:
        """Who is to be admitted, nobody of a variant whose cache has been found full; and who gives it a
        place, where too few are free for its caller."""
        free = self.limits.max_sequences - len(self._admitted)
        held_by = self._held_by() if free <= self._kept else {}
        served = self._served(held_by, now_ns)
        gives = self._gives(served)
        given = self._to_give_back(served) if gives is not None else [0] * (self._kept + 1)
        if not free and not given[0]:
            return None, None
        blocked = {
            caller
            for caller, held in held_by.items()
            if free <= self._kept_from(served.get(caller, 0)) and not given[self._kept_from(held)]
        }
        lost = (
            each
            for each in self._again
            if each.request.variant not in self._full and each.request.caller not in blocked
        )
        first = next(lost, None) or self._waiting.first(self._may, self._full, blocked)
        assert first is None or isinstance(first, Member)
        if first is None or free > self._kept_from(served.get(first.request.caller, 0)):
            gives = None
        return first, gives

    def _gives(self, served: dict[str, int]) -> Member | None:
        """Whose place who comes gets, where it needs one: of who holds most, the newest has least to lose;
        but one that has no deadline first, and none that has not made up for the last time."""
        most = max(served.values(), default=0)
        newest = [
            each
            for each in reversed(self._admitted)
            if served.get(each.request.caller) == most and each.has_made_up
        ]
        return max(newest, key=lambda each: each.request.deadline_ns or inf, default=None)

    def _give_turn(self, member: Member) -> None:
        """To the prompt of one that is being admitted; at once to one that comes back."""
        self._turns = turns = self._turns_now()
        member.finish_tag = turns.lowest
        if not member.preemptions:
            caller = member.request.caller
            turns.finish_tags[caller] = member.finish_tag = turns.finish_tag(caller, member.pending)

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
        for member in by_turns(members):
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

    def _remove(self, member: Member, has_left: bool = False) -> None:
        if member in self._again:
            self._again.remove(member)
        caller, tokens = member.request.caller, max(1, len(member.produced))
        if member.produced and member.may_end:
            self._told.ends.learn(caller, tokens, member.reason is FinishReason.STOP)
        if member.produced or has_left:
            self._told.leaves.learn(caller, tokens, has_left)
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
