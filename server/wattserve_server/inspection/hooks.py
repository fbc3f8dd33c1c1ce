"""Watching a module's layers at work: which layers, and which rows of their tensors are real tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

Seen = Callable[[str, torch.Tensor], None]
"""Of a layer's path and a tensor; called once for every time that the layer runs."""


def layers_of(module: nn.Module) -> dict[str, str]:
    """What is watched, by path, in the model's order: ``linear``, ``conv``, or ``block`` for a member of a
    list of larger parts, which is what a transformer's layers are."""
    found: dict[str, str] = {}
    for path, part in module.named_modules():
        if is_linear(part):
            found[path] = "linear"
        elif isinstance(part, nn.modules.conv._ConvNd):
            found[path] = "conv"
        elif _is_block(module, path, part):
            found[path] = "block"
    return found


def is_linear(part: nn.Module) -> bool:
    """Also transformers' Conv1D, which is a linear layer with its weight transposed."""
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"


def _is_block(module: nn.Module, path: str, part: nn.Module) -> bool:
    above, _, _ = path.rpartition(".")
    in_a_list = bool(path) and isinstance(module.get_submodule(above), nn.ModuleList)
    return in_a_list and next(part.children(), None) is not None


@contextmanager
def watching(
    module: nn.Module, paths: Iterable[str], seen: Seen, *, inputs: bool = False
) -> Iterator[list[str]]:
    """Calls `seen` with each output of the layers (or their first input), on the host as fp32. Gives the
    paths at which the module has nothing."""
    handles, missing = [], []
    for path in paths:
        try:
            part = module.get_submodule(path)
        except AttributeError:
            missing.append(path)
            continue
        handles.append(_watch(part, path, seen, inputs))
    try:
        yield missing
    finally:
        for handle in handles:
            handle.remove()


def _watch(part: nn.Module, path: str, seen: Seen, inputs: bool) -> Any:
    def after(_: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        value = arguments[0] if inputs else output
        while isinstance(value, (tuple, list)):
            value = value[0]
        if isinstance(value, torch.Tensor):
            seen(path, value.detach().float().cpu())

    return part.register_forward_hook(after)


def real_rows(tensor: torch.Tensor, mask: torch.Tensor | None, kind: str = "linear") -> torch.Tensor:
    """[vectors, features]: a layer's tensor without the vectors that belong to padding.

    mask: [sequences, tokens], ones for real tokens; None where nothing is padded. A tensor without a token
    dimension, such as that of a classifier's head, is real as a whole.
    """
    if kind == "conv":
        return tensor.movedim(1, -1).reshape(-1, tensor.shape[1])
    if mask is not None:
        real = mask.bool().cpu()
        if tensor.ndim >= 3 and tensor.shape[:2] == real.shape:
            return tensor[real].reshape(-1, tensor.shape[-1])
        if tensor.ndim == 2 and tensor.shape[0] == real.numel():  # packed: one row per token
            return tensor[real.reshape(-1)]
    return tensor.reshape(-1, tensor.shape[-1])
