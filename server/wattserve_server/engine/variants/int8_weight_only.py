"""int8-weight-only (W8A16): weights stored in int8 per output channel and widened for every product, which
runs in the dtype of the activations. It saves memory, not arithmetic.
"""

from __future__ import annotations

import torch
from torch import nn

from wattserve_server.engine.variants.hardware import bf16_support, fp16_support, fp32_support
from wattserve_server.engine.variants.int8_arithmetic import Int8Weights, scale_back
from wattserve_server.engine.variants.linears import convert_linears
from wattserve_server.engine.variants.port import Built, Kind, Materials, Support


class WeightOnlyInt8Linear(Int8Weights):
    """y = x W^T + b, the product in x's dtype; x: [..., in]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float16:  # sums of whole levels would leave fp16's range: scale the weights first
            weight = torch.mul(self.weight, self.weight_scale[:, None], out=_empty(self.weight, x.dtype))
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return nn.functional.linear(x, weight, bias)
        rows = x.reshape(-1, x.shape[-1])
        product = nn.functional.linear(rows, self.weight.to(x.dtype))  # whole levels are exact even in bf16
        result = scale_back(product, None, self.weight_scale, self.bias, x.dtype)
        return result.reshape(*x.shape[:-1], -1)


def _empty(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(like, dtype=dtype)


def _support(device: torch.device) -> Support:
    """Everywhere in what the device multiplies best: fp16 on a GPU, bf16 or else fp32 on a CPU."""
    found = fp16_support(device) if device.type == "cuda" else bf16_support(device)
    if device.type == "cpu" and not found.native:
        found = fp32_support(device)
    if not found.native:
        return found
    return Support(
        True, found.why, f"{found.kernels}, weights widened from int8", found.dtype, found.operands
    )


_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _build(materials: Materials, device: torch.device) -> Built:
    name = _support(device).dtype
    how = f"weights per channel, widened to {name} for every product"
    return convert_linears(
        materials,
        device,
        _DTYPES[name],
        "int8-weight-only",
        how,
        lambda _, layer: WeightOnlyInt8Linear.of(layer),
    )


KIND = Kind("int8-weight-only", weights="int8", support=_support, build=_build)
