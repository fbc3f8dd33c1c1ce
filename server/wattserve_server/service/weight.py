"""What a message will take of memory and of the event loop, told from its bytes before it is parsed.

Parsing holds everybody up, and a few megabytes of empty parts become gigabytes. So a message that is not
small is walked first, without its contents: what stands in one piece is skipped, and the walk ends where it
is too much. The prices are what walking, parsing and looking at it took here, per piece.
"""

from __future__ import annotations

import math
import zlib
from functools import cache

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from wattserve_server.errors import InvalidRequest

SMALL_BYTES = 128 * 1024  # which need no check: whatever they are made of, reading takes 20 ms and 12 MB

LIMIT_NS = 40_000_000
PART_NS = 2000  # a field of any kind: a message, a text, a number that stands alone
WHOLE_NUMBER_NS = 100  # of a list of them
REAL_NUMBER_NS = 15

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_REAL_BYTES = {
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
}
_ONE_PIECE = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)

_Inside = dict[int, Descriptor | int]

# How what was compressed begins: by gzip, with what begins no message; by deflate with a field 15, which no
# request has, and of which the second byte is one of these.
PACKED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_EITHER = 32 + zlib.MAX_WBITS


def unpacked(data: bytes, most_bytes: float) -> bytes:
    """A message that begins as one of `PACKED`, as it was before its caller compressed it. gRPC would make
    gigabytes of a few megabytes, of whoever sends them. Raises InvalidRequest for more than `most_bytes`.
    What was not compressed is left to the parser."""
    unpacking = zlib.decompressobj(_EITHER)
    try:
        plain = unpacking.decompress(data, 0 if math.isinf(most_bytes) else int(most_bytes) + 1)
    except zlib.error:
        return data
    if len(plain) > most_bytes:
        raise InvalidRequest(
            f"a message has at most {most_bytes} bytes; these {len(data)} are more once they are decompressed"
        )
    return plain if unpacking.eof and not unpacking.unused_data else data


def check_weight(data: bytes, kind: Descriptor) -> None:
    """Raises InvalidRequest for what would take too long. What is no message is left to the parser."""
    if _weight_ns(data, kind) > LIMIT_NS:
        raise InvalidRequest(
            f"these {len(data)} bytes have too many parts to be read at once: a message holds up to "
            f"{LIMIT_NS // PART_NS} texts, tensors, parameters and the like, and "
            f"{LIMIT_NS // WHOLE_NUMBER_NS} whole numbers; send fewer at once, and tensors as raw bytes"
        )


def _weight_ns(data: bytes, kind: Descriptor) -> int:
    """Up to where it is too much."""
    weight_ns, parts = 0, [(0, len(data), _inside(kind))]
    while parts:
        position, end, inside = parts.pop()
        while position < end:
            weight_ns += PART_NS
            if weight_ns > LIMIT_NS:
                return weight_ns
            tag = data[position]
            position += 1
            if tag > 0x7F:
                tag, position = _varint(data, position - 1)
            wire_type = tag & 7
            if wire_type == _BYTES:
                length, begin = _varint(data, position)
                position = begin + length
                held = inside.get(tag >> 3)
                if held is None:
                    continue
                if isinstance(held, Descriptor):
                    if length:
                        parts.append((begin, min(position, end), _inside(held)))
                elif held:
                    weight_ns += length // held * REAL_NUMBER_NS
                else:
                    numbers = np.frombuffer(data, np.uint8, max(0, min(length, len(data) - begin)), begin)
                    weight_ns += int((numbers < 0x80).sum()) * WHOLE_NUMBER_NS
            elif wire_type == _VARINT:
                _, position = _varint(data, position)
            elif wire_type in (_FIXED64, _FIXED32):
                position += 8 if wire_type == _FIXED64 else 4
    return weight_ns


@cache
def _inside(kind: Descriptor) -> _Inside:
    """What the fields hold that do not stand in one piece, by their number: messages of a kind, real numbers
    of so many bytes, or, 0, whole numbers."""
    return {
        field.number: field.message_type or _REAL_BYTES.get(field.type, 0)
        for field in kind.fields
        if field.type not in _ONE_PIECE
    }


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number that begins there, and where it ends; of bytes that hold none, whatever."""
    value = shift = 0
    for at, byte in enumerate(data[position : position + 10], position + 1):
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
        shift += 7
    return 0, len(data)
