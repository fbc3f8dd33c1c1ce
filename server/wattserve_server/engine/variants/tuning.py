"""Making a variant fast on its device, without changing what it computes.

What is done is tried: a variant that would answer differently, or not at all, is left as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.variants.catalogue import KINDS, Choice
from wattserve_server.engine.variants.hardware import int8_sums_saturate
from wattserve_server.engine.variants.int8 import Int8Linear, StaticInt8Linear, ordered
from wattserve_server.engine.variants.linears import exchange, is_gelu
from wattserve_server.engine.variants.llm_int8 import LLMInt8Linear
from wattserve_server.engine.variants.packing import Packing, find_encoder, pack
from wattserve_server.engine.variants.port import OPERANDS
from wattserve_server.engine.variants.static_int8 import use_bytes
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.engine.weights import tensor_bytes

log = logging.getLogger(__name__)

# Tokens of the sequences that a variant is tried on: they fit into fewer rows.
_LENGTHS = (5, 24, 9, 17)
# How far answers may move, as a part of how they differ from sequence to sequence: of fp32, and of kinds that
# round more than that themselves.
_EXACT, _ROUNDED = 1e-3, 0.1

# A linear layer by oneDNN has its weight in the order in which oneDNN reads it; torch reorders it for every
# product, and multiplies fp32 by MKL, which uses half of what some CPUs have (AVX2 where there is AVX-512).
_ORDERED_FOR = 512  # tokens that the order is chosen for; any other number works
# Layers with fewer on either side, such as classifiers, gain nothing, and variants share them.
_LEAST_FEATURES = 16
_INT8_LAYERS = (Int8Linear, StaticInt8Linear, LLMInt8Linear)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class OneDnnLinear(nn.Module):
    """y = x W^T + b; x: [..., in]. Of a layer on the CPU. has_gelu: y = gelu(x W^T + b), in the same pass."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.has_gelu = False
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ORDERED_FOR)
        self.register_buffer("weight", packed, persistent=False)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, self.in_features)
        then, kind = ("gelu", "none") if self.has_gelu else ("none", "")
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(flat, self.weight, self.bias, then, [], kind)
        return y.view(*x.shape[:-1], self.out_features)


def tune(variant: Variant) -> None:
    """On the thread that will run it. A GPU's variants stay as they are: nothing was measured there."""
    if variant.device.type != "cpu":
        return
    attempts = _Attempts(variant)
    done = []
    count = attempts.make("linear layers by oneDNN", _use_onednn)
    if count:
        done.append(f"{count} linear layers by oneDNN, weights reordered ahead")
        if attempts.make("GELU in linear layers", _use_gelu):
            done[-1] += ", GELU in the same pass"
    if int8_sums_saturate(variant.device):
        count = attempts.make("int8 layers by oneDNN", _use_onednn_int8)
        if count:
            done.append(f"{count} int8 layers by oneDNN, weights reordered ahead")
    else:
        count = attempts.make("int8 layers by oneDNN", _use_bytes)
        if count:
            done.append(f"{count} int8 layers by oneDNN, in bytes from layer to layer")
    if variant.model.task.takes_text and _is_packable(variant.model):
        is_made = bool(variant.model.weights.made)
        if attempts.make("packing", _use_packing, is_exact=is_made or None):
            done.append("tokens packed")
    variant.tuning = "; ".join(done)
    variant.parameter_bytes = tensor_bytes(variant.built.module)


def _is_packable(model: LoadedModel) -> bool:
    """By the model in fp32, where no rounding hides that a mask or a neighbour was another; tried once. Of a
    model that comes in another precision its own answers have to tell."""
    if model.weights.made:
        return True
    if model.is_packable is None:
        exact = build_variant(model, Choice("fp32", KINDS["fp32"], torch.device("cpu")))
        model.is_packable = bool(_Attempts(exact).make("packing", _use_packing))
    return model.is_packable


