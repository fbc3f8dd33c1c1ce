"""ModelInferRequests that would be answered, but for a mutation or two; some are left whole."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.fixtures.models import IMAGE_SHAPE
from tests.fuzz.messages import floats, integers, texts
from tests.fuzz.nearly_predict import DATA, DATATYPES, IMAGE, SHAPES, sentences
from wattserve_proto.oip import open_inference_pb2 as oip

Template = Callable[[], oip.ModelInferRequest]
Mutation = Callable[[st.DrawFn, oip.ModelInferRequest], None]

_NAMES = (
    "tiny",
    "tiny@fp32",
    "tiny@bf16",
    "tiny@int3",
    "tiny@",
    "tiny@@",
    "Tiny",
    "",
    "tiny@fp32\0",
    "\0tiny",
    "tin",
)
_VERSIONS = ("1", "2", "01", "-1", "1.0", "\u0661", "\xb2", "", "1" * 5000, "\0", "latest", "9" * 20)
_PARAMETERS = (
    "priority", "timeout", "energy", "variant", "sequence_id", "sequence_start", "sequence_end", "triton_x",
    "triton_enable_empty_final_response", "triton_" + "\U0001f600" * 5000, "binary_data_output", "", "\0",
    "shared_memory_region", "classification", "headers",
)  # fmt: skip
_VALUES = ("fp32", "bf16", "int3", "settled", "provisional", "SETTLED", "", "0", "-1", "1e3", "nan", "\0")
_BYTES = (
    b"\x04\0\0\0good", b"\x00\0\0\0", b"\xff\xff\xff\xff", b"\x04\0\0\0go", b"\x02\0\0",
    b"\x02\0\0\0\xc3\x28", b"\x03\0\0\0\xed\xa0\x80", b"\x04\0\0\0good\x03\0\0\0bad", b"\x01\0\0\0\0",
    b"\x00\0\0\0" * 5000, b"\xff\xff\xff\x7fabc",
)  # fmt: skip
"""BYTES tensors as they stand among the raw contents; most are broken."""


BROKEN_TEXTS = (b"\xc3\x28", b"\xed\xa0\x80", b"\xff", b"good\xe2\x82", b"\xf0\x9f", b"a\0b", b" ", b"")


def _input(
    name: str, datatype: str, shape: list[int], **contents: Any
) -> oip.ModelInferRequest.InferInputTensor:
    made = oip.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents:
        made.contents.CopyFrom(oip.InferTensorContents(**contents))
    return made


def typed() -> oip.ModelInferRequest:
    given = (("input_ids", [2, 4, 3]), ("attention_mask", [1, 1, 0]))
    inputs = [_input(name, "INT64", [1, 3], int64_contents=row) for name, row in given]
    return oip.ModelInferRequest(model_name="tiny", inputs=inputs)


def raw() -> oip.ModelInferRequest:
    inputs = [_input(name, "INT64", [1, 3]) for name in ("input_ids", "attention_mask")]
    contents = [struct.pack("<3q", 2, 4, 3), struct.pack("<3q", 1, 1, 0)]
    return oip.ModelInferRequest(model_name="tiny", inputs=inputs, raw_input_contents=contents)


def text() -> oip.ModelInferRequest:
    return text_of(b"good film")


def text_of(data: bytes) -> oip.ModelInferRequest:
    inputs = [_input("text", "BYTES", [1], bytes_contents=[data])]
    return oip.ModelInferRequest(model_name="tiny", inputs=inputs)


def raw_text() -> oip.ModelInferRequest:
    contents = [b"\x09\0\0\0good film\x03\0\0\0bad"]
    inputs = [_input("text", "BYTES", [2, 1])]
    return oip.ModelInferRequest(model_name="tiny", inputs=inputs, raw_input_contents=contents)


def pixels() -> oip.ModelInferRequest:
    inputs = [_input("pixel_values", "FP32", [1, *IMAGE_SHAPE])]
    return oip.ModelInferRequest(model_name="tiny", inputs=inputs, raw_input_contents=[IMAGE])


def typed_pixels() -> oip.ModelInferRequest:
    elements = [0.5] * math.prod(IMAGE_SHAPE)
    inputs = [_input("pixel_values", "FP32", [1, *IMAGE_SHAPE], fp32_contents=elements)]
    return oip.ModelInferRequest(model_name="tiny", inputs=inputs)


@st.composite
def _parameter(draw: st.DrawFn) -> oip.InferParameter:
    kind = draw(st.sampled_from(("bool", "int64", "uint64", "string", "string", "double", "nothing")))
    if kind == "bool":
        return oip.InferParameter(bool_param=draw(st.booleans()))
    if kind == "int64":
        return oip.InferParameter(int64_param=draw(integers(-(2**63), 2**63 - 1)))
    if kind == "uint64":
        return oip.InferParameter(uint64_param=draw(integers(0, 2**64 - 1)))
    if kind == "string":
        return oip.InferParameter(string_param=draw(st.one_of(st.sampled_from(_VALUES), texts)))
    if kind == "double":
        return oip.InferParameter(double_param=draw(floats))
    return oip.InferParameter()


def _model(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    request.model_name = draw(st.one_of(st.sampled_from(_NAMES), texts))


def _version(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    request.model_version = draw(st.sampled_from(_VERSIONS))


def _id(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    request.id = draw(texts)


def _parameters(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    places = [request.parameters]
    places += [each.parameters for each in request.inputs]
    places += [each.parameters for each in request.outputs]
    place = places[draw(st.sampled_from((0, 0, len(places) - 1)))]
    place[draw(st.sampled_from(_PARAMETERS))].CopyFrom(draw(_parameter()))


def _alias_and_variant(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    request.model_name = draw(st.sampled_from(("tiny@fp32", "tiny@bf16")))
    request.parameters["variant"].string_param = draw(st.sampled_from(("fp32", "bf16", "int3", "")))


def _output(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    output = request.outputs.add(name=draw(st.one_of(st.just("logits"), texts)))
    if draw(st.booleans()):
        output.parameters[draw(st.sampled_from(_PARAMETERS))].CopyFrom(draw(_parameter()))


def _one(draw: st.DrawFn, request: oip.ModelInferRequest) -> oip.ModelInferRequest.InferInputTensor:
    held = request.inputs
    return held[draw(st.integers(0, len(held) - 1))] if held else held.add()


def _name(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    _one(draw, request).name = draw(texts)


def _datatype(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    _one(draw, request).datatype = draw(st.sampled_from(DATATYPES))


def _shape(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    _one(draw, request).shape[:] = draw(st.sampled_from(SHAPES))


def _contents(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    contents = _one(draw, request).contents
    field = draw(st.sampled_from(list(oip.InferTensorContents.DESCRIPTOR.fields)))
    values: Any = {
        "bool_contents": st.booleans(),
        "int_contents": integers(-(2**31), 2**31 - 1),
        "int64_contents": integers(-(2**63), 2**63 - 1),
        "uint_contents": integers(0, 2**32 - 1),
        "uint64_contents": integers(0, 2**64 - 1),
        "fp32_contents": floats.map(lambda value: struct.unpack("<f", struct.pack("<d", value)[4:])[0]),
        "fp64_contents": floats,
        "bytes_contents": st.one_of(st.binary(max_size=8), sentences.map(str.encode)),
    }
    getattr(contents, field.name).extend(draw(st.lists(values[field.name], max_size=6)))


def _raw_contents(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    data = draw(st.one_of(st.sampled_from(DATA), st.sampled_from(_BYTES), st.binary(max_size=48)))
    held = request.raw_input_contents
    if held and draw(st.integers(0, 3)) > 0:
        held[draw(st.integers(0, len(held) - 1))] = data
    else:
        held.append(data)


def _element(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    """A text that is none, and all else right."""
    text = draw(st.sampled_from(BROKEN_TEXTS))
    request.CopyFrom(raw_text() if draw(st.booleans()) else text_of(text))
    if request.raw_input_contents:
        request.inputs[0].shape[:] = [1, 1]
        request.raw_input_contents[0] = len(text).to_bytes(4, "little") + text


def _fewer(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    lists: tuple[MutableSequence[Any], ...] = (request.inputs, request.raw_input_contents)
    held = draw(st.sampled_from(lists))
    if held:
        del held[draw(st.integers(0, len(held) - 1))]


def _twice(draw: st.DrawFn, request: oip.ModelInferRequest) -> None:
    request.inputs.add().CopyFrom(_one(draw, request))
    if request.raw_input_contents:
        request.raw_input_contents.append(request.raw_input_contents[0])


_MUTATIONS: list[Mutation] = [
    _model, _version, _id, _parameters, _parameters, _parameters, _alias_and_variant, _output, _output, _name,
    _datatype, _shape, _shape, _contents, _contents, _raw_contents, _raw_contents,
    _element, _element, _fewer, _twice,
]  # fmt: skip


TEXT_TEMPLATES = (typed, raw, text, raw_text)
IMAGE_TEMPLATES = (pixels, pixels, pixels, typed_pixels, raw_text)


@st.composite
def infer_request(draw: st.DrawFn, templates: Sequence[Template]) -> oip.ModelInferRequest:
    request = draw(st.sampled_from(templates))()
    if draw(st.integers(0, 19)) == 0:
        request.parameters["energy"].string_param = "settled"
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2, 2, 3)))):
        draw(st.sampled_from(_MUTATIONS))(draw, request)
    return request
