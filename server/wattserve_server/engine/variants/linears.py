"""What all quantised kinds share: a linear layer with quantised weights, and its way into a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar, Self

import torch
from torch import nn
from transformers.activations import GELUActivation

from wattserve_server.engine.variants.port import Built, Materials
from wattserve_server.errors import ConfigError

# Integer products on a GPU want dimensions that are multiples of 8; what no GPU takes is not converted on a
# CPU either, so that a variant is the same model everywhere.
MULTIPLE = 8

# Takes a layer's path and itself (fp32, on the CPU): makes what computes it in the kind's precision.
MakeLayer = Callable[[str, nn.Linear], nn.Module]


class QuantisedLinear(nn.Module, ABC):
    """y = x W^T + b with weights that are quantised per output channel; x: [..., in] of any float dtype.

    Made empty, to be filled by load_state_dict; `of` makes one of a linear layer.
    """

    weight_dtype: ClassVar[torch.dtype]
    bias_dtype: ClassVar[torch.dtype]
    weight: torch.Tensor
    weight_scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, in_features: int, out_features: int, has_bias: bool) -> None:
        super().__init__()
        self.out_features = out_features
        self.register_buffer("weight", torch.empty(out_features, in_features, dtype=self.weight_dtype))
        self.register_buffer("weight_scale", torch.empty(out_features))
        bias = torch.empty(out_features, dtype=self.bias_dtype) if has_bias else None
        self.register_buffer("bias", bias)

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Of an fp32 layer on the CPU."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None)
        layer.weight, layer.weight_scale = cls.quantise(linear.weight.detach().float())
        if linear.bias is not None:
            layer.bias = linear.bias.detach().to(cls.bias_dtype, copy=True)
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        # A step that only reads parts of prompts wants no logits, and not every kernel multiplies nothing.
        y = self.product(rows) if len(rows) else rows.new_empty(0, self.out_features)
        return y.reshape(*x.shape[:-1], self.out_features)

    @staticmethod
    @abstractmethod
    def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """fp32 [out, in] -> [out, in] and fp32 scales [out]"""

    @abstractmethod
    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """[tokens, in] -> [tokens, out] of the same dtype"""


def convert_linears(
    materials: Materials,
    device: torch.device,
    dtype: torch.dtype,
    kind: str,  # for people, e.g. ``int8``
    how: str,  # as well, e.g. ``weights per channel``
    make: MakeLayer,
    multiple: int = MULTIPLE,
) -> Built:
    """The model with `make`'s layers in place of its linear ones, everything else in `dtype`.

    Raises ConfigError when most of the model's multiplied weights would stay as they are: it would not be
    what its name says.
    """
    converted: list[str] = []
    kept: list[str] = []
    done = linears = 0
    source = materials.weights.module
    fused = _fused_blocks(source)

    def replace(path: str, part: nn.Module) -> nn.Module | None:
        nonlocal done, linears
        if not isinstance(part, nn.Linear):
            if _has_matrix(part):
                kept.append(path or type(part).__name__)
            return None
        linears += 1
        takes = type(part) is nn.Linear and not (part.in_features % multiple or part.out_features % multiple)
        if not takes or path.startswith(fused):
            kept.append(path)
            return None
        converted.append(path)
        done += part.weight.numel()
        return make(path, part)

    module = materials.weights.copy(device, dtype, replace)
    if done * 2 < multiplied_weights(source):
        raise ConfigError(
            f"{kind} would leave most of this model as it is: only {len(converted)} of its layers are "
            "linear layers that the product takes"
        )
    detail = f"{len(converted)} of {linears} linear layers; {how}"
    if kept:
        detail += f"; kept in {str(dtype).removeprefix('torch.')}: {', '.join(kept)}"
    return Built(module.eval(), detail, tuple(converted), tuple(kept))


def _fused_blocks(module: nn.Module) -> tuple[str, ...]:
    """Prefixes of the paths below blocks whose fast path hands their linear layers' weights to one fused
    operator, past whatever stands in the layers' place."""
    blocks = (path for path, part in module.named_modules() if isinstance(part, nn.TransformerEncoderLayer))
    return tuple(f"{path}." if path else "" for path in blocks)


def _has_matrix(part: nn.Module) -> bool:
    """Whether a module itself, rather than those inside it, has weights that may take part in products."""
    if isinstance(part, (nn.Embedding, nn.LayerNorm, nn.RMSNorm)):
        return False
    return any(parameter.ndim > 1 for parameter in part.parameters(recurse=False))


def multiplied_weights(module: nn.Module) -> int:
    """Weights that take part in products: not those that are looked up, nor vectors."""
    looked_up = sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Embedding))
    return sum(tensor.numel() for tensor in module.parameters() if tensor.ndim > 1) - looked_up


def linear_paths(module: nn.Module) -> tuple[str, ...]:
    """The paths of all linear layers."""
    return tuple(path for path, part in module.named_modules() if isinstance(part, nn.Linear))


def rest_dtype(device: torch.device) -> torch.dtype:
    """In which everything but the quantised layers runs, for kinds that leave it open."""
    return torch.float16 if device.type == "cuda" else torch.float32


def is_gelu(module: nn.Module) -> bool:
    """The exact one, torch's or transformers'."""
    if isinstance(module, nn.GELU):
        return module.approximate == "none"
    return isinstance(module, GELUActivation)


def exchange(module: nn.Module, path: str, part: nn.Module, undo: ExitStack) -> None:
    """Put another part in the place of the one at a path, until `undo` is closed."""
    parent_path, _, name = path.rpartition(".")
    parent = module.get_submodule(parent_path)
    undo.callback(setattr, parent, name, module.get_submodule(path))
    setattr(parent, name, part)
