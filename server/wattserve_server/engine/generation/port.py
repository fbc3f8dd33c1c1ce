"""What a generation is asked for, and what comes of it. No torch: the service and the tests read it too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.receipt import Receipt
from wattserve_server.errors import WattserveError

TokenIds = NDArray[np.int64]  # [tokens]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen of the model's logits. What a request draws depends on its seed and on the
    token's position, never on its company."""

    temperature: float = 0.0  # 0: the best one, always
    top_k: int = 0  # of the best so many; 0: of all
    top_p: float = 1.0  # of the best that together have this probability
    repetition_penalty: float = 1.0  # by which logits of tokens that were there are divided, or multiplied
    seed: int = 0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller asks for, checked."""

    max_new_tokens: int
    sampling: Sampling = GREEDY
    ignores_end: bool = False  # goes on behind the model's own end tokens
    stop_ids: frozenset[int] = frozenset()  # tokens at which it ends, besides the model's own
    stop_strings: tuple[str, ...] = ()  # texts before which it ends; they are not in the answer
    best: int | None = None  # log-probabilities: of each token, and of so many of the best beside it
    max_energy_uj: int | None = None  # it ends once it has cost so much, a step late at the most
    takes_what_fits: bool = False  # fewer tokens, where the cache of keys and values holds fewer


class FinishReason(Enum):
    """Why a generation has ended, in the field's own words."""

    STOP = "stop"  # at an end token or a stop string
    LENGTH = "length"  # at max_new_tokens, or at the model's longest context
    ENERGY = "energy"  # at max_energy_uj


class TokenScore(NamedTuple):
    """The log-probability of a token under the model's own distribution, before any sampling."""

    token_id: int
    logprob: float
    best: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), the best first


class Piece(NamedTuple):
    """What has come since the piece before: of a slow reader, several steps together."""

    token_ids: tuple[int, ...]
    text: str  # whole characters; empty where the model has no tokenizer, or a character is not complete
    scores: tuple[TokenScore, ...]  # of each token, where they were asked for
    energy_uj: int | None  # provisional, of all that has run of the request so far


class Ended(NamedTuple):
    """How a generation has ended that was neither cancelled nor failed."""

    reason: FinishReason
    stop: str  # the stop string that it met; empty otherwise
    prompt_tokens: int
    output_tokens: int  # those that the caller was given, an end token among them
    preemptions: int  # how often it lost its place in the cache, and its prompt was computed again
    queue_ns: int  # from being accepted until its first step
    first_token_ns: int  # from being accepted until its first token was there
    compute_ns: int  # of all steps that it took part in


class Generation(Protocol):
    """One generation in progress. Belongs to the event loop.

    Iterating it gives the pieces and raises WattserveError where it fails. Who stops iterating `aclose`s it:
    its place in the cache is free at once, and what has run is charged.
    """

    receipt: Receipt
    on_used: Callable[[int], object] | None  # is told its microjoules so far after each step, read or not

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    @property
    def ended(self) -> Ended:
        """Once the iteration is over."""
        ...

    def refuse(self, error: WattserveError) -> bool:
        """It ends with that error if it still waits for its first step, and nothing is charged; whether it
        does."""
        ...

    async def aclose(self) -> None: ...
