"""The kinds whose weights alone are quantised: products run in the dtype of the activations.

They save memory, and with it time where reading the weights is what takes it: in decoding, a few rows at a
time. There a CPU's weights are widened inside the product, in registers. For the many rows of a prompt that
is slower than to widen them once.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from wattserve_server.engine.variants.hardware import bf16_support, fp16_support, fp32_support, with_kernels
from wattserve_server.engine.variants.int8 import Int8Weights, scale_back
from wattserve_server.engine.variants.linears import QuantisedLinear, convert_linears
from wattserve_server.engine.variants.phase import decoding_rows
from wattserve_server.engine.variants.port import OPERANDS, Built, Kind, Materials, Support

# -- int8-weight-only (W8A16)

# Of the inputs of torch's product of packed int8. With AVX-512 it reads so many weights at once from where it
# takes for granted that they are aligned; where they are not, it ends the process.
_PACKED_MULTIPLE = 16


class WeightOnlyInt8Linear(Int8Weights):
    """In decoding, on a CPU and with bf16 activations, weights are read as they are stored; else they are
    widened for every product."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        packed = min(decoding_rows(), len(rows)) if self._reads_packed(rows) else 0
        if not packed:
            return self._widened(rows)
        if packed == len(rows):
            return self._packed(rows)
        return torch.cat([self._packed(rows[:packed]), self._widened(rows[packed:])])

    def _reads_packed(self, rows: torch.Tensor) -> bool:
        is_fast = rows.dtype == torch.bfloat16 and rows.device.type == "cpu"
        return is_fast and not rows.shape[1] % _PACKED_MULTIPLE

    def _packed(self, rows: torch.Tensor) -> torch.Tensor:
        # Scaled afterwards, in fp32, as what is widened is: the same weights in both phases.
        ones = torch.ones(len(self.weight), dtype=rows.dtype)
        self.weight = _aligned(self.weight)  # it may lie anywhere in the file that it came from
        rows = _aligned(rows.contiguous())
        product: torch.Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.weight, ones)
        return scale_back(product, None, self.weight_scale, self.bias, rows.dtype)

    def _widened(self, rows: torch.Tensor) -> torch.Tensor:
        dtype = rows.dtype
        if dtype == torch.float16:  # sums of whole levels would leave fp16's range: scale the weights first
            widened = torch.empty_like(self.weight, dtype=dtype)
            weight = torch.mul(self.weight, self.weight_scale[:, None], out=widened)
            return nn.functional.linear(rows, weight, None if self.bias is None else self.bias.to(dtype))
        product = nn.functional.linear(rows, self.weight.to(dtype))  # whole levels are exact even in bf16
        return scale_back(product, None, self.weight_scale, self.bias, dtype)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if tensor.data_ptr() % (_PACKED_MULTIPLE * tensor.itemsize) else tensor


def _widened_support(device: torch.device) -> Support:
    """Everywhere in what the device multiplies best: fp16 on a GPU, bf16 or else fp32 on a CPU."""
    support = fp16_support(device) if device.type == "cuda" else bf16_support(device)
    if device.type == "cpu" and not support.native:
        support = fp32_support(device)
    return with_kernels(support, "weights widened from int8")


def _build_int8(materials: Materials, device: torch.device) -> Built:
    name = _widened_support(device).dtype
    how = f"weights per channel, widened to {name} for every product"
    return convert_linears(
        materials,
        device,
        OPERANDS[name],
        "int8-weight-only",
        how,
        lambda _, layer: WeightOnlyInt8Linear.of(layer),
    )


INT8_WEIGHT_ONLY = Kind("int8-weight-only", weights="int8", support=_widened_support, build=_build_int8)


# -- int4-weight-only (W4A16, in groups)

GROUP = 32  # inputs that share a scale and a zero
_LEVELS = 15
_MIDDLE = 8  # the level that stands for a group's zero
_BLOCK = 64  # outputs that torch's kernels for AVX-512 read together


