"""In what dtype a variant's converted layers store their weights: products do not show it, for weights may be
widened ahead of them.
"""

from __future__ import annotations

import torch
from torch import nn

from wattserve_server.engine.variants.port import Built, Kind
from wattserve_server.engine.weights import stored_tensors

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
_CONTAINERS = (torch.int32, torch.uint8)
"""What libraries pack several weights in, as GPTQ does its int8."""


def stored_otherwise(kind: Kind, built: Built) -> str:
    """What the converted layers hold instead of what the kind declares, for people. Empty where they hold
    that, or where the kind names no dtype that is known here: weights rounded to levels and stored in
    floating point, or packed by another library in fewer than 8 bits."""
    names = kind.weights.split(" and ")
    if not set(names) <= _DTYPES.keys():
        return ""
    wanted = {_DTYPES[name] for name in names}
    parts = dict(built.module.named_modules())
    held = {path: stored_in(parts[path]) if path in parts else set() for path in built.converted}
    wrong = {path: found for path, found in held.items() if found != wanted}
    if not wrong:
        return ""
    path, found = next(iter(wrong.items()))
    words = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found))
    return (
        f"{len(wrong)} of its {len(held)} converted layers, such as {path}, hold their weights in "
        f"{words or 'nothing'}, not in {kind.weights} as declared"
    )


def stored_in(layer: nn.Module) -> set[torch.dtype]:
    """The dtypes of a linear layer's weights: of the tensors in it that have the most numbers, however many
    copies it holds. int8 for weights of 8 bits that are packed in a wider dtype."""
    tensors = list(stored_tensors((*layer.parameters(), *layer.buffers())))
    most = max((tensor.numel() for tensor in tensors), default=0)
    return {_unpacked(tensor, layer) for tensor in tensors if tensor.numel() == most}


def _unpacked(tensor: torch.Tensor, layer: nn.Module) -> torch.dtype:
    weights = getattr(layer, "in_features", 0) * getattr(layer, "out_features", 0)
    if tensor.dtype in _CONTAINERS and tensor.numel() * tensor.element_size() == weights:
        return torch.int8
    return tensor.dtype
