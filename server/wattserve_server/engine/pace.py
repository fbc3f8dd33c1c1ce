"""How fast a device works off its queue, as its last batches tell, and how long a queue will take. Pure."""

from __future__ import annotations

from math import ceil

from wattserve_server.engine.policy import BatchCost, BatchLimits

# A batch counts for so much less with each that follows it: about the last three tell the pace, so that who
# shares the machine is noticed within as many batches.
DECAY = 0.7


class Pace:
    """Of every variant that one device runs, in tokens as `BatchCost` counts them: those of the sequences,
    and those that starting a batch costs. What padding takes is in the pace."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}  # nanoseconds, for tokens; of the last batches
        self.batch_ns = 0.0  # of one like the last ones

    def learn(self, variant: str, tokens: int, cost: BatchCost, duration_ns: int) -> None:
        """A batch of so many tokens took so long, from being taken to the next one's turn."""
        self.batch_ns += (1 - DECAY) * (duration_ns - self.batch_ns) if self.batch_ns else duration_ns
        spent_ns, of_tokens = self._spent.get(variant, (0.0, 0.0))
        self._spent[variant] = (
            DECAY * spent_ns + duration_ns,
            DECAY * of_tokens + tokens + cost.overhead_tokens,
        )

    def ns(
        self, variant: str, sequences: float, tokens: float, cost: BatchCost, limits: BatchLimits
    ) -> float:
        """What so many sequences of so many tokens together will take; 0 where nothing is known yet."""
        if not sequences or variant not in self._spent:
            return 0.0
        spent_ns, of_tokens = self._spent[variant]
        batches = max(ceil(sequences / limits.max_sequences), ceil(tokens / limits.max_tokens))
        return (tokens + batches * cost.overhead_tokens) * spent_ns / of_tokens
