"""From a ModelInferRequest to checked items: ids, texts or pixels, as bytes or as elements, of a variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.clients.oip_stub import infer_request
from tests.clients.oip_world import NAME, ready
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.errors import InvalidRequest, NotFound
from wattserve_server.service.oip_request import asked_of, hosted_of
from wattserve_server.service.prediction import Asked

SERVER = ready()
IMAGES = ready(pixel_shape=(1, 2, 2))
IDS = np.array([[5, 6, 7], [8, 9, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
PIXELS = np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)


def typed(name: str, datatype: str, shape: list[int], **contents: Any) -> oip.ModelInferRequest:
    """One input, its elements in a field."""
    request = oip.ModelInferRequest(model_name=NAME)
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    tensor.contents.MergeFrom(oip.InferTensorContents(**contents))
    return request


def raw(name: str, datatype: str, shape: list[int], data: bytes) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name=NAME, raw_input_contents=[data])
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    return request


def read(request: oip.ModelInferRequest) -> Asked:
    return asked_of(request, SERVER)


def rows(request: oip.ModelInferRequest) -> list[list[int]]:
    return [np.asarray(item).tolist() for item in read(request).items]


@pytest.mark.parametrize(
    "request_",
    [
        infer_request(NAME, input_ids=IDS),
        infer_request(NAME, input_ids=IDS.astype(np.int32)),
        typed("input_ids", "INT64", [2, 3], int64_contents=IDS.ravel()),
        typed("input_ids", "INT32", [2, 3], int_contents=IDS.ravel()),
    ],
    ids=["raw int64", "raw int32", "typed int64", "typed int32"],
)
def test_ids_are_the_same_however_they_are_sent(request_: oip.ModelInferRequest) -> None:
    assert rows(request_) == [[5, 6, 7], [8, 9, 0]]


def test_a_mask_takes_padding_off_in_any_order_of_the_inputs() -> None:
    for request in (
        infer_request(NAME, input_ids=IDS, attention_mask=MASK),
        infer_request(NAME, attention_mask=MASK, input_ids=IDS),
    ):
        assert rows(request) == [[5, 6, 7], [8, 9]]


@pytest.mark.parametrize("shape", [[2], [2, 1]])
@pytest.mark.parametrize("is_raw", [True, False])
def test_texts_may_have_a_column_or_none(shape: list[int], is_raw: bool) -> None:
    words = ["good", "ünïcode ☺"]
    if is_raw:
        request = infer_request(NAME, text=words)
        request.inputs[0].shape[:] = shape
    else:
        request = typed("text", "BYTES", shape, bytes_contents=[word.encode() for word in words])
    asked = read(request)
    assert asked.texts == words
    assert not asked.items
    assert asked.place == ("raw_input_contents[0]" if is_raw else "inputs[0].contents.bytes_contents")


@pytest.mark.parametrize("is_raw", [True, False])
def test_pixels_are_the_same_however_they_are_sent(is_raw: bool) -> None:
    request = infer_request(NAME, pixel_values=PIXELS)
    if not is_raw:
        request = typed("pixel_values", "FP32", [2, 1, 2, 2], fp32_contents=PIXELS.ravel())
    items = asked_of(request, IMAGES).items
    np.testing.assert_array_equal(np.stack([np.asarray(item) for item in items]), PIXELS)


def mixed() -> oip.ModelInferRequest:
    request = infer_request(NAME, input_ids=IDS)
    request.inputs[0].contents.int64_contents.append(5)
    return request


def half_raw() -> oip.ModelInferRequest:
    request = infer_request(NAME, input_ids=IDS, attention_mask=MASK)
    del request.raw_input_contents[1:]
    return request


def shared() -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name=NAME)
    tensor = request.inputs.add(name="input_ids", datatype="INT64", shape=[1, 1])
    tensor.parameters["shared_memory_region"].string_param = "region"
    return request


def all_shared() -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name=NAME)
    request.parameters["shared_memory_region"].string_param = "region"
    request.inputs.add(name="input_ids", datatype="INT64", shape=[1, 1]).contents.int64_contents.append(3)
    return request


def long(shape: list[int], elements: list[int] | None = None) -> oip.ModelInferRequest:
    return typed("input_ids", "INT64", shape, int64_contents=elements or [])


def text(shape: list[int], data: bytes) -> oip.ModelInferRequest:
    return raw("text", "BYTES", shape, data)


IN = "inputs[0]"
ELEMENTS = "inputs[0].contents.int64_contents"
RAW = "raw_input_contents[0]"


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (oip.ModelInferRequest(model_name=NAME), "inputs", "tensor 'input_ids' is missing"),
        (mixed(), f"{IN}.contents", "both contents and raw_input_contents"),
        (half_raw(), "raw_input_contents", "1 raw contents for 2 inputs"),
        (shared(), f"{IN}.parameters[shared_memory_region]", "shared memory is not offered"),
        (all_shared(), "parameters[shared_memory_region]", "shared memory is not offered"),
        (typed("input_ids", "INT64", [1, 1], int_contents=[1]), f"{IN}.contents", "not in int_contents"),
        (long([1, 1]), ELEMENTS, "0 elements; shape [1, 1] needs 1"),
        (long([1, 2], [1]), ELEMENTS, "1 elements"),
        (typed("input_ids", "FP64", [1, 1], fp64_contents=[1]), f"{IN}.datatype", "datatype 'FP64'"),
        (typed("input_ids", "", [1, 1], int64_contents=[1]), f"{IN}.datatype", "datatype '' of input_ids"),
        (long([-1, 1], [1]), f"{IN}.shape", "both at least 1"),
        (long([1, 2**62], [1]), f"{IN}.shape", "holds more than"),
        (long([4, 1], [1] * 4), f"{IN}.shape", "at most 3 sequences"),
        (long([1, 9], [1] * 9), ELEMENTS, "9 tokens"),
        (raw("input_ids", "INT64", [1, 1], b"1234567"), RAW, "7 bytes of data; shape [1, 1] of"),
        (raw("input_ids", "INT64", [1, 1], b"\xff" * 8), RAW, "row 0: token id -1 is outside the vocabulary"),
        (text([1], b""), RAW, "0 elements; shape [1] needs 1"),
        (text([1], b"\x01"), RAW, "element 0 is longer than"),
        (text([1], b"\x05\0\0\0good"), RAW, "element 0 is longer than"),
        (text([1], b"\xff\xff\xff\xffgood"), RAW, "element 0 is longer"),
        (text([1], b"\x01\0\0\0ab"), RAW, "1 bytes are left after 1 elements"),
        (text([1], b"\x01\0\0\0\xff"), f"{RAW}[0]", "not UTF-8"),
        (text([1], b"\0\0\0\0"), f"{RAW}[0]", "the text is empty"),
        (text([1], b"\x03\0\0\0a\0b"), f"{RAW}[0]", "null character"),
        (raw("text", "INT64", [1], b"12345678"), f"{IN}.datatype", "it is BYTES"),
        (text([], b""), f"{IN}.shape", "shape [] is neither [texts] nor [texts, 1]"),
        (text([0], b""), f"{IN}.shape", "neither [texts] nor [texts, 1]"),
        (text([1, 2], b""), f"{IN}.shape", "neither [texts] nor [texts, 1]"),
        (text([2**62], b""), f"{IN}.shape", "at most 3 sequences"),
        (infer_request(NAME, text=["a"], input_ids=IDS), "inputs", "text stands alone"),
        (infer_request(NAME, pixel_values=PIXELS), f"{IN}.name", "unknown tensor 'pixel_values'"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_and_its_field_named(
    request_: oip.ModelInferRequest, field: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(request_)
    assert words in str(caught.value)
    assert caught.value.field == field


def test_outputs_are_checked_before_anything_runs() -> None:
    for names, words in ((["scores"], "unknown output"), (["logits", "logits"], "asked for twice")):
        request = infer_request(NAME, input_ids=IDS)
        for name in names:
            request.outputs.add(name=name)
        with pytest.raises(InvalidRequest, match=words):
            read(request)
    request = infer_request(NAME, input_ids=IDS)
    request.outputs.add(name="logits").parameters["shared_memory_region"].string_param = "region"
    with pytest.raises(InvalidRequest, match="shared memory is not offered") as caught:
        read(request)
    assert caught.value.field == "outputs[0].parameters[shared_memory_region]"


@pytest.mark.parametrize(
    ("name", "asked", "variant"),
    [
        (NAME, {}, "fp32"),
        (NAME, {"variant": ""}, "fp32"),
        (NAME, {"variant": "int8@cpu"}, "int8@cpu"),
        (f"{NAME}@bf16", {}, "bf16"),
        (f"{NAME}@bf16", {"variant": "bf16"}, "bf16"),
        (f"{NAME}@int8@cpu", {}, "int8@cpu"),
    ],
)
def test_the_variant_is_that_of_the_name_or_of_the_parameter(
    name: str, asked: dict[str, str], variant: str
) -> None:
    assert hosted_of(infer_request(name, asked), SERVER.engine).choice.name == variant


def test_a_contradiction_and_an_unknown_variant_are_refused() -> None:
    refused = {
        (f"{NAME}@bf16", "fp32"): InvalidRequest,
        (NAME, "int3"): NotFound,
        (f"{NAME}@bf16", "int3"): InvalidRequest,
    }
    for (name, asked), error in refused.items():
        with pytest.raises(error) as caught:
            hosted_of(infer_request(name, {"variant": asked}), SERVER.engine)
        assert getattr(caught.value, "field", "") == "parameters[variant]"
    with pytest.raises(InvalidRequest, match="5 is no string_param"):
        hosted_of(infer_request(NAME, {"variant": 5}), SERVER.engine)
