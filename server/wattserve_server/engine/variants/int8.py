"""The kinds that multiply in int8, weights quantised per output channel; `llm_int8` and `weight_only` build
upon them.

They share what stands first: symmetric quantisation to 127 levels either side of zero, the integer product
(`torch._int_mm`: VNNI or AMX on a CPU, Tensor Cores on a GPU; oneDNN's with AVX2), and the way back.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from wattserve_server.engine.variants.hardware import (
    bf16_support,
    fp16_support,
    fp32_support,
    int8_sums_saturate,
    int8_support,
    own_int8_support,
)
from wattserve_server.engine.variants.linears import QuantisedLinear, convert_linears, rest_dtype
from wattserve_server.engine.variants.port import OPERANDS, ActivationScales, Built, Kind, Materials, Support
from wattserve_server.errors import ConfigError

LEVELS = 127
_NARROW_LEVELS = 63  # of activations, where sums saturate
_SHIFT = 64  # makes them unsigned, as AVX2 wants one side
_ZERO = torch.zeros(1, dtype=torch.int64)
_CUDA_MIN_ROWS = 17  # torch._int_mm on CUDA wants more than 16 rows
_TINY = 1e-12  # keeps a row of zeros from a division by zero


def quantise_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] -> int8 [out, in] and fp32 scales [out], symmetric, one scale per output channel."""
    weight = weight.detach().float()
    scale = weight.abs().amax(dim=1).clamp(min=_TINY) / LEVELS
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


def token_peaks(rows: torch.Tensor) -> torch.Tensor:
    """[tokens, in] -> [tokens, 1]: the largest magnitude in each row."""
    # Two passes that only read are a third of one that writes magnitudes and one that reads them.
    return torch.maximum(rows.amax(dim=1, keepdim=True), rows.amin(dim=1, keepdim=True).neg_())


def token_scales(peaks: torch.Tensor, levels: int) -> torch.Tensor:
    """`token_peaks` -> fp32 [tokens, 1]: what one of so many levels is worth in each row."""
    return peaks.float().clamp(min=_TINY).mul_(1 / levels)


def activation_levels(device: torch.device) -> int:
    """How many levels an activation has there, either side of zero."""
    return _NARROW_LEVELS if int8_sums_saturate(device) else LEVELS


def to_levels(scaled: torch.Tensor) -> torch.Tensor:
    """fp32 within [-127.5, 127.5] -> int8, halves to even. Overwrites its argument."""
    return scaled.round_().to(torch.int8)


def quantise_tokens(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, in] -> int8 [tokens, in] and fp32 scales [tokens, 1], symmetric, one scale per token."""
    scales = token_scales(token_peaks(rows), activation_levels(rows.device))
    return to_levels(rows / scales), scales


def integer_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int8 [tokens, in] times int8 [out, in], transposed -> int32 [tokens, out], exact."""
    count = rows.shape[0]
    if rows.is_cuda and count < _CUDA_MIN_ROWS:
        rows = nn.functional.pad(rows, (0, 0, 0, _CUDA_MIN_ROWS - count))
    return torch._int_mm(rows, weight.t())[:count]


def ordered(weight: torch.Tensor) -> torch.Tensor:
    """int8 [out, in] as oneDNN reads it, for `ordered_product`."""
    packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight, None)
    return packed


def ordered_product(rows: torch.Tensor, weight: torch.Tensor, channel_scales: torch.Tensor) -> torch.Tensor:
    """int8 [tokens, in] of `_NARROW_LEVELS` times an `ordered` weight, exact in int32, times channel_scales
    -> fp32 [tokens, out]."""
    shifted = rows.add(_SHIFT).view(torch.uint8)
    product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        shifted, 1.0, _SHIFT, weight, channel_scales, _ZERO, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


