"""What the fake server of `testing` is told to say. Pure: no grpc, no protobuf."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from wattserve_client._fake.requests import Given, Refusal, refusal

DEFAULT_ENERGY_JOULES = 0.05


class ReplyFields(TypedDict, total=False):
    """The fields of `Reply`, for the methods that make one."""

    label: str
    scores: Sequence[float]
    output: Sequence[float]
    energy_joules: float | None
    provisional_joules: float | None
    interval_joules: tuple[float, float]
    unknown_reason: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server says of one sequence.

    `label`, `scores` (one per label) and `output` (the row of logits, or the embedding): any one is
    enough, the others follow from it. `energy_joules`: what the sequence will have cost once settled; None
    for an energy that never becomes known, with an `unknown_reason`. `provisional_joules`: what the first
    answer says; by default the same. `interval_joules`: the 95 % interval (low, high) of the settled
    figure; by default that figure itself.
    """

    label: str = ""
    scores: Sequence[float] | None = None
    output: Sequence[float] | None = None
    energy_joules: float | None = DEFAULT_ENERGY_JOULES
    provisional_joules: float | None = None
    interval_joules: tuple[float, float] | None = None
    unknown_reason: str = ""

    def __post_init__(self) -> None:
        low_high = self.interval_joules or ()
        for value in (self.energy_joules, self.provisional_joules, *low_high):
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"an energy of {value!r} J; it must be 0 or more, and finite")
        if (self.energy_joules is None) != bool(self.unknown_reason):
            raise ValueError("an energy is either known, or None with an unknown_reason")
        if low_high and not low_high[0] <= (self.energy_joules or 0) <= low_high[1]:
            raise ValueError(f"the interval {low_high} J does not hold the figure, {self.energy_joules!r} J")

    @property
    def energy_uj(self) -> int | None:
        return _uj(self.energy_joules)

    @property
    def provisional_uj(self) -> int | None:
        return self.energy_uj if self.provisional_joules is None else _uj(self.provisional_joules)

    @property
    def interval_uj(self) -> tuple[int, int]:
        low, high = self.interval_joules or (self.energy_joules or 0, self.energy_joules or 0)
        return round(low * 1e6), round(high * 1e6)


Otherwise: TypeAlias = Callable[[Given], Reply]


class Script:
    """Which reply belongs to which sequence; used under its server's lock."""

    def __init__(self, labels: Sequence[str]) -> None:
        if len(set(labels)) != len(labels):
            raise ValueError(f"the labels {tuple(labels)} are not all different")
        self.labels = tuple(labels)
        self.otherwise: Reply | Otherwise | None = None
        self._by_input: dict[tuple[Given, str], Reply] = {}
        self._next: deque[Reply] = deque()
        self._failures: dict[str, deque[Refusal]] = {}

    def put(self, given: str | Sequence[int], variant: str, reply: Reply) -> None:
        self.row(reply)
        self._by_input[_key(given), variant] = reply

    def put_next(self, reply: Reply) -> None:
        self.row(reply)
        self._next.append(reply)

    def put_failure(self, method: str, failure: Refusal) -> None:
        self._failures.setdefault(method, deque()).append(failure)

    def fail(self, method: str) -> None:
        """Raise what the method's next call is to fail with, if anything."""
        if waiting := self._failures.get(method):
            raise waiting.popleft()

    def find(self, given: Given, variant: str) -> Reply | Otherwise:
        """What to say of a sequence, or whom to ask. `Refusal` when nothing was scripted for it."""
        if self._next:
            return self._next.popleft()
        if not isinstance(given, np.ndarray):
            for wanted in (variant, ""):
                if reply := self._by_input.get((given, wanted)):
                    return reply
        if self.otherwise is None:
            scripted = list(dict.fromkeys(repr(wanted) for wanted, _ in self._by_input))
            raise refusal(
                "INVALID_ARGUMENT",
                f"the fake server has no answer for {_described(given)} (variant {variant!r}); "
                f"it has answers for {', '.join(scripted) or 'nothing'}: "
                "script one with answer(), answer_next() or otherwise()",
                field="input",
            )
        return self.otherwise

    def row(self, reply: Reply) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """(output row, scores); ValueError when the reply does not fit the labels. Scores are empty
        for a model without labels."""
        if not self.labels:
            if reply.output is None or reply.label or reply.scores is not None:
                raise ValueError("a model without labels answers with an output, and nothing else")
            return np.array(reply.output, np.float32), np.empty(0, np.float32)
        if reply.output is not None:
            row = np.array(reply.output, np.float32)
            scores = np.exp(row - row.max()) if reply.scores is None else np.array(reply.scores, np.float32)
            scores = scores / scores.sum() if reply.scores is None else scores
        else:
            scores = self._scores(reply)
            row = np.log(np.maximum(scores, 1e-6)).astype(np.float32)
        if row.shape != (len(self.labels),) or scores.shape != row.shape:
            raise ValueError(
                f"the labels are {self.labels}: an output or scores hold {len(self.labels)} numbers"
            )
        if reply.label and self.labels[int(scores.argmax())] != reply.label:
            raise ValueError(
                f"the label {reply.label!r} does not have the highest of the scores {scores.tolist()}"
            )
        return row, scores.astype(np.float32)

    def _scores(self, reply: Reply) -> npt.NDArray[Any]:
        if reply.scores is not None:
            return np.array(reply.scores, np.float32)
        if reply.label not in self.labels:
            raise ValueError(f"the label {reply.label!r} is none of {self.labels}")
        if len(self.labels) == 1:
            return np.ones(1, np.float32)
        scores = np.full(len(self.labels), 0.1 / (len(self.labels) - 1), np.float32)
        scores[self.labels.index(reply.label)] = 0.9
        return scores


def _key(given: str | Sequence[int] | npt.NDArray[Any]) -> Given:
    return given if isinstance(given, str) else tuple(int(token) for token in given)


def _described(given: Given) -> str:
    return f"an image {given.shape}" if isinstance(given, np.ndarray) else repr(given)


def _uj(joules: float | None) -> int | None:
    return None if joules is None else round(joules * 1e6)
