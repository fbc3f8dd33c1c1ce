"""What a language model answers, as plain immutable values; knows nothing of grpc.

Energies are as in `results`: whole microjoules, with joules beside them, and None where they are not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from wattserve_client.results import Receipt, Timing, Usage, joules_of


class FinishReason(StrEnum):
    """Why a generation has ended."""

    UNSPECIFIED = "unspecified"  # the server did not say, or in a word newer than this client
    STOP = "stop"  # at an end token, a stop token or a stop string
    LENGTH = "length"  # at max_new_tokens, or at the model's longest context
    ENERGY = "energy"  # at max_energy_uj


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float  # natural, under the model's own distribution


@dataclass(frozen=True, slots=True)
class TokenScore:
    """How likely the model found a token, and what it found likeliest in its place."""

    chosen: TokenLogprob
    likeliest: tuple[TokenLogprob, ...]  # best first; as many as were asked for


@dataclass(frozen=True, slots=True)
class GenerationPiece:
    """What has come since the piece before."""

    token_ids: tuple[int, ...]
    text: str  # it may lag behind the tokens: whole characters, and nothing that could begin a stop string
    scores: tuple[TokenScore, ...]  # of each token, where `logprobs` asked for them
    energy_uj: int | None  # provisional: of all that has run of the request so far
    unknown_reason: str

    energy_joules = joules_of("energy_uj")


@dataclass(frozen=True, slots=True)
class Generation:
    """The whole answer to a prompt. `receipt.generation` says what prompt and answer cost."""

    request_id: str
    variant: str
    text: str
    token_ids: tuple[int, ...]
    scores: tuple[TokenScore, ...]
    finish_reason: FinishReason
    stop_string: str  # that it met, and that is not in the text; empty where none
    usage: Usage
    receipt: Receipt
    timing: Timing
    seed: int | None  # of what was drawn; None where nothing was

    @property
    def energy_joules(self) -> float | None:
        """Active energy of prompt and answer; None when it is not known (`receipt.unknown_reason`)."""
        return self.receipt.energy_joules

    @property
    def prompt_joules(self) -> float | None:
        return None if self.receipt.generation is None else self.receipt.generation.prompt_energy_joules

    @property
    def output_joules(self) -> float | None:
        return None if self.receipt.generation is None else self.receipt.generation.output_energy_joules

    @property
    def joules_per_output_token(self) -> float | None:
        spent = self.receipt.generation
        return None if spent is None else spent.energy_per_output_token_joules

    @property
    def joules_per_token(self) -> float | None:
        """Of prompt and answer."""
        spent = self.receipt.generation
        return None if spent is None else spent.energy_per_total_token_joules


@dataclass(frozen=True, slots=True, eq=False)
class SequenceScore:
    """How likely the model finds one sequence."""

    token_ids: tuple[int, ...]
    logprobs: npt.NDArray[np.float32]  # natural; of each token but the first
    logprob_sum: float


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The answer to `score`."""

    request_id: str
    variant: str
    sequences: tuple[SequenceScore, ...]  # in the request's order
    usage: Usage
    receipt: Receipt
    timing: Timing

    @property
    def energy_joules(self) -> float | None:
        return self.receipt.energy_joules
