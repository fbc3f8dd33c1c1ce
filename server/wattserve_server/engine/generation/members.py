"""A member: a sequence that runs in steps, from being queued until it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.receipt import Line, Role, Work
from wattserve_server.engine.generation.cache import SequenceCache
from wattserve_server.engine.generation.port import FinishReason, TokenIds, TokenScore, Wish
from wattserve_server.engine.generation.sampling import choose, log_likelihoods, score
from wattserve_server.engine.generation.text import TextStream
from wattserve_server.engine.policy import turn_ns
from wattserve_server.engine.queued import QueuedSequence, Request

NO_ROW: NDArray[np.float32] = np.zeros(0, np.float32)


@dataclass(slots=True, eq=False)
class Member(QueuedSequence):
    """`line` is its prompt's. What is below belongs to the lane's thread once it has been admitted.

    wish: None: its prompt is scored, and nothing is generated.
    """

    wish: Wish | None = None
    end_ids: frozenset[int] = frozenset()  # at which it ends
    longest: int = 0  # tokens of prompt and answer at the most
    text: TextStream | None = None  # where it looks for stop strings
    cache: SequenceCache | None = None  # while it is admitted
    produced: list[int] = field(default_factory=list)
    likelihoods: list[NDArray[np.float32]] = field(default_factory=list)  # of the prompt's parts, when scored
    output: Line | None = None  # from its first decoding on
    again: Line | None = None  # from its first preemption on
    preemptions: int = 0
    reason: FinishReason | None = None  # once it has ended by itself
    is_leaving: bool = False  # its caller has left, or it has cost enough; any thread sets it
    first_ns: int = 0  # when its first step began
    steps: int = 0  # that it took part in
    finish_tag: float = 0.0  # by which its prompt has its turn among those that are read
    counted: int = 0  # of these, whose joules the event loop has counted; of one that may cost so much only
    _computed: int = 0  # tokens that have been computed at least once
    _seen: set[int] = field(default_factory=set)

    @property
    def prompt(self) -> TokenIds:
        return self.item

    @property
    def total(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.prompt) + len(self.produced)

    @property
    def pending(self) -> int:
        """Tokens that have to be computed before the next one can be chosen."""
        return self.total - (0 if self.cache is None else self.cache.length)

    @property
    def is_decoding(self) -> bool:
        """Whether a step of one token is all that it needs."""
        return self.pending == 1 and bool(self.produced)

    @property
    def may_end(self) -> bool:
        """Whether its answer may end by itself."""
        return bool(self.end_ids) or self.text is not None

    @property
    def most_left(self) -> int:
        """Tokens that are still to be chosen at the most."""
        if self.wish is None:
            return 0
        return min(self.wish.max_new_tokens - len(self.produced), self.longest - self.total)

    @property
    def is_ahead(self) -> bool:
        """Whether it has to wait until its joules are counted, lest it be more than a step late to end."""
        return self.is_limited and self.steps - self.counted > 1

    @property
    def is_limited(self) -> bool:
        """Whether it ends once it has cost so much."""
        return self.wish is not None and self.wish.max_energy_uj is not None

    @property
    def next_part(self) -> int:
        """Tokens that may be computed together: what was lost apart from what is new."""
        assert self.cache is not None
        lost = self._computed - self.cache.length
        return min(self.pending, lost) if lost > 0 else self.pending

    @property
    def has_made_up(self) -> bool:
        """Whether it has chosen as many tokens as lost places have made it compute again."""
        assert self.cache is not None
        lost = 0 if self.again is None else self.again.tokens
        return lost + self._computed - self.cache.length <= len(self.produced)

    def tokens(self, count: int) -> TokenIds:
        """The next so many to be computed."""
        assert self.cache is not None
        begin = self.cache.length
        whole = np.concatenate([self.prompt[begin:], self.produced[max(0, begin - len(self.prompt)) :]])
        return np.asarray(whole[:count], dtype=np.int64)

    def next_line(self) -> Line:
        """Which of its lines the tokens charge that are computed next; it counts them once they have been."""
        assert self.cache is not None
        receipt = self.request.receipt
        if self.cache.length < self._computed:
            if self.again is None:
                self.again = Line(receipt, 0, role=Role.RECOMPUTED)
                receipt.lines.append(self.again)
            return self.again
        if self.is_decoding:
            if self.output is None:
                self.output = Line(receipt, 0, role=Role.OUTPUT)
                receipt.lines.append(self.output)
            return self.output
        return self.line

    def work(self, count: int) -> Work:
        """What it is to compute the next so many tokens."""
        assert self.cache is not None
        before = self.cache.length
        logits = count if self.wish is None else int(count == self.pending)
        if self.is_decoding:
            return Work(1, logits=logits, read=before + 1)
        pairs = count * before + count * (count + 1) // 2
        return Work(count, pairs, logits, begins=not self._computed)

    def take(self, logits: NDArray[np.float32], count: int) -> list[TokenScore] | None:
        """So many tokens have been computed, and these are the logits of the last of them; of a prompt that
        is scored, of all. What that has chosen: nothing yet, or a token, with its log-probability. None for
        logits that are no numbers."""
        assert self.cache is not None
        if not np.isfinite(logits).all():
            return None
        begin, computed = self.cache.length, self._computed
        self.cache.advance(count)
        self._computed = max(self._computed, self.cache.length)
        if self.wish is None:
            if begin >= computed:  # what a lost place has computed again is known
                following = self.prompt[begin + 1 : begin + count + 1]
                self.likelihoods.append(log_likelihoods(logits[: len(following)], following))
            return []
        if self.pending:
            return []
        return [self._choose(logits[-1])]

    @property
    def row(self) -> NDArray[np.float32]:
        """What its request is answered with: the log-probabilities of a prompt that was scored."""
        return np.concatenate(self.likelihoods) if self.likelihoods else NO_ROW

    def lose_place(self) -> None:
        """Its place in the cache is another's: it begins again."""
        assert self.cache is not None
        self.cache.close()
        self.preemptions += 1

    def _choose(self, logits: NDArray[np.float32]) -> TokenScore:
        assert self.wish is not None
        how = self.wish.sampling
        if how.repetition_penalty != 1.0 and not self._seen:
            self._seen.update(self.prompt.tolist())
        token = choose(logits, how, self._seen, self.total)
        self.produced.append(token)
        if how.repetition_penalty != 1.0:
            self._seen.add(token)
        if token in self.end_ids or (self.text is not None and self._meets_stop(token)):
            self.reason = FinishReason.STOP
        elif len(self.produced) >= self.wish.max_new_tokens or self.total >= self.longest:
            self.reason = FinishReason.LENGTH
        return TokenScore(token, 0.0) if self.wish.best is None else score(logits, token, self.wish.best)

    def _meets_stop(self, token: int) -> bool:
        assert self.text is not None
        self.text.add((token,))
        return bool(self.text.stop)


def member_of(request: Request, prompt: TokenIds, longest: int) -> Member:
    """One more sequence of a request that runs in steps. longest: tokens that it is queued for."""
    line = Line(request.receipt, 0, role=Role.PROMPT)
    request.receipt.lines.append(line)
    turn = turn_ns(request.accepted_ns, request.priority)
    index = len(request.sequences)
    member = Member(request, index, prompt, longest, request.accepted_ns, turn, line)
    request.sequences.append(member)
    request.tokens += longest
    request.remaining += 1
    return member


def end_tokens(config: Any, generation_config: Any | None) -> frozenset[int]:
    """At which a model says that it is done."""
    found: set[int] = set()
    for each in (config, generation_config):
        ids = getattr(each, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)
