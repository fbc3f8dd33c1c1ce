"""What every protocol's input is held against before the engine sees it, and the tensors in it: token ids
with their mask, or pixels. Pure; errors name the field in the request message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_server.engine.policy import FIRST_PRIORITY, LAST_PRIORITY, NORMAL_PRIORITY
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.errors import InvalidRequest, NotPossibleHere

Ids = NDArray[np.int64]

# Of all texts of a request; more would keep the tokenizer from others for too long.
MAX_TEXT_CHARACTERS = 200_000

MAX_SHOWN = 80  # characters of a caller's value in a message

MAX_RANK = 8  # dimensions of a tensor, before they are copied: a message may hold millions

MAX_TENSORS = 16  # of one request, before each is looked at: a message may hold millions

# Characters. Ids are kept with the receipts.
MAX_REQUEST_ID = 256


def check_generates(model: Any) -> None:
    """Raises NotPossibleHere."""
    if not model.task.generates:
        raise NotPossibleHere(
            f"{model.name} does the task {model.task.name} and generates nothing: call Predict"
        )


def check_predicts(model: Any) -> None:
    """Raises NotPossibleHere."""
    if model.task.generates:
        raise NotPossibleHere(
            f"{model.name} is a language model and predicts nothing: call Generate, or Score"
        )


def check_tokenizer(model: Any, has_tokenizer: bool, place: str) -> None:
    """For a request that holds a text. Raises NotPossibleHere."""
    if not has_tokenizer:
        raise NotPossibleHere(f"{model.name} has no tokenizer: send token ids", place)


def shown(value: str) -> str:
    """A caller's value as it stands in a message: cut, because it may be enormous."""
    return repr(value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}...")


