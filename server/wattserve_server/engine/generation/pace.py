"""How long generations will hold their places: what the last steps and answers tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heapreplace
from math import expm1

from wattserve_server.engine.pace import believed_ns

# A step counts for so much less with each that follows it: about the last twenty tell the pace.
LATELY = 0.95
# In how far steps of many members take longer than steps of few is learned while their numbers differ by so
# much, as a variance, and kept while they do not.
TELLS_APART = 2.0
# No step is believed that takes many times as long as the longest of the last ones, which counts for so much
# less with each that follows it: one with a prompt is not forgotten until the next.
LONGEST_LATELY = 0.99

# An answer counts for so much less with each that follows it: about the last ten tell.
ANSWERS_LATELY = 0.9
# Until answers have told, one token in so many ends one.
FIRST_IDEA_TOKENS = 256.0
NEGLIGIBLE = 1e-9  # a chance that an answer ends before it is as long as it may be
EVERYBODY = ""
MOST_CALLERS = 1024  # of whom it is known; whose answers are the oldest is forgotten


class StepPace:
    """How long a step takes, from being planned to the next one, by its members; of all lanes of a queue.
    What prompts add to steps is in it."""

    def __init__(self) -> None:
        self._weight = self._members = self._ns = 0.0  # sums over the last steps
        self._members_squared = self._members_ns = 0.0
        self._more_ns = 0.0  # that each further member takes
        self._longest_ns = 0.0

    def learn(self, members: int, duration_ns: int) -> None:
        if self._weight:
            duration_ns = believed_ns(duration_ns, self._longest_ns)
        self._longest_ns = max(duration_ns, LONGEST_LATELY * self._longest_ns)
        self._weight = LATELY * self._weight + 1
        self._members = LATELY * self._members + members
        self._ns = LATELY * self._ns + duration_ns
        self._members_squared = LATELY * self._members_squared + members * members
        self._members_ns = LATELY * self._members_ns + members * duration_ns
        mean, mean_ns = self._members / self._weight, self._ns / self._weight
        variance = self._members_squared / self._weight - mean * mean
        if variance > TELLS_APART:
            self._more_ns = (self._members_ns / self._weight - mean * mean_ns) / variance
        self._more_ns = min(max(self._more_ns, 0.0), mean_ns / mean)  # nothing at the least, all at the most

    def step_ns(self, members: float) -> float:
        """0 where nothing is known yet."""
        if not self._weight:
            return 0.0
        return self._ns / self._weight + self._more_ns * (members - self._members / self._weight)


class AnswerLengths:
    """How many tokens an answer will have: as if each token that may end it did so with the same chance. An
    answer that was cut tells, too, that none of its tokens has ended it. A caller's own answers tell, and
    everybody's while none of his are known."""

    def __init__(self) -> None:
        self._told = {EVERYBODY: (FIRST_IDEA_TOKENS, 1.0)}  # tokens, and how many ended answers; by caller

    def learn(self, caller: str, tokens: int, ended: bool) -> None:
        """ended: by itself, and not because it was as long as it may be, or was cut."""
        for whose in {EVERYBODY, caller}:
            before, ends = self._told.pop(whose) if whose in self._told else self._first_idea()
            self._told[whose] = ANSWERS_LATELY * before + tokens, ANSWERS_LATELY * ends + ended
        while len(self._told) > MOST_CALLERS:
            del self._told[next(iter(self._told))]

    def expected(self, caller: str, most: int, may_end: bool) -> float:
        """Of an answer of so many tokens at the most, or of what is left of it."""
        tokens, ends = self._told.get(caller) or self._first_idea()
        chance = ends / tokens if may_end else 0.0
        return -expm1(-chance * most) / chance if chance * most > NEGLIGIBLE else most

    def _first_idea(self) -> tuple[float, float]:
        """As much as one answer of everybody's tells."""
        tokens, ends = self._told[EVERYBODY]
        return tokens / max(ends, NEGLIGIBLE), 1.0


def place_free_ns(held_ns: Iterable[float], ahead: int, hold_ns: float) -> float:
    """After how long who comes has a place. held_ns: for how long each place is held still. ahead: so many
    take theirs before, each for hold_ns."""
    free_ns = list(held_ns)
    heapify(free_ns)
    for _ in range(ahead):
        heapreplace(free_ns, free_ns[0] + hold_ns)
    return free_ns[0]
