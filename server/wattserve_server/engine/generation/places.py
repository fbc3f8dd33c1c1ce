"""Who may hold the places in the steps of a device that generates.

The last of them are for callers who hold few, the very last for who holds none: else long answers of others
would hold them all, and who comes then would wait until the first of them has ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.generation.cache import CachePool
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.pace import Fewest, Told
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Request
from wattserve_server.errors import WattserveError

# Of so many places one is kept while several callers come: who holds some leaves as many of those free.
KEPT_PART = 8
# One more is kept for so long after who came and held none was given another's: else each of those who come
# one after the other would make an answer begin again.
STAYS_KEPT_NS = 2_000_000_000

OnLeft = Callable[[Member, WattserveError | None], object]


class Turns(NamedTuple):
    """Of prompts, by start-time fair queueing in tokens."""

    lowest: float  # that who is furthest behind has had; where a caller joins
    finish_tags: dict[str, float]  # by caller, of its last prompt, while that is to come

    def finish_tag(self, caller: str, tokens: int) -> float:
        """Of a prompt that is admitted now."""
        return self.finish_tags.get(caller, self.lowest) + tokens


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
        known = beside if isinstance(beside, PlacesBatcher) else None
        self._told: Told = Told() if known is None else known._told
        self._fewest = Fewest()  # of its own steps
        self._given_ns: deque[int] = deque() if known is None else known._given_ns  # see `_kept`

    @property
    def _held(self) -> int:
        """Members that are its own."""
        return len(self._admitted) + len(self._again)

    @property
    def _is_idle(self) -> bool:
        lanes = [each for each in self._together if isinstance(each, PlacesBatcher)]
        return not self._waiting and not any(lane._held for lane in lanes)

    @property
    def _kept(self) -> int:
        """Places that not everybody may have: one more for each that has been given lately."""
        most = self.limits.max_sequences
        return min(most - 1, most // KEPT_PART + len(self._given_ns))

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


def by_turns(members: Iterable[Member]) -> list[Member]:
    """Whose prompt comes first."""
    return sorted(members, key=lambda member: member.finish_tag)