class WeightOnlyInt4Linear(QuantisedLinear):
    """A weight is one of 16 levels between the least and the largest of its group. It is widened inside the
    product in both phases: widening all of a layer once was measured to take longer, for prompts of 512
    tokens too."""

    weight_dtype = torch.uint8
    bias_dtype = torch.bfloat16
    weight: torch.Tensor  # [outputs in whole blocks, in / 2], as `packed` lays them
    weight_scale: (
        torch.Tensor
    )  # bf16 [in / GROUP, outputs in whole blocks, 2]: what a level is worth, the zero

    def __init__(self, in_features: int, out_features: int, has_bias: bool) -> None:
        super().__init__(in_features, out_features, has_bias)
        outputs = -(-out_features // _BLOCK) * _BLOCK
        self.register_buffer("weight", torch.empty(outputs, in_features // 2, dtype=torch.uint8))
        scales = torch.empty(in_features // GROUP, outputs, 2, dtype=torch.bfloat16)
        self.register_buffer("weight_scale", scales)

    @staticmethod
    def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels, scales = grouped_levels(nn.functional.pad(weight, (0, 0, 0, -len(weight) % _BLOCK)))
        return packed(levels), scales

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        rows_bf16 = rows.bfloat16().contiguous()
        wide: torch.Tensor
        if _reads_packed_int4(rows.device):
            wide = torch.ops.aten._weight_int4pack_mm_for_cpu(
                rows_bf16, self.weight, GROUP, self.weight_scale
            )
        else:
            wide = nn.functional.linear(rows_bf16, widened(self.weight, self.weight_scale))
        result = wide[:, : self.out_features]
        return (result if self.bias is None else result + self.bias).to(rows.dtype)


def grouped_levels(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 [out, in] -> uint8 [out, in] and bf16 [in / GROUP, out, 2]: what a level of a group is worth, and
    what its middle level stands for."""
    groups = weight.unflatten(1, (-1, GROUP))
    least, largest = groups.amin(dim=2), groups.amax(dim=2)
    worth = ((largest - least) / _LEVELS).bfloat16()
    zero = (least + worth.float() * _MIDDLE).bfloat16()
    step = torch.where(worth == 0, 1.0, worth.float())[..., None]  # of a group of one value: its zero
    levels = torch.round((groups - zero.float()[..., None]) / step) + _MIDDLE
    scales = torch.stack([worth.t(), zero.t()], dim=2).contiguous()
    return levels.clamp_(0, _LEVELS).to(torch.uint8).flatten(1), scales


def packed(levels: torch.Tensor) -> torch.Tensor:
    """uint8 [out, in] of 4 bits -> uint8 [out, in / 2], as torch's kernels for AVX-512 read it: blocks of 64
    outputs, in each of them input by input, and in a byte the output of the block's first half below that of
    its second."""
    outputs, inputs = levels.shape
    blocks = levels.view(outputs // _BLOCK, 2, _BLOCK // 2, inputs)
    pairs = blocks[:, 0] | (blocks[:, 1] << 4)
    return pairs.transpose(1, 2).contiguous().view(outputs, inputs // 2)


def widened(packed_levels: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The bf16 [out, in] that `packed` levels stand for, with the scales of `grouped_levels`."""
    outputs, half = packed_levels.shape
    pairs = packed_levels.view(outputs // _BLOCK, 2 * half, _BLOCK // 2).transpose(1, 2)
    levels = torch.stack([pairs & 15, pairs >> 4], dim=1).reshape(outputs, -1, GROUP)
    worth, zero = scales.float().permute(2, 1, 0)[..., None]
    weight: torch.Tensor = ((levels.float() - _MIDDLE) * worth + zero).bfloat16()
    return weight.flatten(1)


def _reads_packed_int4(device: torch.device) -> bool:
    """Whether torch's product reads weights as `packed` lays them: its kernels for other CPUs do not."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _int4_support(device: torch.device) -> Support:
    if device.type != "cpu":
        return Support(False, "its products are made for CPUs so far")
    support = bf16_support(device)
    if support.native and not _reads_packed_int4(device):
        return Support(False, "torch was told not to use AVX-512, for which its weights are laid out")
    return replace(support, kernels="bf16 x int4 products (AVX512)") if support.native else support


def _build_int4(materials: Materials, device: torch.device) -> Built:
    how = f"weights in groups of {GROUP} inputs, widened to bf16 in every product"
    return convert_linears(
        materials,
        device,
        torch.bfloat16,
        "int4-weight-only",
        how,
        lambda _, layer: WeightOnlyInt4Linear.of(layer),
        multiple=GROUP,
    )


INT4_WEIGHT_ONLY = Kind(
    "int4-weight-only", weights="int4", support=_int4_support, build=_build_int4, gains_by_decoding=True
)
