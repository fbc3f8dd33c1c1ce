"""int8-simulated: weights rounded to int8 levels per output channel, stored and multiplied in floating point.

What int8 does to accuracy, with neither its speed nor its memory: a simulation, and called so.
"""

from __future__ import annotations

import torch
from torch import nn

from wattserve_server.engine.variants.hardware import fp16_support, fp32_support
from wattserve_server.engine.variants.int8_arithmetic import quantise_weight
from wattserve_server.engine.variants.linears import convert_linears, rest_dtype
from wattserve_server.engine.variants.port import Built, Kind, Materials, Support


def rounded(linear: nn.Linear, dtype: torch.dtype) -> nn.Linear:
    """A linear layer of `dtype` whose weights are int8 levels times their channel's scale."""
    levels, scale = quantise_weight(linear.weight)
    layer = nn.Linear(
        linear.in_features, linear.out_features, linear.bias is not None, device="meta", dtype=dtype
    )
    layer.weight = nn.Parameter((levels * scale[:, None]).to(dtype), requires_grad=False)
    if linear.bias is not None:
        layer.bias = nn.Parameter(linear.bias.detach().to(dtype, copy=True), requires_grad=False)
    return layer


def _support(device: torch.device) -> Support:
    return fp16_support(device) if device.type == "cuda" else fp32_support(device)


def _build(materials: Materials, device: torch.device) -> Built:
    dtype = rest_dtype(device)
    how = "weights rounded to int8 levels per channel, activations not; no int8 product"
    return convert_linears(
        materials, device, dtype, "int8-simulated", how, lambda _, layer: rounded(layer, dtype)
    )


KIND = Kind(
    "int8-simulated",
    weights="floating point, rounded to int8 levels",
    support=_support,
    build=_build,
    proxy="int8 weights simulated: rounded to int8 levels, stored and multiplied in floating point",
)
