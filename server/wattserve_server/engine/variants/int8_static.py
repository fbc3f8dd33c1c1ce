"""int8-static (W8A8, static): weights quantised per output channel, activations by one scale per layer that
was measured beforehand (see activations.py), and an integer matrix product between them.

Inputs beyond the scale's range saturate: they are taken for the largest level. Infinity and NaN do not: they
are no large inputs but a fault, and their token's answer is NaN.
"""

from __future__ import annotations

import torch
from torch import nn

from wattserve_server.engine.variants.hardware import int8_support
from wattserve_server.engine.variants.int8_arithmetic import (
    LEVELS,
    Int8Weights,
    integer_product,
    scale_back,
    to_levels,
)
from wattserve_server.engine.variants.linears import convert_linears, rest_dtype
from wattserve_server.engine.variants.port import ActivationScales, Built, Kind, Materials
from wattserve_server.errors import ConfigError


class StaticInt8Linear(Int8Weights):
    """y = x W^T + b with int8 operands and int32 accumulation; x: [..., in] of any float dtype.

    input_scale: fp32 [], what one level of the input is worth.
    """

    input_scale: torch.Tensor

    def __init__(self, in_features: int, out_features: int, has_bias: bool) -> None:
        super().__init__(in_features, out_features, has_bias)
        self.register_buffer("input_scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()
        levels = to_levels((rows / self.input_scale).clamp_(-LEVELS, LEVELS))
        product = integer_product(levels, self.weight)
        result = scale_back(product, self._row_scales(rows), self.weight_scale, self.bias, x.dtype)
        return result.reshape(*x.shape[:-1], -1)

    def _row_scales(self, rows: torch.Tensor) -> torch.Tensor:
        """fp32 [tokens, in] -> [tokens, 1]: the input's scale, but NaN for rows that are not finite, which
        their levels no longer tell."""
        # A sum is the cheapest way to look at all of a row. It is itself beyond fp32 where the magnitudes add
        # up to more than 1e38, which no norm (it squares them) survives in fp32 either.
        return rows.sum(dim=1, keepdim=True).mul_(0).add_(self.input_scale)


def _build(materials: Materials, device: torch.device) -> Built:
    measured = materials.activation_scales
    if measured is None:
        raise ConfigError("int8-static needs activation scales: give it --calibration DIR")

    def make(path: str, linear: nn.Linear) -> nn.Module:
        layer = StaticInt8Linear.of(linear)
        layer.input_scale.fill_(_scale_of(measured, path))
        return layer

    how = f"weights per channel, activations by one scale per layer from {measured.origin}"
    return convert_linears(materials, device, rest_dtype(device), "int8-static", how, make)


def _scale_of(measured: ActivationScales, path: str) -> float:
    scale = measured.scales.get(path)
    if scale is None:
        raise ConfigError(f"int8-static: the activation scales from {measured.origin} lack layer {path!r}")
    if not scale > 0:
        raise ConfigError(
            f"int8-static: the activation scale of layer {path!r} from {measured.origin} is {scale}: it must "
            "be above 0"
        )
    return scale


KIND = Kind("int8-static", weights="int8", support=int8_support, build=_build, needs_calibration=True)
