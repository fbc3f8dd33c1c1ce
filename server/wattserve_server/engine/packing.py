"""Packing: several sequences in one row of a batch, so that hardly a token is computed for nothing. Pure.

Linear layers do not care where a token stands; attention is kept within each sequence by a mask. What is left
of padding is the end of each row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEP = 4
"""Rows are as long as a multiple of this, so that fewer shapes are met."""

WORTH = 0.98
"""Packing is worth its copies where it computes at most this part of the padded tokens."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each sequence of a padded batch [sequences, longest] lies in packed rows [rows, length].

    owners: [rows, length], the sequence that each token belongs to; -1 at the ends of rows. gather:
    [rows * length], for each of them its token of the padded batch, counted row by row; 0 where there is
    none. scatter: [sequences, longest], the way back.
    """

    rows: int
    length: int
    owners: NDArray[np.int64]
    gather: NDArray[np.int64]
    scatter: NDArray[np.int64]


def pack(lengths: Sequence[int], width: int, limit: int) -> Layout | None:
    """The cheapest rows for sequences of these lengths; None where padding costs no more.

    width: the size of a hidden state. A token's attention over a row of n tokens costs about n / width of the
    rest of its way through a layer. limit: the longest sequence that the model takes, and so the longest row.
    """
    longest = max(lengths)
    descending = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    best: tuple[float, int, list[tuple[int, int]]] | None = None
    first = min(-(-longest // STEP) * STEP, limit)
    for length in range(first, min(2 * first, limit) + 1, STEP):
        if best is not None and sum(lengths) * (1 + length / width) >= best[0]:
            break  # not even without a tail
        places, rows = _fill(lengths, descending, length)
        cost = rows * length * (1 + length / width)
        if best is None or cost < best[0]:
            best = cost, length, places
    assert best is not None
    _, length, places = best
    rows = 1 + max(row for row, _ in places)
    if rows * length > WORTH * len(lengths) * longest:
        return None
    return _layout(lengths, places, rows, length, longest)


def _fill(
    lengths: Sequence[int], descending: Sequence[int], length: int
) -> tuple[list[tuple[int, int]], int]:
    """Best fit, the longest first: (row, offset) of each sequence, and how many rows."""
    places = [(0, 0)] * len(lengths)
    rows = 0
    room: list[tuple[int, int]] = []  # (free tokens, row), the fullest first
    for index in descending:
        at = bisect_left(room, (lengths[index], -1))
        if at == len(room):
            free, row = length, rows
            rows += 1
        else:
            free, row = room.pop(at)
        places[index] = row, length - free
        if free > lengths[index]:
            insort(room, (free - lengths[index], row))
    return places, rows


def _layout(
    lengths: Sequence[int], places: Sequence[tuple[int, int]], rows: int, length: int, longest: int
) -> Layout:
    owners = np.full(rows * length, -1, dtype=np.int64)
    gather = np.zeros(rows * length, dtype=np.int64)
    scatter = np.zeros((len(lengths), longest), dtype=np.int64)
    for index, ((row, offset), tokens) in enumerate(zip(places, lengths, strict=True)):
        begin = row * length + offset
        owners[begin : begin + tokens] = index
        gather[begin : begin + tokens] = np.arange(index * longest, index * longest + tokens)
        scatter[index, :tokens] = np.arange(begin, begin + tokens)
    return Layout(rows, length, owners.reshape(rows, length), gather, scatter)
