"""A field that the server does not know changes nothing: a later client may send one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.models import IMAGE_SHAPE
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_server.engine.tasks import InputFacts
from wattserve_server.service.oip_request import asked_of

FACTS = InputFacts(max_tokens=1, vocabulary_size=0, pixel_shape=IMAGE_SHAPE)
MODEL = SimpleNamespace(facts=FACTS, task=SimpleNamespace(output_name="logits"))
READY: Any = SimpleNamespace(engine=SimpleNamespace(model=MODEL, limits=SimpleNamespace(max_request=8)))


@pytest.mark.parametrize(
    "unknown", [b"\xfa\x07\x05abcde", b"\xf8\x07\x01", b"\xfa\x07\x10" + b"\0\0\x80\x40" * 4]
)
def test_typed_pixels_are_read_whatever_else_stands_beside_them(unknown: bytes) -> None:
    pixels = np.linspace(-1, 1, int(np.prod(IMAGE_SHAPE)), dtype=np.float32)
    contents = oip.InferTensorContents(fp32_contents=pixels)
    contents.MergeFromString(unknown)
    request = oip.ModelInferRequest(model_name="tiny")
    request.inputs.add(name="pixel_values", datatype="FP32", shape=[1, *IMAGE_SHAPE], contents=contents)
    (image,) = asked_of(request, READY).items
    np.testing.assert_array_equal(image, pixels.reshape(IMAGE_SHAPE))
