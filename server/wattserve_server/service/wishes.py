"""What is asked of a generation, held against the model before the engine sees it. Pure; errors name the
field in the request message.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattserve_server.engine.generation.port import Sampling, TokenIds, Wish
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.errors import InvalidRequest
from wattserve_server.service.checks import MAX_TEXT_CHARACTERS, check_ids

DEFAULT_NEW_TOKENS = 128
MOST_STOPS, MOST_STOP_CHARACTERS, MOST_STOP_IDS = 16, 256, 64
MOST_LOGPROBS = 20  # of the likeliest in a token's place
MOST_TEMPERATURE = MOST_PENALTY = 100.0
MOST_SEED = 2**63 - 1
SEED_BITS = 53  # of one that the server draws: every language's numbers hold it


@dataclass(frozen=True, slots=True)
class Places:
    """Where a request's message has what is asked for; by default as in the native protocol."""

    max_new_tokens: str = "max_new_tokens"
    temperature: str = "sampling.temperature"
    top_k: str = "sampling.top_k"
    top_p: str = "sampling.top_p"
    repetition_penalty: str = "sampling.repetition_penalty"
    seed: str = "sampling.seed"
    stop_ids: str = "stop_token_ids"
    stop_strings: str = "stop_strings"
    best: str = "logprobs"
    max_energy_uj: str = "max_energy_uj"


@dataclass(frozen=True, slots=True)
class Given:
    """As a request says it: nothing of it is checked."""

    max_new_tokens: int = 0  # 0: DEFAULT_NEW_TOKENS, or what the context leaves where that is less
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: one is drawn
    ignores_end: bool = False
    stop_ids: Sequence[int] = ()
    stop_strings: Sequence[str] = ()
    best: int | None = None
    max_energy_uj: int | None = None


def check_prompt(text: str, place: str) -> str:
    """One of spaces alone is a prompt, too."""
    if not text:
        raise InvalidRequest("the prompt is empty", place)
    if "\0" in text:  # a tokenizer would drop it without a word
        raise InvalidRequest("the prompt holds a null character", place)
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidRequest(
            f"{len(text)} characters; at most {MAX_TEXT_CHARACTERS} of a request are tokenised", place
        )
    return text


def wish_of(given: Given, facts: InputFacts, has_tokenizer: bool, places: Places) -> Wish:
    """Raises InvalidRequest. Whether prompt and answer fit together is for `fitted` to say."""
    if given.max_new_tokens < 0:
        raise InvalidRequest(f"{given.max_new_tokens} tokens; at least 1", places.max_new_tokens)
    if given.best is not None and not 0 <= given.best <= MOST_LOGPROBS:
        raise InvalidRequest(
            f"{given.best} of the likeliest tokens; from 0 to {MOST_LOGPROBS} are told", places.best
        )
    if given.max_energy_uj is not None and given.max_energy_uj <= 0:
        raise InvalidRequest("no generation costs nothing; leave the limit out", places.max_energy_uj)
    _check_stops(given, facts, has_tokenizer, places)
    return Wish(
        given.max_new_tokens,
        _sampling_of(given, places),
        given.ignores_end,
        frozenset(given.stop_ids),
        tuple(given.stop_strings),
        given.best,
        given.max_energy_uj,
    )


def fitted(wish: Wish, prompt: TokenIds, facts: InputFacts, prompt_place: str, places: Places) -> Wish:
    """With the number of tokens that it gets. Raises InvalidRequest."""
    length, longest = len(prompt), facts.max_tokens
    if length == 0:
        raise InvalidRequest("the prompt is empty", prompt_place)
    if length >= longest:
        raise InvalidRequest(
            f"the prompt has {length} tokens; this model's context is {longest}, the answer included",
            prompt_place,
        )
    check_ids([prompt], facts, prompt_place, unit="prompt")
    if not wish.max_new_tokens:
        return replace(wish, max_new_tokens=min(DEFAULT_NEW_TOKENS, longest - length))
    if length + wish.max_new_tokens > longest:
        raise InvalidRequest(
            f"{wish.max_new_tokens} new tokens after a prompt of {length}; the model's context is {longest}: "
            f"it leaves {longest - length}",
            places.max_new_tokens,
        )
    return wish


def _sampling_of(given: Given, places: Places) -> Sampling:
    # What is no number is in no range.
    if not 0 <= given.temperature <= MOST_TEMPERATURE:
        raise InvalidRequest(
            f"temperature {given.temperature:.9g}; from 0, the likeliest token, to {MOST_TEMPERATURE:g}",
            places.temperature,
        )
    if given.top_k < 0:
        raise InvalidRequest(f"top_k {given.top_k}; at least 1, or 0 for all tokens", places.top_k)
    if not 0 < given.top_p <= 1:
        raise InvalidRequest(f"top_p {given.top_p:.9g}; above 0, and 1, for all, at the most", places.top_p)
    if not 0 < given.repetition_penalty <= MOST_PENALTY:
        raise InvalidRequest(
            f"repetition_penalty {given.repetition_penalty:.9g}; above 0, and {MOST_PENALTY:g} at the most; "
            "1 is none",
            places.repetition_penalty,
        )
    if given.seed is not None and not 0 <= given.seed <= MOST_SEED:
        raise InvalidRequest(f"seed {given.seed}; from 0 to {MOST_SEED}", places.seed)
    seed = 0
    if given.temperature > 0:
        seed = secrets.randbits(SEED_BITS) if given.seed is None else given.seed
    return Sampling(given.temperature, given.top_k, given.top_p, given.repetition_penalty, seed)


def _check_stops(given: Given, facts: InputFacts, has_tokenizer: bool, places: Places) -> None:
    if len(given.stop_ids) > MOST_STOP_IDS:
        raise InvalidRequest(
            f"{len(given.stop_ids)} stop tokens; at most {MOST_STOP_IDS} are looked for", places.stop_ids
        )
    for index, token in enumerate(given.stop_ids):
        if not 0 <= token < facts.vocabulary_size:
            raise InvalidRequest(
                f"token id {token} is outside the vocabulary, 0 to {facts.vocabulary_size - 1}",
                f"{places.stop_ids}[{index}]",
            )
    if len(given.stop_strings) > MOST_STOPS:
        raise InvalidRequest(
            f"{len(given.stop_strings)} stop strings; at most {MOST_STOPS} are looked for",
            places.stop_strings,
        )
    for index, text in enumerate(given.stop_strings):
        place = f"{places.stop_strings}[{index}]"
        if not text:
            raise InvalidRequest("the stop string is empty: it would end every answer", place)
        if len(text) > MOST_STOP_CHARACTERS:
            raise InvalidRequest(
                f"{len(text)} characters; at most {MOST_STOP_CHARACTERS} are looked for",
                place,
            )
    if given.stop_strings and not has_tokenizer:
        raise InvalidRequest(
            "this model has no tokenizer, so that its answer is no text: give stop token ids",
            places.stop_strings,
        )
