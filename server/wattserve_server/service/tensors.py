"""Named tensors of a request, whatever protocol it came by, read and checked: token ids with their mask, or
pixels.

Pure. Errors name the field in the request message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_server.engine.tasks import InputFacts
from wattserve_server.errors import InvalidRequest
from wattserve_server.service.checks import Ids, check_count, check_ids, shown

Pixels = NDArray[np.float32]
_Datatypes = Mapping[str, np.dtype[Any]]

_WHOLE: _Datatypes = {"INT64": np.dtype("<i8"), "INT32": np.dtype("<i4")}
_REAL: _Datatypes = {"FP32": np.dtype("<f4")}


_OF_TEXT = ("input_ids", "attention_mask", "token_type_ids")

MAX_IDS = 1 << 20
"""Of one tensor, padding included: more would keep the event loop from others for too long."""


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """As the caller sent it. data: bytes, row-major and little-endian, or the elements. field, data_field:
    where it is in the request, and where its data are."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | Sequence[int] | Sequence[bytes]
    field: str
    data_field: str


def describe_pixels(facts: InputFacts) -> str:
    """What a model that takes images takes, e.g. ``pixel_values (FP32, [images, 3, 224, 224])``."""
    return f"pixel_values (FP32, [images, {', '.join(map(str, facts.pixel_shape))}])"


def ids_of_tensors(
    tensors: Sequence[GivenTensor], place: str, facts: InputFacts, max_sequences: int, or_else: str = ""
) -> list[Ids]:
    """The token ids of each row, without what its attention mask covers. place: of the tensors in the
    request. or_else: what the protocol takes instead of them."""
    wanted = f"input_ids and attention_mask{or_else}"
    found = {tensor.name: tensor for tensor in _named(tensors, _OF_TEXT, wanted)}
    if "input_ids" not in found:
        raise InvalidRequest(f"tensor 'input_ids' is missing; this model takes {wanted}", place)
    ids = _rows(found["input_ids"], max_sequences)
    lengths = np.full(len(ids), ids.shape[1])
    if "attention_mask" in found:
        lengths = _lengths(found["attention_mask"], ids, max_sequences)
    if "token_type_ids" in found:
        _check_no_segments(found["token_type_ids"], max_sequences)
    rows = [ids[row, :length] for row, length in enumerate(lengths)]
    check_ids(rows, facts, found["input_ids"].data_field, "row")
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
        finite = np.isfinite(images).all(axis=(1, 2, 3))
        if not finite.all():
            raise InvalidRequest(
                f"image {int(finite.argmin())} holds values that are not finite", tensor.data_field
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
        raise InvalidRequest(
            f"datatype {shown(tensor.datatype)} of {tensor.name}; known here: {', '.join(datatypes)}",
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
