"""llm-int8: int8 but for outliers (Dettmers et al. 2022, "LLM.int8()": a threshold of 6.0).

An input above the threshold is multiplied in fp16, by the original weights; the rest of its token goes the
way of int8, by a scale that the outliers have no part in. The paper chooses whole feature columns of a batch,
so that an answer depends on its batch mates. Here each token chooses for itself.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn

from wattserve_server.engine.variants.hardware import own_int8_support, with_kernels
from wattserve_server.engine.variants.int8 import (
    Int8Weights,
    activation_levels,
    to_levels,
    token_peaks,
    token_scales,
)
from wattserve_server.engine.variants.linears import convert_linears, rest_dtype
from wattserve_server.engine.variants.port import Built, Kind, Materials, Support
from wattserve_server.errors import ConfigError

THRESHOLD = 6.0


class LLMInt8Linear(Int8Weights):
    original: torch.Tensor  # fp16 [in, out], the weights themselves: an outlier's feature is a row

    def __init__(self, in_features: int, out_features: int, has_bias: bool) -> None:
        super().__init__(in_features, out_features, has_bias)
        self.register_buffer("original", torch.empty(in_features, out_features, dtype=torch.float16))

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        layer = super().of(linear)
        layer.original = linear.weight.detach().t().to(torch.float16, memory_format=torch.contiguous_format)
        # Times the 0 of a batch mate it would be NaN.
        if not layer.original.is_meta and not layer.original.isfinite().all():
            raise ConfigError(
                "llm-int8 multiplies outliers in fp16, and a weight of this model is beyond 65504: serve "
                "another variant"
            )
        return layer

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        peaks = token_peaks(rows)
        if bool((peaks > THRESHOLD).any()):
            return self._with_outliers(rows).to(rows.dtype)
        return self._quantised(rows, peaks, rows.dtype)

    def _quantised(self, rows: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        scales = token_scales(peaks, activation_levels(peaks.device))
        return self.of_levels(to_levels(rows / scales), scales, dtype)

    def _with_outliers(self, rows: torch.Tensor) -> torch.Tensor:
        quiet = rows.abs().amax(dim=0) <= THRESHOLD  # False for NaN, beside which there may be outliers
        features = (~quiet).nonzero().squeeze(1)
        loud = rows[:, features]
        outlying = loud.abs() > THRESHOLD
        rest = rows.index_copy(1, features, loud.masked_fill(outlying, 0.0))
        outliers = loud.masked_fill_(~outlying, 0.0).to(torch.float16)
        original = self.original[features]
        if rows.is_cuda:
            exact = (outliers @ original).float()
        else:  # few CPUs multiply fp16; widened, the operands keep their values
            exact = outliers.float() @ original.float()
        return self._quantised(rest, token_peaks(rest), torch.float32).add_(exact)


def _support(device: torch.device) -> Support:
    return with_kernels(own_int8_support(device), "outliers in fp16")


def _build(materials: Materials, device: torch.device) -> Built:
    how = f"weights per channel, activations per token; above {THRESHOLD} in fp16 by the original weights"
    if device.type == "cpu":
        how += ", widened to fp32 for the product"
    return convert_linears(
        materials, device, rest_dtype(device), "llm-int8", how, lambda _, layer: LLMInt8Linear.of(layer)
    )


KIND = Kind("llm-int8", weights="int8 and fp16", support=_support, build=_build)
