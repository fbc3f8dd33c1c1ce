"""A message that would hold the event loop up, or is too long once it is decompressed, is refused before it
is parsed; every useful one is not."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import InvalidRequest
from wattserve_server.service.weight import LIMIT_NS, SMALL_BYTES, WHOLE_NUMBER_NS, check_weight, unpacked

NATIVE, OIP = pb.PredictRequest.DESCRIPTOR, oip.ModelInferRequest.DESCRIPTOR
MESSAGE_BYTES = 4 * 1024 * 1024
NUMBERS = LIMIT_NS // WHOLE_NUMBER_NS


def part(field: int, data: bytes = b"") -> bytes:
    length, rest = b"", len(data)
    while rest > 127:
        length += bytes([rest & 127 | 128])
        rest >>= 7
    return bytes([field << 3 | 2]) + length + bytes([rest]) + data


def filled(piece: bytes) -> bytes:
    return piece * (MESSAGE_BYTES // len(piece) - 1)


HEAVY = {
    "inputs": (OIP, filled(part(5))),
    "raw contents": (OIP, filled(part(7))),
    "typed contents": (OIP, part(5, part(5, part(3, filled(b"\x01"))))),
    "texts of a tensor": (OIP, part(5, part(5, filled(part(8))))),
    "parameters": (OIP, filled(part(4, part(1, b"name")))),
    "sequences": (NATIVE, part(4, filled(part(1)))),
    "ids": (NATIVE, part(4, part(1, part(1, filled(b"\x01"))))),
    "texts": (NATIVE, part(3, filled(part(1, b"a")))),
    "a shape": (NATIVE, part(5, part(1, part(3, filled(b"\x01"))))),
    "numbers that stand alone": (NATIVE, part(4, part(1, filled(b"\x08\x01")))),
    "unknown fields": (NATIVE, filled(part(15))),
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_message_of_many_parts_is_refused(name: str) -> None:
    kind, data = HEAVY[name]
    with pytest.raises(InvalidRequest, match=f"these {len(data)} bytes have too many parts"):
        check_weight(data, kind)


def test_what_a_model_takes_is_not_too_much() -> None:
    ids = np.full((256, 512), 30_000)  # three bytes each, packed
    tokens = pb.TokenInput(sequences=[pb.TokenIds(ids=row) for row in ids.tolist()])
    typed = oip.ModelInferRequest(model_name="demo")
    for name in ("input_ids", "attention_mask"):
        tensor = typed.inputs.add(name=name, datatype="INT64", shape=ids.shape)
        tensor.contents.int64_contents.extend(ids.ravel().tolist())
    image = oip.ModelInferRequest(raw_input_contents=[b"\0" * MESSAGE_BYTES])
    texts = pb.PredictRequest(text=pb.TextInput(texts=["x" * 10_000] * 256))
    requests = (pb.PredictRequest(tokens=tokens), typed, image, texts)
    for request in requests:
        data = request.SerializeToString()
        assert len(data) > SMALL_BYTES
        check_weight(data, request.DESCRIPTOR)


def test_the_limit_is_the_one_that_is_told() -> None:
    few, many = (part(4, part(1, part(1, b"\x01" * count))) for count in (NUMBERS - 100, NUMBERS + 100))
    check_weight(few, NATIVE)
    with pytest.raises(InvalidRequest, match=f"and {NUMBERS} whole numbers"):
        check_weight(many, NATIVE)


@pytest.mark.parametrize(
    "data",
    [b"\xff" * SMALL_BYTES * 2, b"\x2a\xff\xff\xff\x7f" + b"\0" * SMALL_BYTES, b"\x2a" * (SMALL_BYTES + 1)],
)
def test_what_is_no_message_is_walked_to_an_end(data: bytes) -> None:
    with suppress(InvalidRequest):
        check_weight(data, OIP)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_what_was_compressed_is_decompressed_as_far_as_it_may_be_long(pack: Callable[[bytes], bytes]) -> None:
    plain = pb.PredictRequest(request_id="one").SerializeToString()
    assert unpacked(plain, 100) == plain
    assert unpacked(pack(plain), len(plain)) == unpacked(pack(plain), float("inf")) == plain
    tracemalloc.start()
    try:
        packed = pack(bytes(64 * MESSAGE_BYTES))
        tracemalloc.reset_peak()
        with pytest.raises(InvalidRequest, match=f"has at most {MESSAGE_BYTES} bytes; these {len(packed)}"):
            unpacked(packed, MESSAGE_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 3 * MESSAGE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_what_only_begins_as_if_it_were_compressed_is_left_to_the_parser(
    pack: Callable[[bytes], bytes],
) -> None:
    packed = pack(b"a message")
    for data in (packed[:2], packed[:-1], packed + b"x", packed[:2] + b"rubbish"):
        assert unpacked(data, 100) == data


def test_no_request_can_begin_as_what_deflate_makes() -> None:
    services = (
        pb.DESCRIPTOR.services_by_name["Inference"],
        oip.DESCRIPTOR.services_by_name["GRPCInferenceService"],
    )
    for method in (method for service in services for method in service.methods):
        assert 15 not in method.input_type.fields_by_number
