"""What the fake server of `testing` refuses, as the real one does, by the limits that it announces. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wattserve_client._fake.errors import Refusal, refusal
from wattserve_client._fake.script import Given
from wattserve_proto.v1 import inference_pb2 as pb

MAX_TOKENS = 512
MAX_SEQUENCES = 256
VOCABULARY_SIZE = 2**31 - 1

_MAX_REQUEST_ID = 256
_MAX_TEXT_CHARACTERS = 200_000
_LAST_PRIORITY = 3


def check(message: pb.PredictRequest, inputs: Sequence[Given]) -> None:
    """`Refusal` that names the field in the message. inputs: what it holds."""
    for problem in _problems(message, inputs):
        raise problem


def _problems(message: pb.PredictRequest, inputs: Sequence[Given]) -> Iterator[Refusal]:
    if len(message.request_id) > _MAX_REQUEST_ID:
        characters = len(message.request_id)
        yield _wrong("request_id", f"{characters} characters; at most {_MAX_REQUEST_ID} are kept and echoed")
    if message.priority > _LAST_PRIORITY:
        yield _wrong("priority", f"priority {message.priority}; 1 goes first, 2 is the default, 3 goes last")
    kind = message.WhichOneof("input")
    if kind is None:
        yield _wrong("input", "a request needs one of text, tokens or tensors")
    whole, each = _fields(message)
    if not inputs:
        yield _wrong(whole, f"a request needs at least one {'text' if kind == 'text' else 'sequence'}")
    if len(inputs) > MAX_SEQUENCES:
        yield _wrong(
            whole, f"a request may hold at most {MAX_SEQUENCES} sequences, this one has {len(inputs)}"
        )
    for index, given in enumerate(inputs):
        field, where = each.format(index), f"row {index}: " if kind == "tensors" else ""
        for what in _faults(given):
            yield _wrong(field, where + what)
    characters = sum(len(given) for given in inputs if isinstance(given, str))
    if characters > _MAX_TEXT_CHARACTERS:
        yield _wrong(
            whole, f"{characters} characters; at most {_MAX_TEXT_CHARACTERS} of a request are tokenised"
        )


def _faults(given: Given) -> Iterator[str]:
    if isinstance(given, np.ndarray):
        return
    if isinstance(given, str):
        if not given.strip():
            yield "the text is empty"
        if "\0" in given:
            yield "the text holds a null character"
    elif not given:
        yield "the sequence is empty"
    length = len(given.split()) if isinstance(given, str) else len(given)  # a word is one token at least
    if length > MAX_TOKENS:
        yield f"the sequence has {length} tokens; this model takes at most {MAX_TOKENS}"
    if isinstance(given, tuple) and given:
        for token in (min(given), max(given)):
            if not 0 <= token < VOCABULARY_SIZE:
                yield f"token id {token} is outside the vocabulary, 0 to {VOCABULARY_SIZE - 1}"


def _fields(message: pb.PredictRequest) -> tuple[str, str]:
    """Where all sequences are in the message, and where each is, to be formatted with its index."""
    match message.WhichOneof("input"):
        case "text":
            return "text.texts", "text.texts[{}]"
        case "tokens":
            return "tokens.sequences", "tokens.sequences[{}]"
        case _:
            names = [tensor.name for tensor in message.tensors.tensors]
            place = next((names.index(name) for name in ("pixel_values", "input_ids") if name in names), 0)
            return f"tensors.tensors[{place}].shape", f"tensors.tensors[{place}].data"


def _wrong(field: str, message: str) -> Refusal:
    return refusal("INVALID_ARGUMENT", message, field=field)
