"""What every protocol's input is held against before the engine sees it. Pure; errors name the field."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattserve_server.engine.policy import FIRST_PRIORITY, LAST_PRIORITY, NORMAL_PRIORITY
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.errors import InvalidRequest

Ids = NDArray[np.int64]

MAX_TEXT_CHARACTERS = 200_000
"""Of all texts of a request; more would keep the tokenizer from others for too long."""

MAX_SHOWN = 80
"""Characters of a caller's value in a message."""

MAX_RANK = 8
"""Dimensions of a tensor, before they are copied: a message may hold millions."""

MAX_TENSORS = 16
"""Of one request, before each is looked at: a message may hold millions."""

MAX_REQUEST_ID = 256
"""Characters. Ids are kept with the receipts."""


def shown(value: str) -> str:
    """A caller's value as it stands in a message: cut, because it may be enormous."""
    return repr(value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}...")


def check_request_id(request_id: str, field: str) -> str:
    if len(request_id) > MAX_REQUEST_ID:
        raise InvalidRequest(
            f"{len(request_id)} characters; at most {MAX_REQUEST_ID} are kept and echoed", field
        )
    return request_id


def check_priority(priority: int, field: str) -> int:
    """The level; the usual one for 0."""
    if priority == 0:
        return NORMAL_PRIORITY
    if not FIRST_PRIORITY <= priority <= LAST_PRIORITY:
        raise InvalidRequest(
            f"priority {priority}; {FIRST_PRIORITY} goes first, {NORMAL_PRIORITY} is the default, "
            f"{LAST_PRIORITY} goes last",
            field,
        )
    return priority


def check_count(count: int, max_sequences: int, field: str) -> None:
    """Before anything is done for each sequence: a message may hold millions."""
    if count > max_sequences:
        raise InvalidRequest(
            f"a request may hold at most {max_sequences} sequences, this one has {count}", field
        )


def check_tensors(count: int, field: str) -> None:
    if count > MAX_TENSORS:
        raise InvalidRequest(f"{count} tensors; no model takes more than {MAX_TENSORS}", field)


def check_rank(shape: Sequence[int], field: str) -> tuple[int, ...]:
    if len(shape) > MAX_RANK:
        raise InvalidRequest(f"{len(shape)} dimensions; no tensor has more than {MAX_RANK}", field)
    return tuple(shape)


def check_texts(texts: Sequence[str], max_sequences: int, field: str) -> list[str]:
    if not texts:
        raise InvalidRequest("a request needs at least one text", field)
    check_count(len(texts), max_sequences, field)
    for index, text in enumerate(texts):
        if not text.strip():
            raise InvalidRequest("the text is empty", f"{field}[{index}]")
        if "\0" in text:  # a tokenizer would drop it without a word
            raise InvalidRequest("the text holds a null character", f"{field}[{index}]")
    characters = sum(len(text) for text in texts)
    if characters > MAX_TEXT_CHARACTERS:
        raise InvalidRequest(
            f"{characters} characters; at most {MAX_TEXT_CHARACTERS} of a request are tokenised", field
        )
    return list(texts)


def check_length(length: int, facts: InputFacts, field: str, where: str = "") -> None:
    """where: within the field, e.g. "row 3: "."""
    if length == 0:
        raise InvalidRequest(f"{where}the sequence is empty", field)
    if length > facts.max_tokens:
        raise InvalidRequest(
            f"{where}the sequence has {length} tokens; this model takes at most {facts.max_tokens}", field
        )


def check_ids(sequences: Sequence[Ids], facts: InputFacts, field: str, unit: str = "") -> None:
    """Everything that could make a model fail or answer nonsense. unit: what the sequences are within the
    field, e.g. "row", if not its elements."""
    for index, ids in enumerate(sequences):
        # As unsigned numbers the negative ones are the largest: one look at each id is enough.
        if 0 < len(ids) <= facts.max_tokens and ids.view(np.uint64).max() < facts.vocabulary_size:
            continue
        where, place = (f"{unit} {index}: ", field) if unit else ("", f"{field}[{index}]")
        check_length(len(ids), facts, place, where)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= facts.vocabulary_size:
            raise InvalidRequest(
                f"{where}token id {low if low < 0 else high} is outside the vocabulary, 0 to "
                f"{facts.vocabulary_size - 1}",
                place,
            )
