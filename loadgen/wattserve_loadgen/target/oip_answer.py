"""Reads a ModelInferResponse: the output's bytes, wherever the server put them, as a native answer.

Pure. Every error is a ValueError whose words say what is wrong with the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError

from wattserve_loadgen.target.oip_inputs import FLOATS
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb

_TYPED = {"FP32": "fp32_contents", "FP64": "fp64_contents"}


def read_answer(answer: bytes) -> pb.PredictResponse:
    """Its logits are the first float output: one was asked for. Raises ValueError."""
    try:
        response = oip.ModelInferResponse.FromString(answer)
    except DecodeError:
        raise ValueError("the answer is no ModelInferResponse") from None
    index = _find(response.outputs)
    found = response.outputs[index]
    shape = tuple(found.shape) if len(found.shape) != 1 else (1, *found.shape)  # a model without batches
    count = math.prod(shape)
    if len(shape) != 2 or count <= 0:
        raise ValueError(f"the output {found.name!r} has the shape {list(found.shape)}, not [rows, labels]")
    data = _data(response, index)
    size = np.dtype(FLOATS[found.datatype]).itemsize
    if len(data) != count * size:
        raise ValueError(
            f"the output {found.name!r} holds {len(data)} bytes, and {found.datatype} {list(found.shape)} has"
            f" {count * size}"
        )
    datatype = found.datatype
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
    for index, one in enumerate(outputs):
        if one.datatype in FLOATS:
            return index
    held = ", ".join(f"{one.name} {one.datatype}".rstrip() for one in outputs)
    raise ValueError(f"the answer holds no float output, only {held}")


def _data(response: oip.ModelInferResponse, index: int) -> bytes:
    raw = response.raw_output_contents
    if raw:
        if len(raw) != len(response.outputs):
            raise ValueError(f"the answer has {len(response.outputs)} outputs and raw contents of {len(raw)}")
        return raw[index]
    found = response.outputs[index]
    if found.datatype not in _TYPED:
        raise ValueError(f"the output {found.name!r} is {found.datatype} and has no raw contents")
    values = getattr(found.contents, _TYPED[found.datatype])
    return np.array(values, dtype=FLOATS[found.datatype]).tobytes()
