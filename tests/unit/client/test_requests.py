"""What Python inputs become on the wire, and what is refused before anything is sent."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from wattserve_client._requests import bare_request, images, watch_request, with_inputs
from wattserve_proto.v1 import inference_pb2 as pb


def request_for(inputs: Any) -> pb.PredictRequest:
    bare = bare_request(variant="bf16", request_id="mine", wait_for_settled_energy=True, priority=3)
    return with_inputs(bare, inputs)


def token_ids(inputs: Any) -> list[list[int]]:
    request = request_for(inputs)
    assert request.WhichOneof("input") == "tokens"
    return [list(sequence.ids) for sequence in request.tokens.sequences]


def test_what_the_caller_names_beside_the_inputs_is_sent() -> None:
    request = request_for("a film")
    assert (request.variant, request.request_id) == ("bf16", "mine")
    assert (request.wait_for_settled_energy, request.priority) == (True, 3)


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ("a film", ["a film"]),
        ("", [""]),  # whether a model takes it is the server's to say
        (["a film", "b"], ["a film", "b"]),
        (("a film",), ["a film"]),
        ([np.str_("a film")], ["a film"]),
        ("null \0 and 電", ["null \0 and 電"]),
    ],
)
def test_texts_are_sent_as_texts(inputs: Any, texts: list[str]) -> None:
    request = request_for(inputs)
    assert request.WhichOneof("input") == "text"
    assert list(request.text.texts) == texts


@pytest.mark.parametrize(
    "inputs",
    [
        [101, 7, 102],
        (101, 7, 102),
        [np.int64(101), 7, np.uint8(102)],
        np.array([101, 7, 102]),
        np.array([101, 7, 102], np.uint16),
        np.array([101, 7, 102], ">i4"),
        np.array([101, 0, 7, 0, 102, 0])[::2],
        [[101, 7, 102]],
        [np.array([101, 7, 102])],
        np.array([[101, 7, 102]]),
    ],
)
def test_one_sequence_of_token_ids_may_come_in_any_of_these_forms(inputs: Any) -> None:
    assert token_ids(inputs) == [[101, 7, 102]]


@pytest.mark.parametrize(
    "inputs",
    [
        [[1, 2], [3]],
        ([1, 2], (3,)),
        [np.array([1, 2]), np.array([3], np.int32)],
        [[1, 2], np.array([3])],
    ],
)
def test_several_sequences_keep_their_own_lengths(inputs: Any) -> None:
    assert token_ids(inputs) == [[1, 2], [3]]


def test_a_matrix_is_sent_row_by_row() -> None:
    assert token_ids(np.array([[1, 2], [3, 4], [5, 6]])) == [[1, 2], [3, 4], [5, 6]]


def test_the_extremes_of_int32_are_sent() -> None:
    assert token_ids([-(2**31), 2**31 - 1]) == [[-2147483648, 2147483647]]


def test_named_tensors_are_sent_row_major_and_little_endian() -> None:
    request = request_for(
        {
            "input_ids": np.array([[1, 2], [3, 4]], ">i8").T,
            "pixels": np.array([1.0, -2.0], np.float32),
            "half": np.array([[1.0]], np.float16),
            "mask": np.array([1, 0], np.int32),
            "bytes": np.array([255], np.uint8),
        }
    )
    assert request.WhichOneof("input") == "tensors"
    sent = {each.name: (each.datatype, list(each.shape), each.data) for each in request.tensors.tensors}
    assert sent == {
        "input_ids": ("INT64", [2, 2], b"".join(bytes([n]) + bytes(7) for n in (1, 3, 2, 4))),
        "pixels": ("FP32", [2], b"\x00\x00\x80\x3f\x00\x00\x00\xc0"),
        "half": ("FP16", [1, 1], b"\x00\x3c"),
        "mask": ("INT32", [2], b"\x01\x00\x00\x00\x00\x00\x00\x00"),
        "bytes": ("UINT8", [1], b"\xff"),
    }


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<f8"])
@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 2, 1, 2)])
def test_pixels_of_any_float_type_are_sent_as_float32_images(dtype: str, shape: tuple[int, ...]) -> None:
    pixels = np.array([[[1.0, -2.0]], [[0.5, 0.0]]], dtype).reshape(shape)
    (sent,) = request_for(pixels).tensors.tensors
    assert (sent.name, sent.datatype, list(sent.shape)) == ("pixel_values", "FP32", [1, 2, 1, 2])
    assert np.frombuffer(sent.data, "<f4").tolist() == [1.0, -2.0, 0.5, 0.0]


def test_a_batch_of_images_that_is_not_contiguous_keeps_its_order() -> None:
    channels_last = np.arange(2 * 2 * 3 * 4, dtype=np.float32).reshape(2, 2, 3, 4)
    (sent,) = request_for(channels_last.transpose(0, 3, 1, 2)).tensors.tensors
    assert list(sent.shape) == [2, 4, 2, 3]
    assert np.frombuffer(sent.data, "<f4")[:4].tolist() == [0.0, 4.0, 8.0, 12.0]


@pytest.mark.parametrize(
    ("pixels", "kind", "reason"),
    [
        ([[[1.0]]], TypeError, "pixels are a list; they must be a numpy array of floats"),
        (
            np.zeros((3, 8, 9), np.uint8),
            TypeError,
            "an image of uint8, shape (3, 8, 9): pixels must be floats, resized to server_info().pixel_shape",
        ),
        (
            np.zeros((8, 9, 3), np.uint8),
            TypeError,
            "shape (8, 9, 3): pixels must be floats, channels first (.transpose(2, 0, 1)), resized",
        ),
        (np.zeros((2, 2), np.float32), ValueError, "pixels have 2 dimensions; one image has 3"),
        (np.zeros((1, 1, 3, 2, 2), np.float32), ValueError, "pixels have 5 dimensions"),
    ],
)
def test_what_is_not_pixels_of_images_is_refused(pixels: Any, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=re.escape(reason)):
        images(pixels)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (None, "inputs are a NoneType; they must be a str, a list of str"),
        (7, "inputs are an int"),
        (b"bytes", "inputs are a bytes"),
        ({"a film"}, "inputs are a set"),
        ((n for n in [1, 2]), "inputs are a generator"),
        ([b"bytes"], "inputs[0] is a bytes"),
        ([None], "inputs[0] is a NoneType"),
        ([1.0, 2.0], "inputs[0] is a float"),
        ([1, 2.0], "inputs[1] is a float; token ids are integers"),
        ([1, True], "inputs[1] is a bool; token ids are integers"),
        ([True, 1], "inputs[0] is a bool"),
        ([[1], [2.5]], "inputs[1][0] is a float; token ids are integers"),
        ([[1], [False]], "inputs[1][0] is a bool; token ids are integers"),
        ([[[1]]], "inputs[0][0] is a list; token ids are integers"),
        (["a film", 7], "inputs[1] is an int, and inputs[0] a str"),
        ([7, "a film"], "inputs[1] is a str; token ids are integers"),
        ([[7], "a film"], "inputs[1] is a str, and inputs[0] a sequence of token ids"),
        ([[7], 7], "inputs[1] is an int, and inputs[0] a sequence of token ids"),
        (np.array([1.0]), "inputs is an array of float64; token ids are integers"),
        (np.array([True]), "inputs is an array of bool; token ids are integers"),
        (np.zeros((2, 4, 5, 3), np.uint8), "an image of uint8, shape (2, 4, 5, 3): pixels must be floats"),
        (np.array(["a film"]), "inputs is an array of str"),
        (np.ma.array([1, 2], mask=[False, True]), "inputs: a masked array, and no mask can be sent"),
        (np.ma.zeros((1, 1, 2, 2)), "inputs: a masked array"),
        ([np.array([1]), np.ma.array([1, 2], mask=[False, True])], "inputs[1]: a masked array"),
        ({"x": np.ma.array([1, 2], mask=[False, True])}, "tensor 'x': a masked array"),
        ([np.array([1]), np.array([1.0])], "inputs[1] is an array of float64; token ids are integers"),
        ({"input_ids": [1, 2]}, "tensor 'input_ids' is a list; it must be a numpy array"),
        ({7: np.array([1])}, "the name 7 of a tensor is an int; it must be a str"),
        ({"x": np.array([1.0])}, "tensor 'x' is float64, which cannot be sent: convert it to one of float32"),
        ({"x": np.array([True])}, "tensor 'x' is bool, which cannot be sent"),
    ],
)
def test_a_kind_of_thing_that_cannot_be_sent_is_a_type_error(inputs: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=re.escape(reason)):
        request_for(inputs)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([], "inputs are empty"),
        ({}, "inputs are empty: a mapping without tensors"),
        ([[]], "inputs[0] is empty: a sequence has at least one token id"),
        ([[1], []], "inputs[1] is empty: a sequence has at least one token id"),
        (np.array([], np.int64), "inputs are empty: an array of shape (0,)"),
        (np.zeros((2, 0), np.int64), "inputs are empty: an array of shape (2, 0)"),
        (np.array(7), "inputs have 0 dimensions"),
        (np.zeros((1, 1, 1, 1, 1), np.int64), "inputs have 5 dimensions"),
        ([np.zeros((1, 1), np.int64)], "inputs[0] has 2 dimensions; a sequence of token ids has 1"),
        ([1, 2**31], "inputs has a token id outside int32: from 1 to 2147483648"),
        ([[1], [-(2**31) - 1]], "inputs[1] has a token id outside int32"),
        (np.array([2**32], np.uint64), "inputs has a token id outside int32"),
        ({"x": np.zeros((0, 3), np.float32)}, "tensor 'x' is empty: its shape is (0, 3)"),
        (np.zeros((0, 3, 2, 2), np.float32), "tensor 'pixel_values' is empty: its shape is (0, 3, 2, 2)"),
        (np.array([[[[0.0]]], [[[np.nan]]]]), "image 1 holds values that are not finite in float32"),
        (np.array([[[1e300]]]), "image 0 holds values that are not finite in float32"),
        (["a film", "\ud800"], "inputs[1] is not Unicode text"),
    ],
)
def test_a_value_that_cannot_be_sent_is_a_value_error(inputs: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        request_for(inputs)


def test_a_request_larger_than_a_message_may_be_is_refused_with_both_sizes() -> None:
    with pytest.raises(
        ValueError, match=r"the request has 671088\d{2} bytes, and at most 67108864 can be sent"
    ):
        request_for("x" * (64 * 1024 * 1024))


def test_one_receipt_id_in_place_of_a_list_is_not_taken_letter_by_letter() -> None:
    assert list(watch_request(["r-1", "r-2"]).receipt_ids) == ["r-1", "r-2"]
    with pytest.raises(TypeError, match="it must be a list of ids"):
        watch_request("r-1")
