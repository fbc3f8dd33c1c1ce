"""Dynamic int8: weights quantised per output channel, activations per token at run time, and an
integer matrix product between them (`torch._int_mm`: VNNI or AMX on a CPU, Tensor Cores on a GPU).

A token's scale depends on that token alone, so an answer does not depend on its batch mates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

_CUDA_MIN_ROWS = 17  # torch._int_mm on CUDA wants more than 16 rows
_CUDA_MULTIPLE = 8  # and dimensions that are multiples of 8


class Int8Linear(nn.Module):
    """y = x W^T + b with int8 operands and int32 accumulation; x: [..., in] of any float dtype."""

    weight: torch.Tensor
    weight_scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        quantised = torch.round(weight / scale[:, None]).to(torch.int8)
        self.register_buffer("weight", quantised)
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(dim=1, keepdim=True).float().clamp_(min=1e-12).mul_(1 / 127)
        quantised = torch.round(rows / scale).to(torch.int8)
        count = quantised.shape[0]
        if quantised.is_cuda and count < _CUDA_MIN_ROWS:
            quantised = nn.functional.pad(quantised, (0, 0, 0, _CUDA_MIN_ROWS - count))
        product = torch._int_mm(quantised, self.weight.t())[:count]
        result = product.float().mul_(scale).mul_(self.weight_scale)
        if self.bias is not None:
            result.add_(self.bias)
        return result.to(x.dtype).reshape(*x.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class Quantised:
    """What `quantise_linears` did: how many layers it replaced, their weights, and which it kept."""

    replaced: int
    parameters: int
    kept: tuple[str, ...]


def quantise_linears(module: nn.Module) -> Quantised:
    """Replace, in place, every linear layer whose shape the integer product takes."""
    replaced = parameters = 0
    kept: list[str] = []
    for path, child in list(module.named_modules()):
        if not isinstance(child, nn.Linear):
            continue
        if (
            type(child) is not nn.Linear
            or child.in_features % _CUDA_MULTIPLE
            or child.out_features % _CUDA_MULTIPLE
        ):
            kept.append(path)
            continue
        parent = module.get_submodule(path.rpartition(".")[0])
        setattr(parent, path.rpartition(".")[2], Int8Linear(child))
        replaced += 1
        parameters += child.weight.numel()
    return Quantised(replaced, parameters, tuple(kept))