class _Attempts:
    """At one variant, one after the other."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._answers = _answers(variant)  # as it is now

    def make(
        self, what: str, change: Callable[[Variant, ExitStack], int], is_exact: bool | None = None
    ) -> int:
        """What the change says it did; 0 where it was undone. is_exact: whether answers have to stay as they
        are but for fp32's rounding; None: as the variant's products are."""
        variant = self._variant
        if is_exact is None:
            is_exact = variant.kind.support(variant.device).operands == "fp32"
        with ExitStack() as undo:
            try:
                count = change(variant, undo)
                after = _answers(variant) if count else self._answers
                if not count or _alike(self._answers, after, is_exact):
                    self._answers = after
                    undo.pop_all()
                    return count
                reason = "its answers would change"
            except Exception as error:  # whatever a model raises when it is not as expected
                reason = f"{type(error).__name__}: {error}"
        log.info("variant %s runs without %s: %s", variant.name, what, reason)
        return 0


def _use_onednn(variant: Variant, undo: ExitStack) -> int:
    module = variant.built.module
    paths = [path for path, part in module.named_modules() if path and takes(part)]
    for path in paths:
        layer = module.get_submodule(path)
        assert isinstance(layer, nn.Linear)
        exchange(module, path, OneDnnLinear(layer).eval(), undo)
    return len(paths)


def _use_onednn_int8(variant: Variant, undo: ExitStack) -> int:
    """torch's own product of int8 is made for VNNI; without, it was seen to take 30 times as long."""
    layers = [part for part in variant.built.module.modules() if isinstance(part, _INT8_LAYERS)]
    for layer in layers:
        undo.callback(setattr, layer, "weight", layer.weight)
        layer.weight = ordered(layer.weight)
    return len(layers)


def _use_bytes(variant: Variant, undo: ExitStack) -> int:
    dtype = OPERANDS[variant.dtype]
    return use_bytes(variant.built.module, dtype, lambda: _answers(variant), undo)


def _use_gelu(variant: Variant, undo: ExitStack) -> int:
    """Where a layer's output is what a GELU takes, in a batch that is run to see it."""
    module = variant.built.module
    outputs: dict[int, tuple[OneDnnLinear, torch.Tensor]] = {}
    before: dict[nn.Module, list[OneDnnLinear | None]] = {}

    def after_layer(layer: nn.Module, args: object, output: torch.Tensor) -> None:
        assert isinstance(layer, OneDnnLinear)
        outputs[id(output)] = layer, output  # kept, so that no other tensor gets its id

    def before_gelu(gelu: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        layer, _ = outputs.get(id(args[0]), (None, None))
        before.setdefault(gelu, []).append(layer)

    with ExitStack() as hooks:
        for part in module.modules():
            if isinstance(part, OneDnnLinear):
                hooks.callback(part.register_forward_hook(after_layer).remove)
            elif is_gelu(part):
                hooks.callback(part.register_forward_pre_hook(before_gelu).remove)
        _answers(variant)
    pairs = [(gelu, layers[0]) for gelu, layers in before.items() if len(layers) == 1 and layers[0]]
    paths = {part: path for path, part in module.named_modules()}
    for gelu, layer in pairs:
        exchange(module, paths[gelu], nn.Identity(), undo)
        layer.has_gelu = True
        undo.callback(setattr, layer, "has_gelu", False)
    return len(pairs)


def takes(layer: nn.Module) -> bool:
    """Whether it can stand in for a layer here."""
    if type(layer) is not nn.Linear or not torch.backends.mkldnn.is_available():
        return False
    weight = layer.weight
    if min(weight.shape) < _LEAST_FEATURES:
        return False
    return weight.device.type == "cpu" and weight.dtype in _DTYPES and type(weight.data) is torch.Tensor


def _use_packing(variant: Variant, undo: ExitStack) -> int:
    encoder = find_encoder(variant.built.module)
    width = getattr(variant.model.config, "hidden_size", None)
    if encoder is None or not isinstance(width, int):
        return 0
    limit = variant.model.facts.max_tokens
    if pack(_lengths(variant), width, limit) is None:  # it could not be tried
        return 0
    variant.packing = Packing(encoder, width, limit)
    undo.callback(setattr, variant, "packing", None)
    undo.callback(variant.packing.remove)
    return 1


def _answers(variant: Variant) -> NDArray[np.float32]:
    model = variant.model
    items = [
        model.task.example(model.facts, model.tokenizer, length, seed)
        for seed, length in enumerate(_lengths(variant))
    ]
    return variant.run(variant.prepare(items))


def _lengths(variant: Variant) -> list[int]:
    return [min(length, variant.model.facts.max_tokens) for length in _LENGTHS]


def _alike(before: NDArray[np.float32], after: NDArray[np.float32], is_exact: bool) -> bool:
    part, rounding = (_EXACT, 1e-5) if is_exact else (_ROUNDED, torch.finfo(torch.bfloat16).eps)
    differences = float(np.linalg.norm(before - before.mean(axis=0)))
    moved = float(np.linalg.norm(after - before))
    return moved <= part * differences + rounding * float(np.linalg.norm(before))
