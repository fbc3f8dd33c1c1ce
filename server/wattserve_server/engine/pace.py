"""What the last seconds tell: how long a queue will take, whether callers come back at once, and who will
come. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, exp2, inf, log
from typing import NamedTuple

from wattserve_server.engine.policy import BatchCost, BatchLimits

# A batch counts for so much less with each that follows it: about the last three tell the pace, so that who
# shares the machine is noticed within as many batches.
DECAY = 0.7
MOST_TIMES = 10.0

FRESH_NS = 5_000_000_000  # for so long a pace is believed without another batch

MOST_REST_NS = 5_000_000  # who is back later has not come back at once
BACK = 0.8  # so many of those who were answered must come back within a rest: a part of them saves nothing

COMES_AGAIN_NS = 10_000_000_000  # for so long who came while others waited on is taken to come again

HALF_NS = 2_000_000_000  # what was asked for so long ago counts half
SEEN_NS = HALF_NS // 4  # what comes within less than that tells of no higher rate

GONE = 10  # who has not come for so many times as long as is between two of his requests does not come again

# Of who asks for more than so many times what he has lately been let in with no more is expected: what is
# refused costs nothing, and might keep others away for nothing.
MOST_ASKED = 4.0

LOOK_NS = 100_000_000  # for so long what is expected is not reckoned anew

MOST_REMEMBERED = 4096  # callers
MOST_EXPECTED = 256  # of those, to ask for more: the last ones


def believed_ns(duration_ns: int, foreseen_ns: float) -> int:
    """How much of it tells a pace: a process that was stopped or a machine that slept took the rest, and what
    comes next has none of that."""
    return min(duration_ns, round(MOST_TIMES * max(1.0, foreseen_ns)))


class Pace:
    """Of every variant that one device runs, in tokens as `BatchCost` counts them: those of the sequences,
    and those that starting a batch costs. What padding takes is in the pace."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}  # nanoseconds, for tokens; of the last batches
        self._learned_ns: dict[str, int] = {}  # when each variant's last batch ended
        self.batch_ns = 0.0  # of one like the last ones

    def learn(self, variant: str, tokens: int, cost: BatchCost, duration_ns: int, now_ns: int) -> None:
        """A batch of so many tokens took so long, from being taken to the next one's turn: now."""
        self._learned_ns[variant] = now_ns
        counted = tokens + cost.overhead_tokens
        if variant in self._spent:
            foreseen_ns = max(self.batch_ns, self._tokens_ns(variant, counted))
            duration_ns = believed_ns(duration_ns, foreseen_ns)
        self.batch_ns += (1 - DECAY) * (duration_ns - self.batch_ns) if self.batch_ns else duration_ns
        spent_ns, of_tokens = self._spent.get(variant, (0.0, 0.0))
        self._spent[variant] = DECAY * spent_ns + duration_ns, DECAY * of_tokens + counted

    def begin(self, variant: str, tokens: int, cost: BatchCost, duration_ns: int) -> None:
        """What to go by until its first batch has ended: one of so many tokens took so long."""
        self._spent.setdefault(variant, (duration_ns / (tokens + cost.overhead_tokens), 1.0))

    def ns(
        self, variant: str, sequences: float, tokens: float, cost: BatchCost, limits: BatchLimits
    ) -> float:
        """What so many sequences of so many tokens together will take; 0 where nothing is known yet."""
        if not sequences:
            return 0.0
        batches = max(ceil(sequences / limits.max_sequences), ceil(tokens / limits.max_tokens))
        return self._tokens_ns(variant, tokens + batches * cost.overhead_tokens)

    def is_fresh(self, variant: str, now_ns: int) -> bool:
        """Whether one of its batches has ended a moment ago."""
        return variant in self._learned_ns and now_ns < self._learned_ns[variant] + FRESH_NS

    def tokens(self, variant: str, duration_ns: float) -> float:
        """How many take so long; infinity where nothing is known yet."""
        token_ns = self._tokens_ns(variant, 1.0)
        return duration_ns / token_ns if token_ns else inf

    def start_ns(self, variant: str, cost: BatchCost) -> float:
        """What starting a batch takes; 0 where nothing is known yet."""
        return self._tokens_ns(variant, cost.overhead_tokens)

    def _tokens_ns(self, variant: str, tokens: float) -> float:
        if variant not in self._spent:
            return 0.0
        spent_ns, of_tokens = self._spent[variant]
        return tokens * spent_ns / of_tokens