def scale_back(
    product: torch.Tensor,
    row_scales: torch.Tensor | None,
    channel_scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """product * row_scales * channel_scales + bias, computed in fp32 -> [tokens, out] of `dtype`.

    product: [tokens, out], overwritten if it is fp32. row_scales: fp32, anything that broadcasts to it; None
    for 1. channel_scales, bias: fp32 [out].
    """
    if product.is_cuda:  # as few kernels as can be; a CPU is slow where one of them mixes types
        scaled = product if row_scales is None else product * row_scales
        result = scaled.new_empty(scaled.shape, dtype=dtype)
    else:
        scaled = product.float()
        if row_scales is not None:
            scaled.mul_(row_scales)
        result = scaled
    if bias is None:
        torch.mul(scaled, channel_scales, out=result)
    else:
        torch.addcmul(bias, scaled, channel_scales, out=result)
    return result.to(dtype)


class Int8Weights(QuantisedLinear):
    weight_dtype = torch.int8
    bias_dtype = torch.float32
    quantise = staticmethod(quantise_weight)

    def of_levels(self, levels: torch.Tensor, row_scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """int8 [tokens, in] and what a level is worth in each row, fp32 [tokens, 1] -> [tokens, out]."""
        if not self.weight.is_mkldnn:
            product = integer_product(levels, self.weight)
            return scale_back(product, row_scales, self.weight_scale, self.bias, dtype)
        scaled = ordered_product(levels, self.weight, self.weight_scale)
        if self.bias is None:
            return scaled.mul_(row_scales).to(dtype)
        return torch.addcmul(self.bias, scaled, row_scales).to(dtype)


# -- int8 (W8A8, dynamic)


class Int8Linear(Int8Weights):
    """Activations are quantised per token at run time: a token's scale depends on that token alone, so an
    answer does not depend on its batch mates."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        levels, scales = quantise_tokens(rows)
        return self.of_levels(levels, scales, rows.dtype)


def _build_dynamic(materials: Materials, device: torch.device) -> Built:
    how = "weights per channel, activations per token"
    return convert_linears(
        materials, device, rest_dtype(device), "int8", how, lambda _, layer: Int8Linear.of(layer)
    )


INT8 = Kind("int8", weights="int8", support=own_int8_support, build=_build_dynamic)


# -- int8-static (W8A8, static)


class StaticInt8Linear(Int8Weights):
    """Activations are quantised by one scale per layer that was measured beforehand (see activations.py).

    Inputs beyond the scale's range saturate: they are taken for the largest level. Infinity and NaN do not:
    they are no large inputs but a fault, and their token's answer is NaN.
    """

    input_scale: torch.Tensor  # fp32 [], what one of 127 levels of the input is worth

    def __init__(self, in_features: int, out_features: int, has_bias: bool) -> None:
        super().__init__(in_features, out_features, has_bias)
        self.register_buffer("input_scale", torch.ones(()))

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        wide, most = rows.float(), activation_levels(rows.device)
        scale = self.input_scale * (LEVELS / most)
        levels = to_levels((wide / scale).clamp_(-most, most))
        return self.of_levels(levels, _row_scales(wide, scale), rows.dtype)


def _row_scales(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp32 [tokens, in] -> [tokens, 1]: the input's scale, but NaN for rows that are not finite, which their
    levels no longer tell."""
    # A sum is the cheapest way to look at all of a row. It is itself beyond fp32 where the magnitudes add up
    # to more than 1e38, which no norm (it squares them) survives in fp32 either.
    return rows.sum(dim=1, keepdim=True).mul_(0).add_(scale)


def _build_static(materials: Materials, device: torch.device) -> Built:
    measured = materials.activation_scales
    if measured is None:
        raise ConfigError("int8-static needs activation scales: give it --calibration DIR")

    def make(path: str, linear: nn.Linear) -> nn.Module:
        layer = StaticInt8Linear.of(linear)
        layer.input_scale.fill_(_scale_of(measured, path))
        return layer

    how = f"weights per channel, activations by one scale per layer from {measured.origin}"
    rest = OPERANDS[_static_support(device).dtype] if device.type == "cpu" else rest_dtype(device)
    return convert_linears(materials, device, rest, "int8-static", how, make)


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


def _static_support(device: torch.device) -> Support:
    """The rest in bf16 on a CPU that has both: between two layers in bytes it is what costs."""
    support = own_int8_support(device)
    if device.type == "cpu" and int8_support(device).native and bf16_support(device).native:
        return replace(support, dtype="bf16")
    return support


INT8_STATIC = Kind(
    "int8-static", weights="int8", support=_static_support, build=_build_static, needs_calibration=True
)


# -- int8-simulated: what int8 does to accuracy, with neither its speed nor its memory


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


def _simulated_support(device: torch.device) -> Support:
    return fp16_support(device) if device.type == "cuda" else fp32_support(device)


def _build_simulated(materials: Materials, device: torch.device) -> Built:
    dtype = rest_dtype(device)
    how = "weights rounded to int8 levels per channel, activations not; no int8 product"
    return convert_linears(
        materials, device, dtype, "int8-simulated", how, lambda _, layer: rounded(layer, dtype)
    )


INT8_SIMULATED = Kind(
    "int8-simulated",
    weights="floating point, rounded to int8 levels",
    support=_simulated_support,
    build=_build_simulated,
    proxy="int8 weights simulated: rounded to int8 levels, stored and multiplied in floating point",
)
