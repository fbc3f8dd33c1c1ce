"""Pixels in a request: what becomes an image, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.errors import InvalidRequest
from wattserve_server.service import inference as convert

IMAGES = InputFacts(max_tokens=1, pixel_shape=(3, 4, 6))
PIXELS = np.arange(2 * 3 * 4 * 6, dtype=np.float32).reshape(2, 3, 4, 6)


def tensor(array: np.ndarray = PIXELS, **changes: Any) -> pb.Tensor:
    fields = {
        "name": "pixel_values",
        "datatype": "FP32",
        "shape": array.shape,
        "data": array.astype("<f4").tobytes(),
    }
    return pb.Tensor(**(fields | changes))


def request(*tensors: pb.Tensor) -> pb.PredictRequest:
    return pb.PredictRequest(tensors=pb.TensorInput(tensors=tensors))


def spoiled(value: float) -> np.ndarray:
    array = PIXELS.copy()
    array[1, 2, 3, 5] = value
    return array


def test_each_image_is_an_item_in_channels_height_width() -> None:
    first, second = convert.items_of(request(tensor()), IMAGES, 2)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, PIXELS[0])
    np.testing.assert_array_equal(second, PIXELS[1])


TAKES = "this model takes pixel_values (FP32, [images, 3, 4, 6])"


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        (pb.PredictRequest(), "input", "needs one of text, tokens or tensors"),
        (pb.PredictRequest(text=pb.TextInput(texts=["a film"])), "text", TAKES),
        (pb.PredictRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=[1])])), "tokens", TAKES),
        (request(), "tensors.tensors", "tensor 'pixel_values' is missing; this model takes"),
        (
            request(tensor(name="input_ids")),
            "tensors.tensors[0].name",
            f"unknown tensor 'input_ids'; {TAKES}",
        ),
        (request(tensor(), tensor()), "tensors.tensors[1].name", "'pixel_values' is given twice"),
        (request(tensor(datatype="FP16")), "tensors.tensors[0].datatype", "known here: FP32"),
        (request(tensor(datatype="UINT8")), "tensors.tensors[0].datatype", "known here: FP32"),
        (request(tensor(PIXELS[0])), "tensors.tensors[0].shape", f"shape [3, 4, 6]; {TAKES}"),
        (request(tensor(PIXELS.transpose(0, 2, 3, 1))), "tensors.tensors[0].shape", "shape [2, 4, 6, 3]"),
        (request(tensor(PIXELS[:0])), "tensors.tensors[0].shape", "at least one image"),
        (request(tensor(shape=[-1, 3, 4, 6])), "tensors.tensors[0].shape", "at least one image"),
        (request(tensor(np.repeat(PIXELS, 2, axis=0))), "tensors.tensors[0].shape", "at most 3 sequences"),
        (request(tensor(shape=[2**60, 3, 4, 6])), "tensors.tensors[0].shape", "at most 3 sequences"),
        (request(tensor(data=bytes(575))), "tensors.tensors[0].data", "575 bytes of data"),
        (request(tensor(spoiled(np.nan))), "tensors.tensors[0].data", "image 1 holds values that are not"),
        (request(tensor(spoiled(-np.inf))), "tensors.tensors[0].data", "image 1 holds values that are not"),
    ],
)
def test_what_is_not_an_image_of_the_models_size_names_its_field(
    asked: pb.PredictRequest, field: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert.items_of(asked, IMAGES, 3)
    assert caught.value.field == field
    assert message in str(caught.value)


@pytest.mark.parametrize("pixel", [3e38, -7e4, np.nan, np.inf])
def test_pixels_that_overflow_are_the_callers_mistake(pixel: float) -> None:
    with pytest.raises(InvalidRequest, match=r"image 1 .* not finite, or beyond 65504") as caught:
        convert.items_of(request(tensor(spoiled(pixel))), IMAGES, 2)
    assert caught.value.field == "tensors.tensors[0].data"
