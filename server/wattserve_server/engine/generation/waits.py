"""For how long who comes will wait for a place, in the steps of a device that generates.

What waits, waits for places; or, where the cache of its variant has no room, for what runs of that variant to
end. For how long each is held is reckoned from the last steps and answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from math import ceil, inf
from typing import cast

from wattserve_server.engine.batcher import Wanted
from wattserve_server.engine.fair import Ahead
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.pace import expected_tokens, place_free_ns
from wattserve_server.engine.generation.places import PlacesBatcher, Turns, by_turns
from wattserve_server.engine.queued import QueuedSequence

# Who holds places for a part of the time for which another will hold one leaves them to him in between.
BRIEF = 8

NOBODY = Wanted("", "", 0, 0, 0, None)


@dataclass(slots=True)
class ToHold:
    """For what so many that wait will hold their places: tokens."""

    members: int = 0
    answers: float = 0.0
    own_answers: float = 0.0  # as their caller himself has to expect; see `_held_for`
    prompts: int = 0

    def add(self, more: ToHold) -> None:
        self.members += more.members
        self.answers += more.answers
        self.own_answers += more.own_answers
        self.prompts += more.prompts

    def steps(self, step_tokens: int, places: int, own: bool = False) -> float:
        """For how many one of them will, in the mean; 0 where there is none. Where prompts are what takes the
        time, each waits for those of all other places."""
        if not self.members:
            return 0.0
        reading = self.prompts / step_tokens / self.members
        answers = self.own_answers if own else self.answers
        return max(_steps(reading, answers / self.members), reading * places)

    @classmethod
    def sum(cls, parts: Iterable[ToHold]) -> ToHold:
        found = cls()
        for each in parts:
            found.add(each)
        return found


@dataclass(slots=True)
class Outlook:
    """What goes before who comes, as it was when somebody last asked about it in this step."""

    held_until_ns: dict[Member, float]  # when each will have ended, the first one first
    held_by: dict[str, int]  # see `_held_by`
    read_after: dict[Member, float]  # of each whose prompt is read: by how many steps it will have been
    turns: Turns
    for_callers: dict[frozenset[str], dict[Member, float]] = field(default_factory=dict)
    waiting: int = 0  # of how many that wait what follows was told
    to_hold: dict[str, dict[str, ToHold]] = field(default_factory=dict)  # by line and caller


class WaitsBatcher(PlacesBatcher):
    """What is foreseen of the places of a lane."""

    _outlook: Outlook | None = None

    @property
    def _lanes(self) -> list[WaitsBatcher]:
        """All that draw on the queue."""
        return [each for each in self._together if isinstance(each, WaitsBatcher)]

    def _wait_ns(self, ahead: Iterable[Ahead], now_ns: int, wanted: Wanted | None = None) -> float:
        lanes, first = self._lanes, [*ahead]
        full = set.intersection(*(lane._full for lane in lanes))
        if wanted is None:  # the longest of all waits
            each_ns = [self._wait_ns(first, now_ns, NOBODY._replace(variant=name)) for name in ("", *full)]
            return max(each_ns)
        # It waits for its variant's cache, or for a place: behind those who wait for the same.
        caller, lack_room = wanted.caller, [lane._lacks_room(wanted) for lane in lanes]
        line = wanted.variant if all(lack_room) else ""
        turn_ns, to_hold = self._turn_ns(), self._to_hold(now_ns, line, full)
        lost = [member.request for lane in lanes for member in lane._again]
        again = [request.caller for request in lost if _is_in(line, request.variant, full)]
        own_ahead = self._waiting.own_ahead(caller, wanted.priority, now_ns)
        before = _sequences(own_ahead, line, full) + again.count(caller)  # its caller's own
        mine = frozenset([caller] if caller else [request.caller for request in wanted.requests])
        if not caller:  # each of what comes together goes behind all of it
            coming = _members(each for request in wanted.requests for each in request.sequences)
            theirs = [to_hold[name] for name in mine if name in to_hold]
            together = ToHold.sum([*map(self._of_member, coming), *theirs])
            to_hold = {name: each for name, each in to_hold.items() if name not in mine}
            to_hold[caller], before = together, together.members
        others = max(0.0, _sequences(first, line, full) + len(again) - before)
        places = len(self._members.get(line, ())) if line else self.limits.max_sequences
        own_hold_ns = turn_ns * to_hold.get(caller, ToHold()).steps(self.limits.max_tokens, places, own=True)
        served = [lane._served(lane._outlook_of(now_ns).held_by, now_ns) for lane in lanes]

        def until_ns(own: float, not_of: Container[str], held: int | None) -> float:
            """Behind so many of its caller's own, and all others but theirs (not_of). held: that its caller
            does then; None: as many as any."""
            free_ns: list[float] = []
            for lane, held_by, lacks_room in zip(lanes, served, lack_room, strict=True):
                if held is None:
                    more = -lane._kept_from(max(held_by.values(), default=0))
                    more -= lane._taken_again(mine, int(own), now_ns, now_ns + own_hold_ns)
                else:
                    kept = lane._kept_from(held if caller in held_by else 0)
                    more = lane._to_give_back(held_by)[held] - kept
                free_ns += lane._free_ns(mine, wanted.variant if lacks_room else "", more, now_ns, turn_ns)
            all_others = {name: each for name, each in to_hold.items() if name != caller}
            of_others = ToHold.sum(each for name, each in all_others.items() if name not in not_of)
            ahead, hold_ns = others, of_others.steps(self.limits.max_tokens, places) * turn_ns
            if all_others:
                ahead *= of_others.members / ToHold.sum(all_others.values()).members
            else:  # what is known where nobody else waits yet
                hold_ns = sum([each.tokens for each in first]) / max(1.0, others) * turn_ns
            each_ns = (own * own_hold_ns + ahead * hold_ns) / max(1.0, own + ahead)
            return place_free_ns(free_ns, ceil(own + ahead), each_ns)

        found_ns = until_ns(before, (), None)
        if line or not caller or not self._kept or found_ns <= now_ns:
            return max(0.0, found_ns - now_ns)
        # Of the places that are kept from who holds more, who does so waits for none.
        ended_ns = now_ns + own_hold_ns
        held = [each for lane in lanes for each in lane._held_until_ns(mine, now_ns).items()]
        own_ns = [end_ns for member, end_ns in held if member.request.caller == caller]
        own, reach = len(own_ns), 0
        for lane, held_by in zip(lanes, served, strict=True):
            reach += lane._reach(caller, held_by, now_ns, ended_ns)
        reach = max(1, reach)
        level = min(own + int(before), reach - 1, self._kept - 1)
        callers = {name for held_by in served for name, held in held_by.items() if held > level}
        few_ns = until_ns(max(0, level - own), callers, level)
        if own + before >= reach:  # it comes after his own, which have those one after the other
            own_ns = sorted(own_ns)[max(0, own - reach) :]
            few_ns = place_free_ns([*own_ns, *[few_ns] * (reach - len(own_ns))], ceil(before), own_hold_ns)
        return max(0.0, min(found_ns, few_ns) - now_ns)

    def _reach(self, caller: str, served: dict[str, int], now_ns: int, until_ns: float) -> int:
        """How many places a caller gets to hold of those that are kept from who holds more. until_ns: who
        will have ended by then makes room; but others hold as many as they lately did at the least, as far
        as those are no more than the caller's."""
        outlook = self._outlook_of(now_ns)
        if caller not in self._served({**outlook.held_by, caller: self._kept}, now_ns):
            return self._kept  # nobody comes who holds fewer
        own, given = outlook.held_by.get(caller, 0), self._to_give_back(served)
        stay = self._still_held(now_ns, until_ns)
        stay[caller], reach = own, min(own, self._kept)
        others = [count - stay[name] for name, count in self._fewest.held_by.items() if count > stay[name]]
        while reach < self._kept:
            taken = stay.total() - own + reach + sum([min(count, reach) for count in others])
            if self.limits.max_sequences - taken <= reach and given[reach] <= reach - own:
                break
            reach += 1
        return reach

    def _taken_again(self, mine: frozenset[str], before: int, now_ns: int, until_ns: float) -> int:
        """Places that will be free by then, but for others who come again, each for as many as those callers
        hold, who have so many before: as many as he lately held at the least. Those that are held for a part
        of the time only are free again and again."""
        outlook, stay = self._outlook_of(now_ns), self._still_held(now_ns, until_ns)
        ends_ns = {member.request.caller: end_ns for member, end_ns in outlook.held_until_ns.items()}
        before += sum([count for name, count in outlook.held_by.items() if name in mine])
        return sum(
            max(0, min(count, before) - stay[name])
            for name, count in self._fewest.held_by.items()
            if name not in mine and BRIEF * (ends_ns.get(name, now_ns) - now_ns) > until_ns - now_ns
        )

    def _still_held(self, now_ns: int, until_ns: float) -> Counter[str]:
        """How many of the places that each caller holds he will hold then."""
        held = self._outlook_of(now_ns).held_until_ns
        return Counter(member.request.caller for member, end_ns in held.items() if end_ns > until_ns)

    def _lacks_room(self, wanted: Wanted) -> bool:
        """Whether the cache of its variant has none now."""
        if wanted.variant in self._full:
            return True
        first = _members(request.sequences[0] for request in wanted.requests[:1])
        return any(not self._pool_of(member).has_room(member.total + 1) for member in first)

    def _free_ns(
        self, mine: frozenset[str], line: str, more: int, now_ns: int, turn_ns: float
    ) -> list[float]:
        """When each place will be free that is for who comes, of those callers, and waits in that line. more:
        so many places than nobody holds."""
        held = self._held_until_ns(mine, now_ns)
        if line:
            own = [until_ns for member, until_ns in held.items() if member.request.variant == line]
            return own or [now_ns]
        free = self.limits.max_sequences - len(held) + max(more, 1 - self.limits.max_sequences)
        next_ns = now_ns + (turn_ns if held else 0.0)  # from the next step on
        return [*held.values()][max(0, -free) :] + [next_ns] * max(0, free)

    def _own_ns(self, wanted: Wanted, now_ns: int) -> float:
        members = _members(each for request in wanted.requests for each in request.sequences)
        # When an answer ends by itself nobody knows: a caller who has nothing else here is let in to show it.
        is_believed = not wanted.caller or self._has_some(wanted.caller)
        answers = [
            expected_tokens(member.most_left, self._end_chance(member, own=True))
            for member in members
            if is_believed or not member.may_end
        ]
        own = _prompt_tokens(members)
        reading = min(lane._steps_ahead(wanted, own, now_ns) for lane in self._lanes)
        reading += own / self.limits.max_tokens
        return _steps(reading, max(answers, default=0.0)) * self._turn_ns(wanted)

    def _end_chance(self, member: Member, own: bool) -> float:
        so_far = len(member.produced)
        return self._told.ends.of(member.request.caller, so_far, own) if member.may_end else 0.0

    def _held_for(self, member: Member, own: bool) -> float:
        """Tokens until its place is another's, as far as is known: who leaves gives it back as well. own: as
        reckoned for its caller himself, of whom nobody else's leaving tells that he will."""
        caller, told = member.request.caller, self._told.leaves
        leaves = 0.0 if own and not told.knows(caller) else told.of(caller, len(member.produced))
        return expected_tokens(member.most_left, self._end_chance(member, own) + leaves)

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

    def _outlook_of(self, now_ns: int) -> Outlook:
        """What its members will take: looked at once in each step that somebody asks about."""
        if self._outlook is None:
            read_after = self._read_after()
            until_ns = self._until_ns_of(self._admitted, read_after, now_ns, own=False)
            self._outlook = Outlook(_by_time(until_ns), self._held_by(), read_after, self._turns_now())
        return self._outlook

    def _until_ns_of(
        self, members: Iterable[Member], read_after: dict[Member, float], now_ns: int, own: bool
    ) -> dict[Member, float]:
        until_ns, turn_ns = {}, self._turn_ns()
        for member in members:
            steps = _steps(read_after.get(member, 0.0), self._held_for(member, own))
            ended_ns, deadline_ns = now_ns + steps * turn_ns, member.request.deadline_ns
            until_ns[member] = ended_ns if deadline_ns is None else min(ended_ns, deadline_ns)
        return until_ns

    def _held_until_ns(self, mine: frozenset[str], now_ns: int) -> dict[Member, float]:
        """As the outlook has it, but for those callers' members as they have to expect; see `_held_for`."""
        outlook = self._outlook_of(now_ns)
        if mine not in outlook.for_callers:
            own = [member for member in outlook.held_until_ns if member.request.caller in mine]
            own_ns = self._until_ns_of(own, outlook.read_after, now_ns, own=True)
            outlook.for_callers[mine] = _by_time({**outlook.held_until_ns, **own_ns})
        return outlook.for_callers[mine]

    def _read_after(self) -> dict[Member, float]:
        read_after = {}
        for members in self._members.values():
            tokens = 0
            for member in by_turns(members):
                if not member.is_decoding:
                    tokens += member.pending
                    read_after[member] = tokens / self.limits.max_tokens
        return read_after

    def _of_member(self, member: Member) -> ToHold:
        return ToHold(1, self._held_for(member, False), self._held_for(member, True), len(member.prompt))

    def _to_hold(self, now_ns: int, line: str, full: set[str]) -> dict[str, ToHold]:
        """Of those who wait for the same, by caller."""
        outlook = self._outlook_of(now_ns)
        count = len(self._waiting) + sum([len(lane._again) for lane in self._lanes])
        if outlook.waiting != count:
            outlook.waiting = count
            outlook.to_hold.clear()
        if line not in outlook.to_hold:
            found = outlook.to_hold[line] = {}
            waiting = [*_members(self._waiting), *(member for lane in self._lanes for member in lane._again)]
            for member in waiting:
                if _is_in(line, member.request.variant, full):
                    found.setdefault(member.request.caller, ToHold()).add(self._of_member(member))
        return outlook.to_hold[line]

    def _turn_ns(self, wanted: Wanted = NOBODY) -> float:
        """From one step of a member to its next one, once those who wait have places too, and who comes."""
        coming, variants = float(wanted.sequences), {*self._members}
        if wanted.variant:
            variants.add(wanted.variant)
        for variant, sequences, _ in self._waiting.everything():
            if sequences and variant not in self._full:
                coming += sequences
                variants.add(variant)
        members, steps = min(self.limits.max_sequences, self._held + coming), max(1, len(variants))
        return self._told.pace.step_ns(max(1.0, members / steps)) * steps


def _is_in(line: str, variant: str, full: set[str]) -> bool:
    """Whether who wants a variant waits for the cache of that one, or, where none is named, for a place."""
    return variant == line if line else variant not in full


def _sequences(parts: Iterable[Ahead], line: str, full: set[str]) -> float:
    """Of those who wait for the same."""
    return sum([each.sequences for each in parts if _is_in(line, each.variant, full)])


def _by_time(until_ns: dict[Member, float]) -> dict[Member, float]:
    """The first one first."""
    return dict(sorted(until_ns.items(), key=lambda each: each[1]))


def _steps(reading: float, answer: float) -> float:
    """Of one member: the last of those that read its prompt chooses the first token of its answer."""
    return max(1.0, reading) + max(0.0, answer - 1)


def _prompt_tokens(members: Iterable[Member]) -> int:
    return sum(len(member.prompt) for member in members)


def _members(waiting: Iterable[QueuedSequence]) -> list[Member]:
    """What waits here is nothing else."""
    return cast("list[Member]", list(waiting))
