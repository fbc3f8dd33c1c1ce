"""Who comes to a device, and how much each has asked for lately: what is to be expected of those who have
nothing waiting. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

COMES_AGAIN_NS = 10_000_000_000  # for so long who came while others waited on is taken to come again

HALF_NS = 2_000_000_000  # what was asked for so long ago counts half
SEEN_NS = HALF_NS // 4  # what comes within less than that tells of no higher rate

GONE = 10  # who has not come for so many times as long as is between two of his requests does not come again

# Of who asks for more than so many times what he has lately been let in with no more is expected: what is
# refused costs nothing, and might keep others away for nothing.
MOST_TIMES = 4.0

LOOK_NS = 100_000_000  # for so long what is expected is not reckoned anew

MOST_REMEMBERED = 4096  # callers
MOST_EXPECTED = 256  # of those, to ask for more: the last ones


class Expected(NamedTuple):
    """What a caller is likely to ask for."""

    variant: str
    size: float  # tokens of a request
    rate: float  # tokens a nanosecond


@dataclass(slots=True)
class Asked:
    """A sum of what was asked for, older requests counting less."""

    tokens: float = 0.0
    requests: float = 0.0
    _at_ns: int = 0

    def add(self, tokens: float, now_ns: int) -> None:
        kept = self.kept(now_ns)
        self.tokens = kept * self.tokens + tokens
        self.requests = kept * self.requests + 1
        self._at_ns = now_ns

    def take_back(self, tokens: float, at_ns: int) -> None:
        """What was added then."""
        kept = math.exp2(min(0, at_ns - self._at_ns) / HALF_NS)
        self.tokens = max(0.0, self.tokens - kept * tokens)
        self.requests = max(0.0, self.requests - kept)

    @property
    def size(self) -> float:
        """Tokens of a request, on the average; 0 where none has come."""
        return self.tokens / self.requests if self.requests else 0.0

    def kept(self, now_ns: int) -> float:
        """The part of it that counts now."""
        return math.exp2(min(0, self._at_ns - now_ns) / HALF_NS)


@dataclass(slots=True)
class Comer:
    """A caller, since it began to come."""

    since_ns: int
    last_ns: int
    variant: str = ""  # that it was let in for last
    asked: Asked = field(default_factory=Asked)
    let_in: Asked = field(default_factory=Asked)  # of that

    def expected(self, now_ns: int) -> Expected:
        """One request tells of no others: it may be the last. Nor does who has stayed away."""
        asked, let_in = self.asked, self.let_in
        between_ns = _counted_ns(self.last_ns - self.since_ns) / max(1.0, asked.requests - 1)
        tokens = 0.0
        if now_ns - self.last_ns <= max(LOOK_NS, GONE * between_ns):
            tokens = asked.kept(now_ns) * asked.tokens - asked.size
            tokens = min(tokens, MOST_TIMES * let_in.kept(now_ns) * let_in.tokens)
        seen_ns = max(SEEN_NS, now_ns - self.since_ns)
        return Expected(self.variant, asked.size, max(0.0, tokens) / _counted_ns(seen_ns))


def _counted_ns(seen_ns: int) -> float:
    """For how long as much at that pace comes to the sum that `Asked` has after so long."""
    return HALF_NS / math.log(2) * (1 - math.exp2(min(0, -seen_ns) / HALF_NS))


class Demand:
    """Of all callers of a device, whether what they asked for was let in or not."""

    def __init__(self) -> None:
        self._comers: dict[str, Comer] = {}  # in the order in which they came last
        self._expected: dict[str, Expected] = {}
        self._looked_ns = -LOOK_NS

    def came(self, caller: str, now_ns: int) -> None:
        """It is about to ask for something."""
        comer = self._comers.pop(caller, None) or Comer(now_ns, now_ns)
        comer.last_ns = now_ns
        self._comers[caller] = comer
        while True:
            earliest = next(iter(self._comers))
            if len(self._comers) <= MOST_REMEMBERED and (
                now_ns < self._comers[earliest].last_ns + COMES_AGAIN_NS
            ):
                return
            del self._comers[earliest]

    def let_in(self, caller: str, variant: str, tokens: int, now_ns: int) -> None:
        """A request, after it `came`."""
        comer = self._comers[caller]
        comer.variant = variant
        comer.asked.add(tokens, now_ns)
        comer.let_in.add(tokens, now_ns)

    def refused(self, caller: str, tokens: int, now_ns: int) -> None:
        """As `let_in`. tokens: no fewer; of one that was not looked at as many as the caller's others have is
        likelier."""
        asked = self._comers[caller].asked
        asked.add(max(float(tokens), asked.size), now_ns)

    def left(self, caller: str, tokens: int, asked_ns: int) -> None:
        """A request has left without having run: it took nothing of the device, and might keep others from
        it for nothing."""
        if (comer := self._comers.get(caller)) is not None:
            comer.asked.take_back(tokens, asked_ns)
            comer.let_in.take_back(tokens, asked_ns)

    def others_come(self, caller: str, now_ns: int) -> bool:
        """Whether anybody else is taken to come again: who has come since this caller began to, not who only
        came before."""
        after_ns = now_ns - COMES_AGAIN_NS
        if (own := self._comers.get(caller)) is not None:
            after_ns = max(after_ns, own.since_ns)
        latest = (comer.last_ns for name, comer in reversed(self._comers.items()) if name != caller)
        return next(latest, after_ns) > after_ns

    def expected(self, now_ns: int) -> dict[str, Expected]:
        """Of each caller that is likely to ask for more, as it was when somebody last looked, or a moment
        ago."""
        if now_ns >= self._looked_ns + LOOK_NS:
            self._looked_ns = now_ns
            last = islice(reversed(self._comers.items()), MOST_EXPECTED)
            found = {name: comer.expected(now_ns) for name, comer in last}
            self._expected = {name: each for name, each in found.items() if each.rate}
        return self._expected
