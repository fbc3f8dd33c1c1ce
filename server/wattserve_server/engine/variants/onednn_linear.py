"""A linear layer by oneDNN, its weight in the order in which oneDNN reads it.

torch multiplies fp32 by MKL, which uses half of what some CPUs have (AVX2 where there is AVX-512), and hands
bf16 to oneDNN with a weight that it reorders for every product.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.activations import GELUActivation

_ROWS = 512
"""Tokens that the order is chosen for; any other number works."""

_LEAST = 16
"""Layers with fewer features on either side, such as classifiers, gain nothing, and variants share them."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class OneDnnLinear(nn.Module):
    """y = x W^T + b; x: [..., in]. Of a layer on the CPU. has_gelu: y = gelu(x W^T + b), in the same pass."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.has_gelu = False
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.register_buffer("weight", packed, persistent=False)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, self.in_features)
        then, kind = ("gelu", "none") if self.has_gelu else ("none", "")
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(flat, self.weight, self.bias, then, [], kind)
        return y.view(*x.shape[:-1], self.out_features)


def is_gelu(module: nn.Module) -> bool:
    """The exact one, torch's or transformers'."""
    if isinstance(module, nn.GELU):
        return module.approximate == "none"
    return isinstance(module, GELUActivation)


def takes(layer: nn.Module) -> bool:
    """Whether it can stand in for a layer here."""
    if type(layer) is not nn.Linear or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight = layer.weight
    if min(weight.shape) < _LEAST:
        return False
    return weight.device.type == "cpu" and weight.dtype in _DTYPES and type(weight.data) is torch.Tensor
