"""PredictRequests that would be answered, but for a mutation or two; some are left whole."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from tests.fixtures.models import IMAGE_SHAPE
from tests.fuzz.messages import integers, texts
from wattserve_proto.v1 import inference_pb2 as pb

Template = Callable[[], pb.PredictRequest]
Mutation = Callable[[st.DrawFn, pb.PredictRequest], None]

SHAPES: tuple[list[int], ...] = (
    [], [0], [-1], [1], [2], [3], [1, 0], [0, 3], [1, 2], [1, 3], [3, 1], [2, 3], [1, 4], [1, 1, 3], [-1, -3],
    [-1, 3], [2**62, 4], [4, 2**62], [2**32, 2**32], [2**63 - 1], [-(2**63), -1], [1, 2**31], [257, 1],
    [256, 1], [1] * 40, [1, 65],
    [2, *IMAGE_SHAPE], [257, *IMAGE_SHAPE],
    [0, *IMAGE_SHAPE], [-1, *IMAGE_SHAPE], [1, 3, 48, 32], [2**62, 3, 32, 48],
)  # fmt: skip
"""Of tensors; [1, 3] and [2, 3] are what the templates have."""

DATATYPES = ("INT64", "INT32", "FP32", "BYTES", "UINT8", "int64", "INT64 ", "", "\0", "FP16", "x" * 70_000)

IMAGE = struct.pack("<f", 0.5) * math.prod(IMAGE_SHAPE)

DATA = (
    b"", b"\0", b"\xff" * 24, b"\0" * 24, b"\0" * 25, struct.pack("<3q", 2, 4, 3),
    struct.pack("<3i", 2, 4, 3),
    struct.pack("<3q", 1, 1, 0), struct.pack("<3q", 0, 1, 1), struct.pack("<3q", 2**63 - 1, 2**63 - 1, 3),
    struct.pack("<3q", -(2**63), -(2**63), 2), struct.pack("<3f", float("nan"), float("inf"), -0.0),
    b"\0" * 520,
    IMAGE[:-4] + struct.pack("<f", float("nan")), IMAGE[4:], IMAGE * 2,
)  # fmt: skip

ids = st.one_of(
    st.lists(st.integers(0, 63), min_size=1, max_size=8),
    st.lists(integers(-(2**31), 2**31 - 1), max_size=4),
    st.sampled_from(([2] * 64, [2] * 65, [63], [64], [-1], [0], [], [2] * 100_000)),
)
sentences = st.one_of(
    st.sampled_from(
        ("good film", "a very bad film", "[PAD]", "[CLS] [SEP]", "\ufffd", "\u200b", "not " * 61)
    ),
    st.sampled_from(
        ("", " ", "\n\t", "\0", "good\0film", "\x85", "good " * 63, "x" * 200_001, "a " * 90_000)
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


def tokens() -> pb.PredictRequest:
    return pb.PredictRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=[2, 4, 3])]))


def text() -> pb.PredictRequest:
    return pb.PredictRequest(text=pb.TextInput(texts=["good film"]))


def tensors() -> pb.PredictRequest:
    given = [("input_ids", (2, 4, 3, 2, 5, 3)), ("attention_mask", (1, 1, 1, 1, 1, 0))]
    made = [
        pb.Tensor(name=name, datatype="INT64", shape=[2, 3], data=struct.pack("<6q", *row))
        for name, row in given
    ]
    return pb.PredictRequest(tensors=pb.TensorInput(tensors=made))


def pixels() -> pb.PredictRequest:
    """An image, for a model of images."""
    image = pb.Tensor(name="pixel_values", datatype="FP32", shape=[1, *IMAGE_SHAPE], data=IMAGE)
    return pb.PredictRequest(tensors=pb.TensorInput(tensors=[image]))


def _request_id(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    request.request_id = draw(texts)


def _variant(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    request.variant = draw(texts)


def _priority(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    request.priority = draw(integers(0, 2**32 - 1))


def _sequence(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    request.tokens.sequences.add(ids=draw(ids))


def _many_sequences(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    one = pb.TokenIds(ids=draw(st.sampled_from(([], [2], [2, 3]))))
    request.tokens.sequences.extend([one] * draw(st.sampled_from((2, 33, 256, 257, 5000))))


def _no_sequences(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    request.ClearField(draw(st.sampled_from(("tokens", "text", "tensors"))))
    getattr(request, draw(st.sampled_from(("tokens", "text", "tensors")))).SetInParent()


def _text(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    request.text.texts.append(draw(sentences))


def _many_texts(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    request.text.texts.extend([draw(sentences)[:400]] * draw(st.sampled_from((2, 33, 256, 257, 5000))))


def _tensor(draw: st.DrawFn, request: pb.PredictRequest) -> pb.Tensor:
    """One of its tensors, made if there is none."""
    held = request.tensors.tensors
    return held[draw(st.integers(0, len(held) - 1))] if held else held.add(name="input_ids", datatype="INT64")


def _name(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    _tensor(draw, request).name = draw(texts)


def _datatype(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    _tensor(draw, request).datatype = draw(st.sampled_from(DATATYPES))


def _shape(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    _tensor(draw, request).shape[:] = draw(st.sampled_from(SHAPES))


def _data(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    _tensor(draw, request).data = draw(st.one_of(st.sampled_from(DATA), st.binary(max_size=48)))


def _one_tensor_less(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    held = request.tensors.tensors
    if held:
        del held[draw(st.integers(0, len(held) - 1))]


def _one_tensor_more(draw: st.DrawFn, request: pb.PredictRequest) -> None:
    request.tensors.tensors.add().CopyFrom(_tensor(draw, request))


_MUTATIONS: dict[str, list[Mutation]] = {
    "tokens": [_sequence, _sequence, _many_sequences],
    "text": [_text, _text, _many_texts],
    "tensors": [_name, _datatype, _shape, _shape, _data, _data, _one_tensor_less, _one_tensor_more],
}
_ANYWHERE: list[Mutation] = [_request_id, _variant, _priority, _no_sequences, _sequence, _text, _shape]


TEXT_TEMPLATES = (tokens, text, tensors, tensors)
IMAGE_TEMPLATES = (pixels, pixels, pixels, tensors, text)


@st.composite
def predict_request(draw: st.DrawFn, templates: Sequence[Template]) -> pb.PredictRequest:
    request = draw(st.sampled_from(templates))()
    request.wait_for_settled_energy = draw(st.integers(0, 19)) == 0
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2, 2, 3)))):
        own = _MUTATIONS[request.WhichOneof("input") or "tokens"]
        draw(st.sampled_from([*own, *_ANYWHERE]))(draw, request)
    return request
