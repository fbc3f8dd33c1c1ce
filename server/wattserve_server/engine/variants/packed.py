"""A model whose encoder computes packed rows: what goes in is packed, what comes out is unpacked, by hooks.

Embeddings, poolers and heads see the padded batch that they know. The encoder's layers see rows that hold
several sequences, and a mask that keeps each to itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from wattserve_server.engine.packing import Layout, pack


class Packing:
    """Of one module, from now on until `remove`."""

    def __init__(self, encoder: nn.Module, width: int, limit: int) -> None:
        """width, limit: as `pack` has them."""
        self.width = width
        self._limit = limit
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
        return pack(lengths, self.width, self._limit) if len(lengths) > 1 else None

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
