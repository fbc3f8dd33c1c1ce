"""When there is a place for who comes, in the steps of a device that generates.

What waits, waits for places; or, where the cache of its variant has no room, for what runs of that variant to
end. For how long each is held is reckoned from the last steps and answers. The last of the places are for
callers who hold few, the very last for who holds none: else long answers of others would hold them all, and
who comes then would wait until the first of them has ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from statistics import fmean
from typing import NamedTuple, cast

from wattserve_server.engine.batcher import Batcher, Wanted
from wattserve_server.engine.fair import Ahead
from wattserve_server.engine.generation.cache import CachePool
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.pace import Told, expected_tokens, place_free_ns
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import QueuedSequence, Request
from wattserve_server.errors import WattserveError

# Of so many places one is kept while several callers come: who holds some leaves as many of those free.
KEPT_PART = 8

OnLeft = Callable[[Member, WattserveError | None], object]

NOBODY = Wanted("", "", 0, 0, 0, None)


class Turns(NamedTuple):
    """Of prompts, by start-time fair queueing in tokens."""

    lowest: float  # that who is furthest behind has had; where a caller joins
    finish_tags: dict[str, float]  # by caller, of its last prompt, while that is to come

    def finish_tag(self, caller: str, tokens: int) -> float:
        """Of a prompt that is admitted now."""
        return self.finish_tags.get(caller, self.lowest) + tokens


@dataclass(slots=True)
class Outlook:
    """What goes before who comes, as it was when somebody last asked about it in this step."""

    held_until_ns: dict[Member, float]  # when each will have ended, the first one first
    held_by: dict[str, int]  # see `_held_by`
    read_after: dict[Member, float]  # of each whose prompt is read: by how many steps it will have been
    turns: Turns
    waiting: int = 0  # of how many that wait what follows was told
    hold_steps: dict[tuple[str, frozenset[str]], float] = field(default_factory=dict)  # see `_hold_steps`


class PlacesBatcher(Batcher):
    """Who holds the places of a lane; StepBatcher gives them. limits: members at once, and tokens of a step.
    pool_of: of a variant that is in memory. on_left: called with a member that left before its end: its
    caller had gone (None), its deadline had passed, or its lane was lost."""

    by_end = False  # what they wait for is a place, however long their prompts are

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
        self._pool_of, self._on_left = pool_of, on_left
        self._members: dict[str, list[Member]] = {}  # by variant, of which a step is due longest first
        self._again: deque[Member] = deque()  # that have lost their place
        self._admitted: dict[Member, None] = {}
        self._full: set[str] = set()  # variants whose cache had no room when it last looked who waits
        self._turns = Turns(0.0, {})  # as they were when somebody was last admitted
        self._told: Told = beside._told if isinstance(beside, PlacesBatcher) else Told()
        self._outlook: Outlook | None = None

    @property
    def _held(self) -> int:
        """Members that are its own."""
        return len(self._admitted) + len(self._again)

    @property
    def _lanes(self) -> list[PlacesBatcher]:
        """All that draw on the queue."""
        return [each for each in self._together if isinstance(each, PlacesBatcher)]

    @property
    def _is_idle(self) -> bool:
        return not self._waiting and not any(lane._held for lane in self._lanes)

    @property
    def _kept(self) -> int:
        """Places that not everybody may have."""
        return self.limits.max_sequences // KEPT_PART

    def _held_by(self) -> dict[str, int]:
        """How many places each caller holds, where some are kept."""
        return Counter(member.request.caller for member in self._admitted) if self._kept else {}

    def _served(self, held_by: dict[str, int], now_ns: int) -> dict[str, int]:
        """Of these, from whom some places are kept, as others come who hold fewer."""
        return self._waiting.with_more(held_by, now_ns) if held_by else {}

    def _kept_from(self, held: int) -> int:
        """Of who is served and holds so many places: those that he leaves free."""
        return min(held, self._kept)

    def _to_give_back(self, served: dict[str, int]) -> list[int]:
        """How many places who holds none gets of those who hold more than he would have then; who holds one;
        and so on. They have those from when nobody else came: who holds more than one has the last place,
        and who holds more than two one of the last two. Where none is free, who holds none gets one of
        whoever holds more than one."""
        counts, more = Counter(served.values()), sum(served.values())
        beyond = []
        for held in range(1, self._kept + 1):
            more -= held * counts[held]  # what those hold who hold more than that
            beyond.append(more - (self.limits.max_sequences - held))
        given = [0]
        for over in reversed(beyond):
            given.append(max(given[-1], over))
        if len(self._admitted) == self.limits.max_sequences:
            given[-1] = max(given[-1], sum(served.values()) - len(served))
        return given[::-1]

    def _turns_now(self) -> Turns:
        reading = [each.finish_tag - each.pending for each in self._admitted if not each.is_decoding]
        if not reading:  # nobody has to wait for what another has had
            return Turns(0.0, {})
        lowest = max(self._turns.lowest, min(reading))
        return Turns(lowest, {whose: tag for whose, tag in self._turns.finish_tags.items() if tag > lowest})

    def _wait_ns(self, ahead: Iterable[Ahead], now_ns: int, wanted: Wanted | None = None) -> float:
        lanes, first = self._lanes, [*ahead]
        full = set.intersection(*(lane._full for lane in lanes))
        if wanted is None:  # the longest of all waits
            each_ns = [self._wait_ns(first, now_ns, NOBODY._replace(variant=name)) for name in ("", *full)]
            return max(each_ns)
        # It waits for its variant's cache, or for a place: behind those who wait for the same.
        lack_room = [lane._lacks_room(wanted) for lane in lanes]
        line = wanted.variant if all(lack_room) else ""
        first = [each for each in first if _is_in(line, each.variant, full)]
        ahead_count = sum(each.sequences for each in first)
        again = [member.request for lane in lanes for member in lane._again]
        again = [request for request in again if _is_in(line, request.variant, full)]
        turn_ns = self._turn_ns()
        served = [lane._served(lane._outlook_of(now_ns).held_by, now_ns) for lane in lanes]

        def until_ns(ahead: float, not_of: frozenset[str], held: int | None) -> float:
            """not_of: whose those ahead are not. held: that its caller does then; None: as many as any."""
            free_ns: list[float] = []
            for lane, held_by, lacks_room in zip(lanes, served, lack_room, strict=True):
                if held is None:
                    more = -lane._kept_from(max(held_by.values(), default=0))
                else:
                    kept = lane._kept_from(held if wanted.caller in held_by else 0)
                    more = lane._to_give_back(held_by)[held] - kept
                free_ns += lane._free_ns(wanted.variant if lacks_room else "", more, now_ns, turn_ns)
            hold_ns = self._hold_steps(first, now_ns, line, full, not_of) * turn_ns
            return place_free_ns(free_ns, ceil(ahead), hold_ns)

        found_ns = until_ns(ahead_count + len(again), frozenset(), None)
        own = sum(lane._outlook_of(now_ns).held_by.get(wanted.caller, 0) for lane in lanes)
        if wanted.caller and own < self._kept and found_ns > now_ns:
            # Who holds more does not wait for the same places.
            level = min(own + self._waiting.waiting(wanted.caller), self._kept - 1)
            callers = frozenset(name for held_by in served for name, held in held_by.items() if held > level)
            of_others = 1 - sum(map(self._waiting.waiting, callers)) / max(1, len(self._waiting))
            others_again = sum(request.caller not in callers for request in again)
            found_ns = min(found_ns, until_ns(ahead_count * of_others + others_again, callers, level))
        return max(0.0, found_ns - now_ns)

    def _lacks_room(self, wanted: Wanted) -> bool:
        """Whether the cache of its variant has none now."""
        if wanted.variant in self._full:
            return True
        first = _members(request.sequences[0] for request in wanted.requests[:1])
        return any(not self._pool_of(member).has_room(member.total + 1) for member in first)

    def _free_ns(self, line: str, more: int, now_ns: int, turn_ns: float) -> list[float]:
        """When each place will be free that is for who comes and waits in that line. more: so many places
        than nobody holds."""
        held = self._outlook_of(now_ns).held_until_ns
        if line:
            own = [until_ns for member, until_ns in held.items() if member.request.variant == line]
            return own or [now_ns]
        free = self.limits.max_sequences - len(held) + more
        next_ns = now_ns + (turn_ns if held else 0.0)  # from the next step on
        return [*held.values()][max(0, -free) :] + [next_ns] * max(0, free)

    def _own_ns(self, wanted: Wanted, now_ns: int) -> float:
        members = _members(each for request in wanted.requests for each in request.sequences)
        # When an answer ends by itself nobody knows: a caller who has nothing else here is let in to show it.
        is_believed = not wanted.caller or self._has_some(wanted.caller)
        answers = [
            expected_tokens(member.most_left, self._end_chance(member))
            for member in members
            if is_believed or not member.may_end
        ]
        own = _prompt_tokens(members)
        reading = min(lane._steps_ahead(wanted, own, now_ns) for lane in self._lanes)
        reading += own / self.limits.max_tokens
        return _steps(reading, max(answers, default=0.0)) * self._turn_ns(wanted)

    def _end_chance(self, member: Member) -> float:
        so_far = len(member.produced)
        return self._told.ends.of(member.request.caller, so_far) if member.may_end else 0.0

    def _held_for(self, member: Member) -> float:
        """Tokens until its place is another's, as far as is known: who leaves gives it back as well."""
        leaves = self._told.leaves.of(member.request.caller, len(member.produced))
        chance = self._end_chance(member) + leaves
        return expected_tokens(member.most_left, chance)

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
            held_until_ns, turn_ns, read_after = {}, self._turn_ns(), self._read_after()
            for member in self._admitted:
                steps = _steps(read_after.get(member, 0.0), self._held_for(member))
                until_ns, deadline_ns = now_ns + steps * turn_ns, member.request.deadline_ns
                held_until_ns[member] = until_ns if deadline_ns is None else min(until_ns, deadline_ns)
            first_first = sorted(held_until_ns.items(), key=lambda held: held[1])
            self._outlook = Outlook(dict(first_first), self._held_by(), read_after, self._turns_now())
        return self._outlook

    def _read_after(self) -> dict[Member, float]:
        read_after = {}
        for members in self._members.values():
            tokens = 0
            for member in by_turns(members):
                if not member.is_decoding:
                    tokens += member.pending
                    read_after[member] = tokens / self.limits.max_tokens
        return read_after

    def _hold_steps(
        self, ahead: Sequence[Ahead], now_ns: int, line: str, full: set[str], not_of: frozenset[str]
    ) -> float:
        """For how many steps one of those who wait for the same will hold its place, in the mean; but for
        those callers. Where prompts are what takes the time, each waits for those of all other places. ahead:
        what is known where nobody waits yet."""
        outlook = self._outlook_of(now_ns)
        count = len(self._waiting) + sum([len(lane._again) for lane in self._lanes])
        if outlook.waiting != count:
            outlook.waiting = count
            outlook.hold_steps.clear()
        if (line, not_of) not in outlook.hold_steps:
            waiting = [*_members(self._waiting), *(member for lane in self._lanes for member in lane._again)]
            waiting = [
                member
                for member in waiting
                if _is_in(line, member.request.variant, full) and member.request.caller not in not_of
            ]
            if not waiting:
                return sum(each.tokens for each in ahead) / max(1.0, sum(each.sequences for each in ahead))
            reading = _prompt_tokens(waiting) / self.limits.max_tokens / len(waiting)
            answer = fmean(map(self._held_for, waiting))
            places = len(self._members.get(line, ())) if line else self.limits.max_sequences
            outlook.hold_steps[line, not_of] = max(_steps(reading, answer), reading * places)
        return outlook.hold_steps[line, not_of]

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


def by_turns(members: Iterable[Member]) -> list[Member]:
    """Whose prompt comes first."""
    return sorted(members, key=lambda member: member.finish_tag)


def _is_in(line: str, variant: str, full: set[str]) -> bool:
    """Whether who wants a variant waits for the cache of that one, or, where none is named, for a place."""
    return variant == line if line else variant not in full


def _steps(reading: float, answer: float) -> float:
    """Of one member: the last of those that read its prompt chooses the first token of its answer."""
    return max(1.0, reading) + max(0.0, answer - 1)


def _prompt_tokens(members: Iterable[Member]) -> int:
    return sum(len(member.prompt) for member in members)


def _members(waiting: Iterable[QueuedSequence]) -> list[Member]:
    """What waits here is nothing else."""
    return cast("list[Member]", list(waiting))