class Returns:
    """Whether a device should rest until the callers whom it has just answered are back.

    A caller who sends his next request when he has his answer is back as soon as a batch has ended. Where a
    few such callers share a device, who is back finds it busy with the others, and from then on two small
    batches take turns. A short rest brings them together, and saves every second start of a batch. So a rest
    takes no longer than a start does, and there is none where callers have not come back within it.
    """

    def __init__(self) -> None:
        self._share = 0.0  # of those who were answered, who came back in time; as the last batches tell
        self._variant = ""  # of the batch that ended last
        self._answered = self._back = 0  # its sequences, and how many came back in time
        self._until_ns = 0

    def ended(self, variant: str, sequences: int, now_ns: int, start_ns: float) -> None:
        """A batch has ended, and a start takes so long."""
        if self._answered:
            self._share = DECAY * self._share + (1 - DECAY) * min(1.0, self._back / self._answered)
        self._variant, self._answered, self._back = variant, sequences, 0
        self._until_ns = now_ns + min(MOST_REST_NS, int(start_ns))

    def came(self, variant: str, sequences: int, now_ns: int) -> None:
        if variant == self._variant and now_ns <= self._until_ns:
            self._back += sequences

    def rest_ends_ns(self, variant: str) -> int:
        """Until when a batch of a variant should wait for others; 0 where it should not."""
        is_worth_it = variant == self._variant and self._back < self._answered and self._share > BACK
        return self._until_ns if is_worth_it else 0


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
        kept = exp2(min(0, at_ns - self._at_ns) / HALF_NS)
        self.tokens = max(0.0, self.tokens - kept * tokens)
        self.requests = max(0.0, self.requests - kept)

    @property
    def size(self) -> float:
        """Tokens of a request, on the average; 0 where none has come."""
        return self.tokens / self.requests if self.requests else 0.0

    def kept(self, now_ns: int) -> float:
        """The part of it that counts now."""
        return exp2(min(0, self._at_ns - now_ns) / HALF_NS)


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
            tokens = min(tokens, MOST_ASKED * let_in.kept(now_ns) * let_in.tokens)
        seen_ns = max(SEEN_NS, now_ns - self.since_ns)
        return Expected(self.variant, asked.size, max(0.0, tokens) / _counted_ns(seen_ns))


def _counted_ns(seen_ns: int) -> float:
    """For how long as much at that pace comes to the sum that `Asked` has after so long."""
    return HALF_NS / log(2) * (1 - exp2(min(0, -seen_ns) / HALF_NS))


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

    def with_more(self, held_by: Mapping[str, int], now_ns: int) -> set[str]:
        """Of these, who hold so many places, who hold more than somebody who is taken to come again: who has
        come since they began to, not who only came before."""
        after_ns = now_ns - COMES_AGAIN_NS
        ago_ns, least = [], list[float]()  # of those who came so lately, the fewest that one of them holds
        for name, comer in reversed(self._comers.items()):
            if comer.last_ns <= after_ns:
                break
            ago_ns.append(now_ns - comer.last_ns)
            least.append(min(held_by.get(name, 0), least[-1] if least else inf))
        found = set()
        for name, held in held_by.items():
            since_ns = self._comers[name].since_ns if name in self._comers else after_ns
            count = bisect_left(ago_ns, now_ns - max(after_ns, since_ns))
            if count and held > least[count - 1]:
                found.add(name)
        return found

    def expected(self, now_ns: int) -> dict[str, Expected]:
        """Of each caller that is likely to ask for more, as it was when somebody last looked, or a moment
        ago."""
        if now_ns >= self._looked_ns + LOOK_NS:
            self._looked_ns = now_ns
            last = islice(reversed(self._comers.items()), MOST_EXPECTED)
            found = {name: comer.expected(now_ns) for name, comer in last}
            self._expected = {name: each for name, each in found.items() if each.rate}
        return self._expected
