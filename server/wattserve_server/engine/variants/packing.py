"""Packing: several sequences in one row of a batch, so that hardly a token is computed for nothing.

Linear layers do not care where a token stands; attention is kept within each sequence by a mask. What is left
of padding is the end of each row. Hooks pack what goes into a model's encoder and unpack what comes out:
embeddings, poolers and heads see the padded batch that they know.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from wattserve_server.engine.policy import fill

STEP = 4  # rows are as long as a multiple of this, so that fewer shapes are met
WORTH = 0.98  # packing is worth its copies where it computes at most this part of the padded tokens


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each sequence of a padded batch [sequences, longest] lies in packed rows [rows, length]."""

    rows: int
    length: int
    # [rows, length], the sequence that each token belongs to; -1 at the ends of rows
    owners: NDArray[np.int64]
    # [rows * length], for each token of a row that of the padded batch, counted row by row; 0 at the ends
    gather: NDArray[np.int64]
    # [sequences, longest], the way back
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
        places, rows = fill(lengths, descending, length)
        cost = rows * length * (1 + length / width)
        if best is None or cost < best[0]:
            best = cost, length, places
    assert best is not None
    _, length, places = best
    rows = 1 + max(row for row, _ in places)
    if rows * length > WORTH * len(lengths) * longest:
        return None
    return _layout(lengths, places, rows, length, longest)


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


class Packing:
    """A module's encoder computes packed rows, from now on until `remove`."""

    def __init__(self, encoder: nn.Module, width: int, limit: int) -> None:  # as `pack` has them
        self.width = width
        self.limit = limit
        self._current: Layout | None = None
        self._names = list(inspect.signature(encoder.forward).parameters)
        self._hooks = (
            encoder.register_forward_pre_hook(self._pack, with_kwargs=True),
            encoder.register_forward_hook(self._unpack),
        )

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def layout(self, lengths: Sequence[int]) -> Layout | None:
        """How to pack sequences of these lengths; None where it does not pay."""
        return pack(lengths, self.width, self.limit) if len(lengths) > 1 else None

    @contextmanager
    def using(self, layout: Layout | None) -> Iterator[None]:
        """What runs in the block is laid out so. One batch at a time."""
        self._current = layout
        try:
            yield
        finally:
            self._current = None

    def _pack(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        layout = self._current
        if layout is None:
            return None
        given = dict(zip(self._names, args, strict=False)) | dict(kwargs)
        hidden: torch.Tensor = given["hidden_states"]
        if tuple(hidden.shape[:2]) != layout.scatter.shape:
            raise RuntimeError(f"the encoder was given {tuple(hidden.shape)}, not the batch as it was padded")
        gather = torch.from_numpy(layout.gather)
        packed = hidden.reshape(-1, hidden.shape[-1]).index_select(0, gather)
        owners = torch.from_numpy(layout.owners)
        apart = owners[:, None, :, None] != owners[:, None, None, :]
        mask = torch.zeros(apart.shape, dtype=hidden.dtype).masked_fill_(apart, -torch.inf)
        given["hidden_states"] = packed.view(layout.rows, layout.length, -1)
        given["attention_mask"] = mask
        return (), given

    def _unpack(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        layout = self._current
        if layout is None:
            return None
        hidden = output[0]
        scatter = torch.from_numpy(layout.scatter.reshape(-1))
        flat = hidden.reshape(-1, hidden.shape[-1]).index_select(0, scatter)
        padded = flat.view(*layout.scatter.shape, hidden.shape[-1])
        if isinstance(output, tuple):
            return (padded, *output[1:])
        output["last_hidden_state"] = padded
        return output


def find_encoder(module: nn.Module) -> nn.Module | None:
    """The outermost part that takes hidden states and a mask through a stack of layers."""
    for part in module.modules():
        names = list(inspect.signature(part.forward).parameters)
        stacks = any(isinstance(child, nn.ModuleList) and len(child) for child in part.children())
        if stacks and names[:1] == ["hidden_states"] and "attention_mask" in names:
            return part
    return None
