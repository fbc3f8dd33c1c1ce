"""int8 (W8A8, dynamic): weights quantised per output channel, activations per token at run time, and an
integer matrix product between them.

A token's scale depends on that token alone, so an answer does not depend on its batch mates.
"""

from __future__ import annotations

import torch

from wattserve_server.engine.variants.hardware import int8_support
from wattserve_server.engine.variants.int8_arithmetic import (
    Int8Weights,
    integer_product,
    quantise_tokens,
    scale_back,
)
from wattserve_server.engine.variants.linears import convert_linears, rest_dtype
from wattserve_server.engine.variants.port import Built, Kind, Materials


class Int8Linear(Int8Weights):
    """y = x W^T + b with int8 operands and int32 accumulation; x: [..., in] of any float dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels, scales = quantise_tokens(x.reshape(-1, x.shape[-1]))
        product = integer_product(levels, self.weight)
        result = scale_back(product, scales, self.weight_scale, self.bias, x.dtype)
        return result.reshape(*x.shape[:-1], -1)


def _build(materials: Materials, device: torch.device) -> Built:
    how = "weights per channel, activations per token"
    return convert_linears(
        materials, device, rest_dtype(device), "int8", how, lambda _, layer: Int8Linear.of(layer)
    )


KIND = Kind("int8", weights="int8", support=int8_support, build=_build)
