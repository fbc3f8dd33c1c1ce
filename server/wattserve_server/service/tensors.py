"""Named tensors in a request, read and checked: token ids with their mask, or pixels.

Pure. Errors name the field in the request message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.errors import InvalidRequest

Ids = NDArray[np.int64]
Pixels = NDArray[np.float32]
_Datatypes = Mapping[str, np.dtype[Any]]

_PLACE = "tensors.tensors"
_WHOLE: _Datatypes = {"INT64": np.dtype("<i8"), "INT32": np.dtype("<i4")}
_REAL: _Datatypes = {"FP32": np.dtype("<f4")}


def check_count(count: int, max_sequences: int, field: str) -> None:
    """Before anything is done for each sequence: a message may hold millions."""
    if count > max_sequences:
        raise InvalidRequest(
            f"a request may hold at most {max_sequences} sequences, this one has {count}", field
        )


def describe_pixels(facts: InputFacts) -> str:
    """What a model that takes images takes, e.g. ``pixel_values (FP32, [images, 3, 224, 224])``."""
    return f"pixel_values (FP32, [images, {', '.join(map(str, facts.pixel_shape))}])"


def ids_of_tensors(tensors: Sequence[pb.Tensor], max_sequences: int) -> list[Ids]:
    """The token ids of each row, without what its attention mask covers; not yet held against a model."""
    arrays: dict[str, Ids] = {}
    for tensor, field in _named(tensors, ("input_ids", "attention_mask"), "input_ids and attention_mask"):
        shape = list(tensor.shape)
        if len(shape) != 2 or any(size < 1 for size in shape):
            raise InvalidRequest(
                f"shape {shape} is not [sequences, length] with both at least 1", f"{field}.shape"
            )
        check_count(shape[0], max_sequences, f"{field}.shape")
        arrays[tensor.name] = _array(tensor, _WHOLE, field).astype(np.int64)
    if "input_ids" not in arrays:
        raise InvalidRequest("tensor 'input_ids' is missing", _PLACE)
    ids = arrays["input_ids"]
    mask = arrays.get("attention_mask")
    if mask is None:
        return list(ids)
    if mask.shape != ids.shape:
        raise InvalidRequest(
            f"attention_mask has shape {list(mask.shape)}, input_ids {list(ids.shape)}", _PLACE
        )
    lengths = mask.sum(axis=1)
    prefix = np.arange(ids.shape[1]) < lengths[:, None]
    for row in range(len(ids)):
        if not np.array_equal(mask[row], prefix[row]):
            raise InvalidRequest(
                f"row {row} of attention_mask is not a prefix mask (ones, then zeros)", _PLACE
            )
    return [ids[row, : lengths[row]] for row in range(len(ids))]


def images_of_tensors(tensors: Sequence[pb.Tensor], facts: InputFacts, max_images: int) -> list[Pixels]:
    """The images, [channels, height, width] each, of the size that the model takes, and finite."""
    wanted = describe_pixels(facts)
    images: Pixels | None = None
    for tensor, field in _named(tensors, ("pixel_values",), wanted):
        shape = list(tensor.shape)
        if len(shape) != 4 or tuple(shape[1:]) != facts.pixel_shape or shape[0] < 1:
            raise InvalidRequest(
                f"shape {shape}; this model takes {wanted}, with at least one image", f"{field}.shape"
            )
        check_count(shape[0], max_images, f"{field}.shape")
        images = _array(tensor, _REAL, field).astype(np.float32, copy=False)
        finite = np.isfinite(images).all(axis=(1, 2, 3))
        if not finite.all():
            raise InvalidRequest(
                f"image {int(finite.argmin())} holds values that are not finite", f"{field}.data"
            )
    if images is None:
        raise InvalidRequest(f"tensor 'pixel_values' is missing; this model takes {wanted}", _PLACE)
    return list(images)


def _named(tensors: Sequence[pb.Tensor], names: Sequence[str], wanted: str) -> list[tuple[pb.Tensor, str]]:
    """Tensors with their places in the request, which have these names, each once at most."""
    seen: set[str] = set()
    found = []
    for index, tensor in enumerate(tensors):
        field = f"{_PLACE}[{index}]"
        if tensor.name not in names:
            raise InvalidRequest(
                f"unknown tensor {tensor.name!r}; this model takes {wanted}", f"{field}.name"
            )
        if tensor.name in seen:
            raise InvalidRequest(f"tensor {tensor.name!r} is given twice", f"{field}.name")
        seen.add(tensor.name)
        found.append((tensor, field))
    return found


def _array(tensor: pb.Tensor, datatypes: _Datatypes, field: str) -> NDArray[Any]:
    """A read-only array of a tensor whose shape is known to be sound."""
    dtype = datatypes.get(tensor.datatype)
    if dtype is None:
        raise InvalidRequest(
            f"datatype {tensor.datatype!r} of {tensor.name}; known here: {', '.join(datatypes)}",
            f"{field}.datatype",
        )
    shape = list(tensor.shape)
    data = tensor.data  # once: every access copies it
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise InvalidRequest(
            f"{len(data)} bytes of data; shape {shape} of {tensor.datatype} needs {expected}", f"{field}.data"
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape)
