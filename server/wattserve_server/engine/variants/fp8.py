"""fp8 (W8A8, dynamic): e4m3 weights per output channel, e4m3 activations per token, products by
`torch._scaled_mm`, everything else in bf16.

A token's scale depends on that token alone, so an answer does not depend on its batch mates.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn

from wattserve_server.engine.variants.hardware import fp8_support
from wattserve_server.engine.variants.linears import convert_linears
from wattserve_server.engine.variants.port import Built, Kind, Materials

_E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(_E4M3).max
_MULTIPLE = 16  # torch._scaled_mm wants dimensions that are multiples of 16
_TINY = 1e-12  # keeps a row of zeros from a division by zero


def quantise_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, in] -> e4m3 [rows, in] and fp32 scales [rows, 1]: a row's largest magnitude becomes 448."""
    scale = rows.abs().amax(dim=1, keepdim=True).float().clamp(min=_TINY) / LARGEST
    return (rows / scale).to(_E4M3), scale


class Fp8Linear(nn.Module):
    """y = x W^T + b with e4m3 operands; x: [..., in] of any float dtype; the product comes out in bf16.

    Made empty, to be filled by load_state_dict; `of` makes one of a linear layer.
    """

    weight: torch.Tensor
    weight_scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, in_features: int, out_features: int, has_bias: bool) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(out_features, in_features, dtype=_E4M3))
        self.register_buffer("weight_scale", torch.empty(out_features))
        self.register_buffer("bias", torch.empty(out_features, dtype=torch.bfloat16) if has_bias else None)

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Of an fp32 layer on the CPU."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None)
        layer.weight, scale = quantise_rows(linear.weight.detach().float())
        layer.weight_scale = scale.squeeze(1)
        if linear.bias is not None:
            layer.bias = linear.bias.detach().to(torch.bfloat16)
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, scales = quantise_rows(x.reshape(-1, x.shape[-1]))
        result = torch._scaled_mm(
            rows,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.weight_scale[None, :],
            bias=self.bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return result.to(x.dtype).reshape(*x.shape[:-1], -1)


def _build(materials: Materials, device: torch.device) -> Built:
    return convert_linears(
        materials,
        device,
        torch.bfloat16,
        "fp8",
        "e4m3 weights per channel, e4m3 activations per token",
        lambda _, layer: Fp8Linear.of(layer),
        multiple=_MULTIPLE,
    )


KIND = Kind("fp8", weights="fp8", support=fp8_support, build=_build)
