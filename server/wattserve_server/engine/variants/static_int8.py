"""int8-static by oneDNN on a CPU: bytes in, and scales, bias and GELU in the same pass.

What several layers take is turned into bytes once, and between two layers with a GELU nothing but bytes is
written. It is for CPUs that multiply bytes natively (VNNI, AMX).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import nn

from wattserve_server.engine.variants.int8 import LEVELS, StaticInt8Linear, ordered
from wattserve_server.engine.variants.linears import exchange, is_gelu

_MIDDLE = 128  # the byte that stands for 0


@dataclass(slots=True)
class Bytes:
    """An input in bytes."""

    levels: torch.Tensor  # uint8 [tokens, in], in which 128 stands for 0
    faults: (
        torch.Tensor | None
    )  # fp32 [tokens, 1]: NaN for tokens that were not finite, else 0; None: all were


def to_bytes(rows: torch.Tensor, scale: float) -> Bytes:
    """[tokens, in] of any float dtype; scale: what a level is worth. What is beyond 127 of them is taken for
    the largest."""
    wide = rows.float()
    levels = torch.add(wide.new_tensor(_MIDDLE + 0.5), wide, alpha=1 / scale)
    levels = levels.clamp_(_MIDDLE - LEVELS, _MIDDLE + LEVELS + 0.5).to(torch.uint8)  # cuts the rest off
    # A byte cannot tell a NaN. The sum does, and also where finite magnitudes add up to more than fp32 holds.
    faults = None if math.isfinite(wide.sum().item()) else wide.sum(dim=1, keepdim=True).mul_(0)
    return Bytes(levels, faults)


class Shared:
    """What a number of layers take one after the other: turned into bytes for the first of them."""

    def __init__(self, scale: float, takers: int) -> None:
        self.scale, self._takers = scale, takers
        self._x: torch.Tensor | None = None
        self._made: Bytes | None = None
        self._left = 0  # takers that have not come for it

    def take(self, x: torch.Tensor) -> Bytes:
        """x: [..., in]"""
        made = self._made
        if made is None or x is not self._x:
            made = self._made = to_bytes(x.reshape(-1, x.shape[-1]), self.scale)
            self._x, self._left = x, self._takers
        self._left -= 1
        if not self._left:
            self._x = self._made = None
        return made


class HandedOn:
    """What a layer with a GELU writes for the one behind it: bytes, and beside them the faults."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.faults: torch.Tensor | None = None

    def take(self, x: torch.Tensor) -> Bytes:
        """x: uint8 [..., in]"""
        return Bytes(x.reshape(-1, x.shape[-1]), self.faults)


class OneDnnStaticLinear(nn.Module):
    """y = x W^T + b of `dtype`; x: [..., in]. With hands_on it writes gelu(y), in bytes."""

    def __init__(self, layer: StaticInt8Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features = layer.weight.shape[0]
        self.scale, self.dtype = float(layer.input_scale), dtype
        self.takes: Shared | HandedOn = Shared(self.scale, 1)
        self.hands_on: HandedOn | None = None
        self.register_buffer("weight", ordered(layer.weight), persistent=False)
        self.register_buffer("weight_scale", layer.weight_scale)
        self.register_buffer("weight_zero", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.register_buffer("bias", layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taken, onward = self.takes.take(x), self.hands_on
        scale, middle, dtype, then, kind = 1.0, 0, self.dtype, "none", ""
        if onward is not None:
            scale, middle, dtype, then, kind = onward.scale, _MIDDLE, torch.uint8, "gelu", "none"
            onward.faults = taken.faults
        y: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            taken.levels, self.scale, _MIDDLE, self.weight, self.weight_scale, self.weight_zero, self.bias,
            scale, middle, dtype, then, [], kind,
        )  # fmt: skip
        if taken.faults is not None and onward is None:
            y = y + taken.faults.to(dtype)
        return y.view(*x.shape[:-1], self.out_features)


@dataclass(slots=True)
class Ways:
    """Who takes what in a batch, as it was seen."""

    # Of each layer, every set of layers in which it was seen to take one and the same tensor.
    company: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    # Of each GELU, every layer before and layer behind it; "" for something else.
    around: dict[str, set[tuple[str, str]]] = field(default_factory=dict)


def watch(module: nn.Module, run: Callable[[], object]) -> Ways:
    """run: one batch through the module."""
    taken: list[tuple[str, torch.Tensor]] = []  # in turn; kept, so that no other tensor is taken for it
    written: dict[int, tuple[str, torch.Tensor]] = {}
    through: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def layer_hook(path: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        def hook(_: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            taken.append((path, args[0]))
            written[id(output)] = path, output

        return hook

    def gelu_hook(path: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        return lambda _, args, output: through.append((path, args[0], output))

    with ExitStack() as hooks:
        for path, part in module.named_modules():
            if isinstance(part, StaticInt8Linear):
                hooks.callback(part.register_forward_hook(layer_hook(path)).remove)
            elif is_gelu(part):
                hooks.callback(part.register_forward_hook(gelu_hook(path)).remove)
        run()
    ways = Ways()
    takers: dict[int, list[str]] = {}
    for path, x in taken:
        takers.setdefault(id(x), []).append(path)
    for group in takers.values():
        for path in group:
            ways.company.setdefault(path, set()).add(tuple(group))
    for path, before, behind in through:
        source, _ = written.get(id(before), ("", None))
        others = takers.get(id(behind), [])
        ways.around.setdefault(path, set()).add((source, others[0] if len(others) == 1 else ""))
    return ways


def use_bytes(module: nn.Module, dtype: torch.dtype, run: Callable[[], object], undo: ExitStack) -> int:
    """Exchange every `StaticInt8Linear` of a module on the CPU. dtype: of what stands between them."""
    ways = watch(module, run)
    layers = {
        path: OneDnnStaticLinear(part, dtype).eval()
        for path, part in module.named_modules()
        if isinstance(part, StaticInt8Linear)
    }
    _share(layers, ways)
    for gelu in _hand_on(layers, ways):
        exchange(module, gelu, nn.Identity(), undo)
    for path, layer in layers.items():
        exchange(module, path, layer, undo)
    return len(layers)


def _share(layers: Mapping[str, OneDnnStaticLinear], ways: Ways) -> None:
    for group in {seen for groups in ways.company.values() for seen in groups}:
        scales = {layers[path].scale for path in group}
        if len(scales) == 1 and all(ways.company[path] == {group} for path in group):
            shared = Shared(scales.pop(), len(group))
            for path in group:
                layers[path].takes = shared


def _hand_on(layers: Mapping[str, OneDnnStaticLinear], ways: Ways) -> list[str]:
    """The GELUs that a layer now computes."""
    done = []
    for gelu, pairs in ways.around.items():
        before, behind = next(iter(pairs))
        if len(pairs) == 1 and before and behind:
            layers[before].hands_on = layers[behind].takes = HandedOn(layers[behind].scale)
            done.append(gelu)
    return done
