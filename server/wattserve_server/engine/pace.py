"""What the last batches tell: how long a queue will take, and whether callers come back at once. Pure."""

from __future__ import annotations

from math import ceil, inf

from wattserve_server.engine.policy import BatchCost, BatchLimits

# A batch counts for so much less with each that follows it: about the last three tell the pace, so that who
# shares the machine is noticed within as many batches.
DECAY = 0.7
MOST_TIMES = 10.0

FRESH_NS = 5_000_000_000  # for so long a pace is believed without another batch

MOST_REST_NS = 5_000_000  # who is back later has not come back at once
BACK = 0.8  # so many of those who were answered must come back within a rest: a part of them saves nothing


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
