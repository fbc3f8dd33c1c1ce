"""Bytes that are nearly messages, or never were: cut short, bits flipped, lengths that lie."""

from __future__ import annotations

from hypothesis import strategies as st

_STRANGE = (
    b"",
    b"\0",
    b"\x08",  # a key without its value
    b"\x80" * 11,  # a varint that does not end
    b"\xff" * 10 + b"\x01",
    b"\x0a\xff\xff\xff\xff\x0f",  # four gigabytes to come
    b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x0a\x02\xc3\x28",  # a string that is not UTF-8
    b"\x12\x03\xed\xa0\x80",  # a lone surrogate
    b"\x0a\x04\xf0\x28\x8c\xbc",
    b"\x0b" * 200,  # groups that open and never close
    b"\x0c",  # a group that closes and never opened
    b"\x0f",  # a wire type that does not exist
    b"\x00\x01",  # field number 0
)


def _nested(depth: int, key: bytes) -> bytes:
    """A message in a message in a message."""
    data = b""
    for _ in range(depth):
        data = key + _varint(len(data)) + data
    return data


def _varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes((value & 127 | 128,))
        value >>= 7
    return data + bytes((value,))


strange = st.one_of(
    st.sampled_from(_STRANGE),
    st.builds(
        _nested, st.sampled_from((20, 99, 101, 2000)), st.sampled_from((b"\x0a", b"\x22", b"\x2a", b"\x62"))
    ),
    st.builds(lambda depth: b"\x0b" * depth + b"\x0c" * depth, st.sampled_from((50, 101, 5000))),
    st.binary(max_size=64),
)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """A valid message after an accident."""
    data = bytearray(draw(whole)[:100_000])
    how = draw(st.sampled_from(("cut", "flip", "flip", "overwrite", "insert", "remove", "twice", "swap")))
    if not data or how == "twice":
        return bytes(data + data[: draw(st.integers(0, len(data)))])
    at = draw(st.integers(0, len(data) - 1))
    if how == "cut":
        del data[at:]
    elif how == "flip":
        for _ in range(draw(st.integers(1, 4))):
            bit = draw(st.integers(0, min(len(data), 400) * 8 - 1))
            data[bit // 8] ^= 1 << bit % 8
    elif how == "overwrite":  # often a length, or a letter of a string
        data[at] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xC3, 0xFF)))
    elif how == "insert":
        data[at:at] = draw(strange)
    elif how == "remove":
        del data[at : at + draw(st.integers(1, 8))]
    else:
        other = draw(st.integers(0, len(data) - 1))
        data[at], data[other] = data[other], data[at]
    return bytes(data)


def raw(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(damaged(whole), damaged(whole), damaged(whole), strange)
