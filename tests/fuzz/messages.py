"""Messages of any type, made from its descriptor: every field, with values that somebody may have missed."""

from __future__ import annotations

import struct
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

NAMES = (
    "", "\0", "fp32", "bf16", "int3", "tiny", "tiny@fp32", "tiny@bf16", "tiny@", "tiny@int3", "@",
    "input_ids", "attention_mask", "text", "logits", "pixel_values", "INT64", "INT32", "FP32", "BYTES", "1",
    "2", "-1", "\u0663", "priority", "timeout", "energy", "settled", "variant", "sequence_id", "triton_x",
    "shared_memory_region", "classification", "binary_data_output", "good film", "%s%n%%", "../../etc/passwd",
    "grpc.health.v1.Health", "wattserve.v1.Inference", "wattserve/v1/inference.proto", "inference.proto",
    "wattserve.v1.PredictRequest", "inference.GRPCInferenceService", "google.protobuf.FieldOptions",
    "\r\n\r\n", "\u202e\u200d\ufeff\ufffd", "none", "None", "\ud7ff\ue000", 'a"b\\c{d}', "\U0001f600" * 400,
)  # fmt: skip
"""Words that mean something to the server, and words that mean something to somebody's parser."""

FIRST_RECEIPTS = tuple(f"fuzzfuzzfuzz-{number:x}" for number in range(1, 9))
"""The receipts of the run's first requests: see `watched_server`."""

_LONG = (300, 20_000, 250_000)
_REPEATED = ("x", "good ", "\u00e9", "\u20ac", "\U0001f600", "\0", "'", "\x7f", "\u202e")

_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),  # proto3 takes numbers that have no name
}
_DEEPEST = 4

long_texts = st.builds(
    lambda unit, length: unit * (length // len(unit)), st.sampled_from(_REPEATED), st.sampled_from(_LONG)
)
texts = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.sampled_from(FIRST_RECEIPTS),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.integers(0, 9).flatmap(lambda dice: long_texts if dice == 5 else st.sampled_from(NAMES)),
)
blobs = st.one_of(
    st.binary(max_size=16),
    st.sampled_from(
        (b"", b"\0" * 8, b"\xff" * 64, b"\xff\xff\xff\x7f", struct.pack("<q", -1), b"\0" * 65_536)
    ),
)
floats = st.one_of(st.floats(), st.sampled_from((float("nan"), float("inf"), -float("inf"), -0.0, 5e-324)))


def bytes_of(message: Message) -> bytes:
    """The same ones every time: the entries of a map have no order of their own."""
    return message.SerializeToString(deterministic=True)


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    edges = [
        edge for edge in (low, low + 1, -1, 0, 1, 2, 3, 64, 257, 2**31, 2**62, high) if low <= edge <= high
    ]
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.type in _INTEGERS:
        return integers(*_INTEGERS[field.type])
    if field.type == FieldDescriptor.TYPE_STRING:
        return texts
    if field.type == FieldDescriptor.TYPE_BYTES:
        return blobs
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return floats
    raise TypeError(f"{field.full_name} has no values here")


@st.composite
def _filled(draw: st.DrawFn, message: Message, depth: int) -> Message:
    for field in cast(Descriptor, message.DESCRIPTOR).fields:
        if not draw(st.integers(0, 2)):
            continue
        value = getattr(message, field.name)
        count = draw(st.sampled_from((0, 1, 1, 2, 3))) if field.is_repeated else 1
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            key, entry = (kind.fields_by_name[name] for name in ("key", "value"))
            for _ in range(count):
                name = draw(_values(key, depth))
                if entry.message_type is None:
                    value[name] = draw(_values(entry, depth))
                else:
                    draw(_filled(value[name], depth + 1))
        elif kind is not None:
            if depth >= _DEEPEST:
                continue
            for _ in range(count):
                draw(_filled(value.add() if field.is_repeated else value, depth + 1))
            if not field.is_repeated:
                value.SetInParent()
        elif field.is_repeated:
            value.extend(draw(_values(field, depth)) for _ in range(count))
        else:
            setattr(message, field.name, draw(_values(field, depth)))
    return message


def messages(kind: type[Message]) -> st.SearchStrategy[bytes]:
    """Bytes of a message of this type that parses, now and then with a field that nobody knows."""
    unknown = st.sampled_from((b"", b"", b"", b"", b"\xf8\x07\x01", b"\xfa\x07\x03abc", b"\xfb\x07\xfc\x07"))
    whole = st.deferred(lambda: _filled(kind(), 0))
    return st.builds(lambda message, rest: bytes_of(message) + rest, whole, unknown)
