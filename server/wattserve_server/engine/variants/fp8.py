"""fp8 (W8A8, dynamic): e4m3 weights per output channel, e4m3 activations per token, products by
`torch._scaled_mm`, everything else in bf16.

A token's scale depends on that token alone, so an answer does not depend on its batch mates.
"""

from __future__ import annotations

import torch

from wattserve_server.engine.variants.hardware import fp8_support
from wattserve_server.engine.variants.linears import QuantisedLinear, convert_linears
from wattserve_server.engine.variants.port import Built, Kind, Materials

_E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(_E4M3).max
_MULTIPLE = 16  # torch._scaled_mm wants dimensions that are multiples of 16
_TINY = 1e-12  # keeps a row of zeros from a division by zero


def quantise_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, in] -> e4m3 [rows, in] and fp32 scales [rows, 1]: a row's largest magnitude becomes 448."""
    scale = rows.abs().amax(dim=1, keepdim=True).float().clamp(min=_TINY) / LARGEST
    return (rows / scale).to(_E4M3), scale


class Fp8Linear(QuantisedLinear):
    """With e4m3 operands; the product comes out in bf16."""

    weight_dtype = _E4M3
    bias_dtype = torch.bfloat16

    @staticmethod
    def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels, scale = quantise_rows(weight)
        return levels, scale.squeeze(1)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        levels, scales = quantise_rows(rows)
        return torch._scaled_mm(
            levels,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.weight_scale[None, :],
            bias=self.bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        ).to(rows.dtype)


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
