"""The arithmetic that the int8 kinds share: symmetric quantisation to 127 levels either side of zero, the
integer product (`torch._int_mm`: VNNI or AMX on a CPU, Tensor Cores on a GPU), and the way back.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn

LEVELS = 127
_CUDA_MIN_ROWS = 17  # torch._int_mm on CUDA wants more than 16 rows
_TINY = 1e-12  # keeps a row of zeros from a division by zero


def quantise_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] -> int8 [out, in] and fp32 scales [out], symmetric, one scale per output channel."""
    weight = weight.detach().float()
    scale = weight.abs().amax(dim=1).clamp(min=_TINY) / LEVELS
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


def token_peaks(rows: torch.Tensor) -> torch.Tensor:
    """[tokens, in] -> [tokens, 1]: the largest magnitude in each row."""
    return rows.abs().amax(dim=1, keepdim=True)


def token_scales(peaks: torch.Tensor) -> torch.Tensor:
    """`token_peaks` -> fp32 [tokens, 1]: what one level is worth in each row."""
    return peaks.float().clamp(min=_TINY).mul_(1 / LEVELS)


def to_levels(scaled: torch.Tensor) -> torch.Tensor:
    """fp32 within [-127.5, 127.5] -> int8, halves to even. Overwrites its argument."""
    return scaled.round_().to(torch.int8)


def quantise_tokens(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, in] -> int8 [tokens, in] and fp32 scales [tokens, 1], symmetric, one scale per token."""
    scales = token_scales(token_peaks(rows))
    return to_levels(rows / scales), scales


def integer_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int8 [tokens, in] times int8 [out, in], transposed -> int32 [tokens, out], exact."""
    count = rows.shape[0]
    if rows.is_cuda and count < _CUDA_MIN_ROWS:
        rows = nn.functional.pad(rows, (0, 0, 0, _CUDA_MIN_ROWS - count))
    return torch._int_mm(rows, weight.t())[:count]


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


class Int8Weights(nn.Module):
    """A linear layer's weights, quantised per output channel; subclasses compute with them.

    Made empty, to be filled by load_state_dict; `of` makes one of a linear layer.
    """

    weight: torch.Tensor
    weight_scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, in_features: int, out_features: int, has_bias: bool) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(out_features, in_features, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.empty(out_features))
        self.register_buffer("bias", torch.empty(out_features) if has_bias else None)

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Of an fp32 layer on the CPU."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None)
        layer.weight, layer.weight_scale = quantise_weight(linear.weight)
        if linear.bias is not None:
            layer.bias = linear.bias.detach().float().clone()
        return layer
