"""The tensors of the Open Inference Protocol: what a peer's model takes and gives, from its metadata; how
rows become its inputs; how its outputs become a native answer. Pure: knows nothing of channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from wattserve_loadgen.errors import PlanError, TargetError
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb

INTEGERS = {"INT64": "<i8", "INT32": "<i4"}
FLOATS = {"FP32": "<f4", "FP16": "<f2", "BF16": "<u2", "FP64": "<f8"}
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
_LOGITS = ("logits", "output")
_CHANNELS = (1, 3, 4)
_TYPED = {"FP32": "fp32_contents", "FP64": "fp64_contents"}

Tensor = oip.ModelMetadataResponse.TensorMetadata
Rows = Sequence[npt.NDArray[Any]]


@dataclass(frozen=True)
class Feed:
    """How one model is fed: with `ids` (and `mask` and `types`, where it has them), or with `pixels`."""

    model: str
    ids: Tensor | None = None
    mask: Tensor | None = None
    types: Tensor | None = None
    pixels: Tensor | None = None
    is_batched: bool = True  # shapes have a batch dimension
    batch: int | None = None  # sequences in a request, where the model fixes their number
    max_batch: int | None = None
    length: int | None = None  # tokens that each sequence is padded to; None: to the longest of its request
    pixel_shape: tuple[int, ...] = ()  # channels, height, width; 0 for a free one
    output: str = ""  # empty where the model declares none
    width: int | None = None  # of an output row, where it is declared

    @property
    def detail(self) -> str:
        """What a reader must know about its inputs."""
        if self.ids is not None and self.mask is None:
            return "takes no attention_mask: padding is token 0"
        return ""


def choose_feed(model: str, metadata: oip.ModelMetadataResponse, config: oip.ModelConfig | None) -> Feed:
    """config: None where the server has none. Its output is the one that looks like logits.

    Raises TargetError, naming the inputs or outputs, for a model that cannot be fed.
    """
    optional = {tensor.name for tensor in config.input if tensor.optional} if config else set()
    fed = _tokens(model, metadata.inputs, optional) or _images(model, metadata.inputs, optional)
    if fed is None:
        raise TargetError(
            f"model {model!r} cannot be fed from a dataset of tokens or images; it takes"
            f" {_listed(metadata.inputs) or 'inputs that its metadata does not declare'}; loadgen can send"
            f" {_IDS} (with {_MASK} and {_TYPES}) as INT64 or INT32, [batch, length], or one FP32 input"
            " [batch, channels, height, width]"
        )
    chosen, width = _choose_output(model, metadata.outputs, rank=2 if fed["is_batched"] else 1)
    largest = config.max_batch_size if config else 0
    return Feed(**fed, model=model, max_batch=largest or None, output=chosen, width=width)


def _tokens(model: str, inputs: Sequence[Tensor], optional: set[str]) -> dict[str, Any] | None:
    named = {tensor.name.lower(): tensor for tensor in inputs}
    ids = named.get(_IDS)
    if ids is None or len(named) < len(inputs):
        return None
    others = [tensor for name, tensor in named.items() if name not in (_IDS, _MASK, _TYPES)]
    if any(tensor.name not in optional for tensor in others):
        return None
    used = [named[name] for name in (_IDS, _MASK, _TYPES) if name in named]
    if any(tensor.datatype not in INTEGERS or len(tensor.shape) != len(ids.shape) for tensor in used):
        return None
    if len(ids.shape) not in (1, 2):
        return None
    is_batched = len(ids.shape) == 2
    lengths = {tensor.shape[-1] for tensor in used if tensor.shape[-1] > 0}
    batches = {tensor.shape[0] for tensor in used if is_batched and tensor.shape[0] > 0}
    if len(lengths) > 1 or len(batches) > 1:
        raise TargetError(f"model {model!r}: its inputs disagree about their shape: {_listed(used)}")
    return {
        "ids": ids,
        "mask": named.get(_MASK),
        "types": named.get(_TYPES),
        "is_batched": is_batched,
        "batch": min(batches, default=None) if is_batched else 1,
        "length": min(lengths, default=None),
    }


def _images(model: str, inputs: Sequence[Tensor], optional: set[str]) -> dict[str, Any] | None:
    needed = [tensor for tensor in inputs if tensor.name not in optional]
    if len(needed) != 1 or needed[0].datatype != "FP32" or len(needed[0].shape) not in (3, 4):
        return None
    (pixels,) = needed
    shape = tuple(max(0, size) for size in pixels.shape[-3:])
    if shape[2] in _CHANNELS and shape[0] not in (*_CHANNELS, 0):
        raise TargetError(
            f"model {model!r}: {_listed([pixels])} has its channels last; a dataset's images are"
            " [channels, height, width]"
        )
    is_batched = len(pixels.shape) == 4
    fixed = pixels.shape[0] if is_batched and pixels.shape[0] > 0 else None
    return {
        "pixels": pixels,
        "is_batched": is_batched,
        "batch": fixed if is_batched else 1,
        "pixel_shape": shape,
    }


def _choose_output(model: str, outputs: Sequence[Tensor], rank: int) -> tuple[str, int | None]:
    """Its name and the width of its rows. rank: dimensions of logits."""
    floats = [output for output in outputs if output.datatype in FLOATS]
    if not outputs:
        return "", None
    named = [output for name in _LOGITS for output in floats if output.name.lower() == name]
    of_rank = [output for output in floats if len(output.shape) == rank]
    for output in [*named, *of_rank, *(floats if len(floats) == 1 else [])]:
        return output.name, output.shape[-1] if output.shape and output.shape[-1] > 0 else None
    raise TargetError(f"model {model!r}: none of its outputs looks like logits: {_listed(outputs)}")


def _listed(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in tensors)


def fill_inputs(feed: Feed, rows: Rows, request: oip.ModelInferRequest) -> None:
    """Add the tensors of `rows` to a request, as raw bytes; PlanError where the shapes do not allow it."""
    if feed.batch is not None and len(rows) != feed.batch:
        raise PlanError(
            f"model {feed.model!r} takes exactly {feed.batch} rows in a request, not {len(rows)}; choose"
            " another group size"
        )
    if feed.max_batch is not None and feed.is_batched and len(rows) > feed.max_batch:
        raise PlanError(
            f"model {feed.model!r} takes at most {feed.max_batch} rows in a request, not {len(rows)}"
        )
    if feed.pixels is not None:
        _add(request, feed, feed.pixels, np.stack(rows).astype("<f4", copy=False))
        return
    assert feed.ids is not None
    longest = max(len(row) for row in rows)
    width = feed.length or longest
    if longest > width:
        raise PlanError(
            f"model {feed.model!r} takes {width} tokens, and a row has {longest}; prepare the dataset with"
            f" --max-length {width}"
        )
    ids = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    for tensor, values in ((feed.ids, ids), (feed.mask, mask), (feed.types, np.zeros_like(ids))):
        if tensor is not None:
            _add(request, feed, tensor, values.astype(INTEGERS[tensor.datatype], copy=False))


def _add(request: oip.ModelInferRequest, feed: Feed, tensor: Tensor, values: npt.NDArray[Any]) -> None:
    shape = values.shape if feed.is_batched else values.shape[1:]
    request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
    request.raw_input_contents.append(values.tobytes())


def read_answer(answer: bytes) -> pb.PredictResponse:
    """Its logits are the first float output: one was asked for. Raises ValueError."""
    try:
        response = oip.ModelInferResponse.FromString(answer)
    except DecodeError:
        raise ValueError("the answer is no ModelInferResponse") from None
    index = _find(response.outputs)
    output = response.outputs[index]
    shape = tuple(output.shape) if len(output.shape) != 1 else (1, *output.shape)  # a model without batches
    count = math.prod(shape)
    if len(shape) != 2 or count <= 0:
        raise ValueError(f"the output {output.name!r} has the shape {list(output.shape)}, not [rows, labels]")
    data = _data(response, index)
    size = np.dtype(FLOATS[output.datatype]).itemsize
    if len(data) != count * size:
        raise ValueError(
            f"the output {output.name!r} holds {len(data)} bytes, and {output.datatype} {list(output.shape)}"
            f" has {count * size}"
        )
    datatype = output.datatype
    if datatype == "FP64":
        datatype, data = "FP32", np.frombuffer(data, "<f8").astype("<f4").tobytes()
    return pb.PredictResponse(
        request_id=response.id,
        variant=response.model_name,
        output=pb.Tensor(name="logits", datatype=datatype, shape=shape, data=data),
    )


def _find(outputs: Sequence[oip.ModelInferResponse.InferOutputTensor]) -> int:
    if not outputs:
        raise ValueError("the answer holds no output")
    for index, output in enumerate(outputs):
        if output.datatype in FLOATS:
            return index
    held = ", ".join(f"{output.name} {output.datatype}".rstrip() for output in outputs)
    raise ValueError(f"the answer holds no float output, only {held}")


def _data(response: oip.ModelInferResponse, index: int) -> bytes:
    raw = response.raw_output_contents
    if raw:
        if len(raw) != len(response.outputs):
            raise ValueError(f"the answer has {len(response.outputs)} outputs and raw contents of {len(raw)}")
        return raw[index]
    output = response.outputs[index]
    if output.datatype not in _TYPED:
        raise ValueError(f"the output {output.name!r} is {output.datatype} and has no raw contents")
    values = getattr(output.contents, _TYPED[output.datatype])
    return np.array(values, dtype=FLOATS[output.datatype]).tobytes()
