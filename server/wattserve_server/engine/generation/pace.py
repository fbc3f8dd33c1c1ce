"""How long generations will hold their places: what the last steps and answers tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace
from itertools import chain, islice
from math import expm1
from typing import NamedTuple

from wattserve_server.engine.pace import believed_ns

# A step counts for so much less with each that follows it: about the last fifty tell the pace.
LATELY = 0.98
# In how far steps of many members take longer than steps of few is told by those that read no prompt: where
# many come at once, the steps of the first of them read the prompts of all. It is learned while their numbers
# differ by so much, as a variance.
TELLS_APART = 2.0
# While they do not, what is believed of more members may keep them out, and is never found wrong: so it fades
# with each step that has room for more, until a further one takes such a part of what one there takes.
FADES = 0.005
UNSEEN = 0.1
FULL = 0.75  # of the places: a step that has so many has none
# No step is believed that takes many times as long as the longest of the last ones, which counts for so much
# less with each that follows it: one with a prompt is not forgotten until the next.
LONGEST_LATELY = 0.99

# An answer counts for so much less with each that follows it: about the last ten tell.
ANSWERS_LATELY = 0.9
# Until answers have told, one token in so many ends one that may end by itself, and nobody leaves.
FIRST_IDEA_TOKENS = 256.0
NEGLIGIBLE = 1e-9  # a chance that an answer ends before it is as long as it may be
FEWEST_STEPS = 25  # once or twice as many tell what a caller holds at the least
# Of one of whom nothing is known about the last hundred callers tell: each counts for so much less with each
# that follows it.
CALLERS_LATELY = 0.99
MOST_TELL = 200
MOST_CALLERS = 1024  # of whom it is known; whose answers are the oldest is forgotten


class _Steps:
    """Of the last ones, the means."""

    def __init__(self) -> None:
        self.weight = self.members = self.ns = 0.0
        self._squared = self._product = 0.0

    def add(self, members: int, duration_ns: int) -> None:
        self.weight = LATELY * self.weight + 1
        part = 1 / self.weight
        self.members += part * (members - self.members)
        self.ns += part * (duration_ns - self.ns)
        self._squared += part * (members * members - self._squared)
        self._product += part * (members * duration_ns - self._product)

    @property
    def more_ns(self) -> float | None:
        """That each further member takes; None while that cannot be told."""
        variance = self._squared - self.members * self.members
        return (self._product - self.members * self.ns) / variance if variance > TELLS_APART else None


class StepPace:
    """How long a step takes, from being planned to the next one, by its members. What prompts add to it is
    counted in."""

    def __init__(self) -> None:
        self._all, self._without_prompts = _Steps(), _Steps()
        self._more_ns = 0.0  # that each further member takes
        self._longest_ns = 0.0

    def learn(self, members: int, reads_prompts: bool, duration_ns: int, places: int) -> None:
        if self._all.weight:
            duration_ns = believed_ns(duration_ns, self._longest_ns)
        self._longest_ns = max(duration_ns, LONGEST_LATELY * self._longest_ns)
        self._all.add(members, duration_ns)
        if not reads_prompts:
            self._without_prompts.add(members, duration_ns)
        told_ns, one_ns = self._without_prompts.more_ns, self._all.ns / self._all.members
        if told_ns is None and members < FULL * places:
            self._more_ns -= FADES * max(0.0, self._more_ns - UNSEEN * one_ns)
        elif told_ns is not None:
            self._more_ns = told_ns
        self._more_ns = min(max(self._more_ns, 0.0), one_ns)  # nothing at the least, all at the most

    def step_ns(self, members: float) -> float:
        """0 where nothing is known yet."""
        return self._all.ns + self._more_ns * (members - self._all.members) if self._all.weight else 0.0


class Idea(NamedTuple):
    """Of one answer: its tokens, and how often it has befallen them."""

    tokens: float
    often: float


class Chances:
    """How soon something befalls answers: as if it had the same chance at each token. One that ended
    otherwise tells, too, that it has befallen none of its tokens, and so does one that runs. A caller's own
    answers tell, and while none of his are known those of others: of each caller as much as one answer, so
    that nobody's many answers tell of everybody.

    at_first: the chance, until answers have told."""

    def __init__(self, at_first: float) -> None:
        self._at_first = Idea(FIRST_IDEA_TOKENS, at_first * FIRST_IDEA_TOKENS)
        self._told: dict[str, tuple[float, float, float]] = {}  # answers, tokens, how often; by caller
        self._ideas: tuple[Idea, Idea] | None = None  # as many callers have it, and as long answers have it

    def learn(self, caller: str, tokens: int, has_befallen: bool) -> None:
        answers, all_tokens, often = (ANSWERS_LATELY * old for old in self._told.pop(caller, (0.0, 0.0, 0.0)))
        self._told[caller] = answers + 1, all_tokens + tokens, often + has_befallen
        self._ideas = None
        while len(self._told) > MOST_CALLERS:
            del self._told[next(iter(self._told))]

    def of(self, caller: str, so_far: int = 0, own: bool = False) -> float:
        """so_far: tokens of an answer of his that it has not befallen yet. own: as reckoned for himself:
        where nothing is known of him an answer tells the more, the longer it is, as many callers' short ones
        may be none like his."""
        if self._ideas is None:
            self._ideas = self._of_all()
        idea = self._ideas[own]
        answers, tokens, often = self._told.get(caller, (0.0, 0.0, 0.0))
        unknown = 1 - (1 - ANSWERS_LATELY) * answers  # as if an answer had told so before his first
        # What runs counts as much as all that he has had before: he may have told what he now does not do.
        return (often + unknown * idea.often) / (
            tokens + unknown * idea.tokens + so_far * (answers + unknown)
        )

    def knows(self, caller: str) -> bool:
        """Whether his own answers tell."""
        return caller in self._told

    def _of_all(self) -> tuple[Idea, Idea]:
        weight, plain, by_length = 1.0, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        lately = islice(reversed(self._told.values()), MOST_TELL)
        told = (Idea(tokens / answers, often / answers) for answers, tokens, often in lately)
        for idea in chain(told, [self._at_first]):
            for sums, counts in ((plain, weight), (by_length, weight * idea.tokens)):
                sums[0] += counts
                sums[1] += counts * idea.tokens
                sums[2] += counts * idea.often
            weight *= CALLERS_LATELY
        found = [Idea(tokens / counts, often / counts) for counts, tokens, often in (plain, by_length)]
        return found[0], found[1]


class Fewest:
    """How many places each caller has held at the least in the last steps."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._lately: dict[str, int] = {}
        self._steps = 0  # that tell of the latter

    def learn(self, held_by: Mapping[str, int]) -> None:
        """Of one more step."""
        if self._steps == FEWEST_STEPS:
            self._before, self._lately, self._steps = self._lately, {}, 0
        held = self._lately if self._steps else held_by
        self._lately = {name: min(count, held_by[name]) for name, count in held.items() if name in held_by}
        self._steps += 1

    @property
    def held_by(self) -> dict[str, int]:
        before, lately = self._before, self._lately
        return {name: min(count, before[name]) for name, count in lately.items() if name in before}


class Told:
    """What the last steps and answers tell, of all lanes of a queue."""

    def __init__(self) -> None:
        self.pace = StepPace()
        self.ends = Chances(1 / FIRST_IDEA_TOKENS)  # of those that may: by themselves
        self.leaves = Chances(0.0)  # of all: their callers have left


def expected_tokens(most: int, chance: float) -> float:
    """Of an answer of so many at the most, or of what is left of it, that ends by a chance at each."""
    return -expm1(-chance * most) / chance if chance * most > NEGLIGIBLE else most


def place_free_ns(held_ns: Iterable[float], ahead: int, hold_ns: float) -> float:
    """After how long who comes has a place. held_ns: for how long each place is held still. ahead: so many
    take theirs before, each for hold_ns."""
    free_ns = list(held_ns)
    heapify(free_ns)
    for _ in range(ahead):
        heapreplace(free_ns, free_ns[0] + hold_ns)
    return free_ns[0]