def check_request_id(request_id: str, field: str) -> str:
    if len(request_id) > MAX_REQUEST_ID:
        raise InvalidRequest(
            f"{len(request_id)} characters; at most {MAX_REQUEST_ID} are kept and echoed", field
        )
    if "\0" in request_id:
        raise InvalidRequest(
            "holds the character NUL: leave it out, not every account book can keep it", field
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


def check_energy_limit(most_uj: int, field: str) -> int:
    if not most_uj:
        raise InvalidRequest("no request costs nothing; leave the limit out", field)
    return most_uj


def check_truncates(truncates: bool, are_texts: bool, field: str) -> bool:
    if truncates and not are_texts:
        raise InvalidRequest(
            "only texts are cut, by the model's tokenizer; leave truncate out, and send what the model takes",
            field,
        )
    return truncates


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


def check_length(length: int, facts: InputFacts, field: str, where: str = "", remedy: str = "") -> None:
    """where: within the field, e.g. "row 3: "."""
    if length == 0:
        raise InvalidRequest(f"{where}the sequence is empty", field)
    if length > facts.max_tokens:
        raise InvalidRequest(
            f"{where}the sequence has {length} tokens; this model takes at most {facts.max_tokens}{remedy}",
            field,
        )


def check_ids(
    sequences: Sequence[Ids], facts: InputFacts, field: str, unit: str = "", remedy: str = ""
) -> None:
    """Everything that could make a model fail or answer nonsense. unit: what the sequences are within the
    field, e.g. "row", if not its elements. remedy: what to do about one that is too long."""
    for index, ids in enumerate(sequences):
        if 0 < len(ids) <= facts.max_tokens:
            # As unsigned numbers the negative ones are the largest: one look at each id is enough.
            highest = np.maximum.reduce(ids.view(np.uint64))
            if highest < facts.vocabulary_size:
                continue
        where, place = (f"{unit} {index}: ", field) if unit else ("", f"{field}[{index}]")
        check_length(len(ids), facts, place, where, remedy)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= facts.vocabulary_size:
            raise InvalidRequest(
                f"{where}token id {low if low < 0 else high} is outside the vocabulary, 0 to "
                f"{facts.vocabulary_size - 1}",
                place,
            )


def check_scored(sequences: Sequence[Ids], field: str) -> None:
    """Of sequences that are known to be sound."""
    for index, ids in enumerate(sequences):
        if len(ids) < 2:
            raise InvalidRequest(
                "the sequence has one token: it takes two, as the first has nothing before it",
                f"{field}[{index}]",
            )


Pixels = NDArray[np.float32]
_Datatypes = Mapping[str, np.dtype[Any]]

_WHOLE: _Datatypes = {"INT64": np.dtype("<i8"), "INT32": np.dtype("<i4")}
_REAL: _Datatypes = {"FP32": np.dtype("<f4")}


_OF_TEXT = ("input_ids", "attention_mask", "token_type_ids")

MAX_PIXEL = 65504.0  # the largest number of fp16: a larger one overflows before anything is computed

MAX_IDS = 1 << 20  # of one tensor, padding included: more would keep the event loop from others for too long


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """As the caller sent it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | Sequence[int] | Sequence[bytes]  # bytes: row-major and little-endian; or the elements
    field: str  # where it is in the request
    data_field: str  # where its data are


def describe_pixels(facts: InputFacts) -> str:
    """What a model that takes images takes, e.g. ``pixel_values (FP32, [images, 3, 224, 224])``."""
    return f"pixel_values (FP32, [images, {', '.join(map(str, facts.pixel_shape))}])"


def ids_of_tensors(
    tensors: Sequence[GivenTensor], place: str, facts: InputFacts, max_sequences: int, or_else: str = ""
) -> list[Ids]:
    """The token ids of each row, without what its attention mask covers. place: of the tensors in the
    request. or_else: what the protocol takes instead of them."""
    wanted = f"input_ids and attention_mask{or_else}"
    given = {tensor.name: tensor for tensor in _named(tensors, _OF_TEXT, wanted)}
    if "input_ids" not in given:
        raise InvalidRequest(f"tensor 'input_ids' is missing; this model takes {wanted}", place)
    ids = _rows(given["input_ids"], max_sequences)
    lengths = np.full(len(ids), ids.shape[1])
    if "attention_mask" in given:
        lengths = _lengths(given["attention_mask"], ids, max_sequences)
    if "token_type_ids" in given:
        _check_no_segments(given["token_type_ids"], max_sequences)
    rows = [ids[row, :length] for row, length in enumerate(lengths)]
    check_ids(rows, facts, given["input_ids"].data_field, "row")
    return rows


def _rows(tensor: GivenTensor, max_sequences: int) -> Ids:
    shape = list(tensor.shape)
    if len(shape) != 2 or any(size < 1 for size in shape):
        raise InvalidRequest(
            f"shape {shape} is not [sequences, length] with both at least 1",
            f"{tensor.field}.shape",
        )
    check_count(shape[0], max_sequences, f"{tensor.field}.shape")
    if math.prod(shape) > MAX_IDS:
        raise InvalidRequest(
            f"shape {shape} holds more than {MAX_IDS} token ids, padding included",
            f"{tensor.field}.shape",
        )
    return _array(tensor, _WHOLE).astype(np.int64)


def _check_no_segments(tensor: GivenTensor, max_sequences: int) -> None:
    """Tokenizers give them beside the ids, all 0 for one text."""
    if _rows(tensor, max_sequences).any():
        raise InvalidRequest(
            "segments other than 0 are not taken: leave token_type_ids out", tensor.data_field
        )


def _lengths(tensor: GivenTensor, ids: Ids, max_sequences: int) -> NDArray[np.int64]:
    """How many tokens of each row the mask leaves."""
    mask = _rows(tensor, max_sequences)
    if mask.shape != ids.shape:
        raise InvalidRequest(
            f"attention_mask has shape {list(mask.shape)}, input_ids {list(ids.shape)}",
            f"{tensor.field}.shape",
        )
    lengths: NDArray[np.int64] = mask.sum(axis=1)
    prefix = np.arange(ids.shape[1]) < lengths[:, None]
    for row in range(len(ids)):
        if not np.array_equal(mask[row], prefix[row]):
            raise InvalidRequest(
                f"row {row} of attention_mask is not a prefix mask (ones, then zeros)", tensor.data_field
            )
    return lengths


def images_of_tensors(
    tensors: Sequence[GivenTensor], place: str, facts: InputFacts, max_images: int
) -> list[Pixels]:
    """The images, [channels, height, width] each, of the size that the model takes, and finite."""
    wanted = describe_pixels(facts)
    images: Pixels | None = None
    for tensor in _named(tensors, ("pixel_values",), wanted):
        shape = list(tensor.shape)
        if len(shape) != 4 or tuple(shape[1:]) != facts.pixel_shape or shape[0] < 1:
            raise InvalidRequest(
                f"shape {shape}; this model takes {wanted}, with at least one image",
                f"{tensor.field}.shape",
            )
        check_count(shape[0], max_images, f"{tensor.field}.shape")
        images = _array(tensor, _REAL).astype(np.float32, copy=False)
        lowest, highest = images.min(axis=(1, 2, 3)), images.max(axis=(1, 2, 3))
        sound = (lowest >= -MAX_PIXEL) & (highest <= MAX_PIXEL)  # nor is NaN
        if not sound.all():
            image = int(sound.argmin())
            raise InvalidRequest(
                f"image {image} holds values that are not finite, or beyond {MAX_PIXEL:g}: from "
                f"{lowest[image]:g} to {highest[image]:g}; pixels are scaled and normalised",
                tensor.data_field,
            )
    if images is None:
        raise InvalidRequest(f"tensor 'pixel_values' is missing; this model takes {wanted}", place)
    return list(images)


def _named(tensors: Sequence[GivenTensor], names: Sequence[str], wanted: str) -> Sequence[GivenTensor]:
    """The tensors, which have these names, each once at most."""
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name not in names:
            raise InvalidRequest(
                f"unknown tensor {shown(tensor.name)}; this model takes {wanted}", f"{tensor.field}.name"
            )
        if tensor.name in seen:
            raise InvalidRequest(f"tensor {tensor.name!r} is given twice", f"{tensor.field}.name")
        seen.add(tensor.name)
    return tensors


def _array(tensor: GivenTensor, datatypes: _Datatypes) -> NDArray[Any]:
    """A read-only array of a tensor whose shape is known to be sound."""
    dtype = datatypes.get(tensor.datatype)
    if dtype is None:
        how = ": pixels are floats, resized, scaled and normalised" if datatypes is _REAL else ""
        raise InvalidRequest(
            f"datatype {shown(tensor.datatype)} of {tensor.name}; known here: {', '.join(datatypes)}{how}",
            f"{tensor.field}.datatype",
        )
    elements = math.prod(tensor.shape)
    if isinstance(tensor.data, bytes):
        expected = elements * dtype.itemsize
        if len(tensor.data) != expected:
            raise InvalidRequest(
                f"{len(tensor.data)} bytes of data; shape {list(tensor.shape)} of {tensor.datatype} needs "
                f"{expected}",
                tensor.data_field,
            )
        return np.frombuffer(tensor.data, dtype=dtype).reshape(tensor.shape)
    if len(tensor.data) != elements:
        raise InvalidRequest(
            f"{len(tensor.data)} elements; shape {list(tensor.shape)} needs {elements}", tensor.data_field
        )
    return np.fromiter(tensor.data, dtype, elements).reshape(tensor.shape)
