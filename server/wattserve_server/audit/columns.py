"""A block of an audit file as bytes that pack well: whole numbers by column, and words.

Of each column comes first the lowest byte of all its numbers, then the next one of all: what is much alike,
as the third byte of every duration of a second is, lies side by side. What all its numbers can be divided by
is told once: most meters count in more than microjoules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_server.energy.reading import Energy

MOST_NUMBERS = 1 << 25  # in a block: beyond what a server writes in a second
_HEAD = 3  # numbers of each column's: how many it has, bytes of each, by what all are divided
_WIDE = 255  # in place of the bytes: some have more than 64 bits, and all are among the words

Unsigned = NDArray[np.uint64]


class Columns:
    """Numbers are taken from a column in the order in which they were put there, words in that of all."""

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers: dict[str, list[int]] = {name: [] for name in names}
        self._words: list[Any] = []

    def put(self, column: str, number: int) -> None:
        self._numbers[column].append(number)

    def say(self, words: Any) -> None:
        """Anything that JSON knows."""
        self._words.append(words)

    def take(self, column: str) -> int:
        """Raises IndexError where nothing is left."""
        return self._numbers[column].pop()

    def hear(self) -> Any:
        """Raises IndexError where nothing is left."""
        return self._words.pop()

    @property
    def is_empty(self) -> bool:
        return not (self._words or any(self._numbers.values()))

    def to_bytes(self) -> bytes:
        heads, all_bytes, wide = [], [], []
        for numbers in self._numbers.values():
            try:
                width, divisor, its_bytes = _packed(numbers)
            except OverflowError:
                width, divisor, its_bytes = _WIDE, 1, b""
                wide.append(numbers)
            heads.append((len(numbers), width, divisor))
            all_bytes.append(its_bytes)
        words = json.dumps([wide, self._words], separators=(",", ":"), default=_plain).encode()
        return b"".join((_by_byte(np.array(heads, np.uint64).T.ravel(), 8), *all_bytes, words))

    @classmethod
    def from_bytes(cls, names: Sequence[str], block: bytes) -> Columns:
        """Raises ValueError, TypeError or OverflowError for what `to_bytes` did not make of such columns."""
        made, wide = cls(names), []
        at = 8 * _HEAD * len(names)
        counts, widths, divisors = _of_bytes(block[:at], _HEAD * len(names), 8).reshape(_HEAD, -1).tolist()
        if sum(counts) > MOST_NUMBERS:
            raise ValueError(f"it holds more than {MOST_NUMBERS} numbers")
        for name, count, width, divisor in zip(names, counts, widths, divisors, strict=True):
            if width == _WIDE:
                wide.append(name)
                continue
            end = at + count * width
            folded = _of_bytes(block[at:end], count, width)
            signed = (folded >> 1).astype(np.int64) ^ -(folded & 1).astype(np.int64)
            made._numbers[name] = (signed * divisor).tolist()
            at = end
        widely, made._words = json.loads(block[at:])
        made._numbers |= zip(wide, widely, strict=True)
        for column in (*made._numbers.values(), made._words):
            column.reverse()
        return made


def _packed(numbers: Sequence[int]) -> tuple[int, int, bytes]:
    """Bytes of each, by what all are divided, and the bytes. Raises OverflowError for more than 64 bits."""
    signed = np.array(numbers, np.int64)
    divisor = abs(int(np.gcd.reduce(signed))) or 1
    signed //= divisor
    folded = ((signed << 1) ^ (signed >> 63)).view(np.uint64)  # what is small of either sign is small
    width = (int(folded.max(initial=0)).bit_length() + 7) // 8
    return width, divisor, _by_byte(folded, width)


def _by_byte(numbers: Unsigned, width: int) -> bytes:
    return numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()


def _of_bytes(told: bytes, count: int, width: int) -> Unsigned:
    """Raises ValueError where there are not so many."""
    numbers = np.zeros((count, 8), np.uint8)
    numbers[:, :width] = np.frombuffer(told, np.uint8).reshape(width, count).T
    return numbers.view("<u8")[:, 0].astype(np.uint64)


def _plain(value: Any) -> int:
    """Of what JSON does not know: an energy in microjoules, or a number of numpy's."""
    return value.uj if isinstance(value, Energy) else int(value)
