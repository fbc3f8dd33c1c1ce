"""Measuring how large the inputs of linear layers are, for static quantisation.

A layer's scale is the 99.9 percentile of its inputs' magnitudes over a data set, divided by 127: the largest
thousandth saturates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

import torch
from torch import nn

from wattserve_server.engine.tasks.port import Inputs
from wattserve_server.engine.variants.int8 import LEVELS
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import ActivationScales
from wattserve_server.errors import ConfigError

MIN_SAMPLES = 512
_MASK = "attention_mask"

# Takes a layer's path, its input's magnitudes [n], and whether only those of real tokens are among them.
_See = Callable[[str, torch.Tensor, bool], None]


def measure_scales(module: nn.Module, batches: Iterable[Inputs], origin: str) -> ActivationScales:
    """The scale of every linear layer of an fp32 module on the CPU that the batches pass through.

    Padding does not count where a layer's input is [sequences, length, features] of a batch with an
    attention mask; other inputs count whole. The percentile is exact (numpy's "linear"), whatever the order
    of the batches. All batches are held, and the largest thousandth of each layer's inputs.

    origin: the data, for people. Raises ConfigError for fewer than MIN_SAMPLES samples, and for inputs that
    are not finite.
    """
    held = list(batches)
    samples = sum(_samples(batch) for batch in held)
    if samples < MIN_SAMPLES:
        raise ConfigError(
            f"measuring activations needs {MIN_SAMPLES} samples, and there are {samples} (from {origin})"
        )
    most = _most_inputs(module, held, samples)
    layers = {path: _Largest(path, most.get(path, 0)) for path in linear_paths(module)}

    def see(path: str, magnitudes: torch.Tensor, by_token: bool) -> None:
        layers[path].add(magnitudes)

    _run(module, held, see)
    scales = {path: layer.percentile() / LEVELS for path, layer in layers.items() if layer.count}
    return ActivationScales(scales, origin)


def _most_inputs(module: nn.Module, batches: list[Inputs], samples: int) -> dict[str, int]:
    """How many inputs each layer can get from all batches, going by what one of the longest samples gives."""
    longest = max(batches, key=lambda batch: max(tensor[0].numel() for tensor in batch.values()))
    probe = {name: tensor[:1] for name, tensor in longest.items()}
    ratio = samples / _samples(probe)
    token_ratio = sum(map(_tokens, batches)) / max(1, _tokens(probe))
    counts: dict[str, int] = {}

    def see(path: str, magnitudes: torch.Tensor, by_token: bool) -> None:
        more = round(magnitudes.numel() * (token_ratio if by_token else ratio))
        counts[path] = counts.get(path, 0) + more

    _run(module, [probe], see)
    return counts


def _run(module: nn.Module, batches: list[Inputs], see: _See) -> None:
    """Run the batches, showing `see` what goes into each linear layer."""
    batch: Inputs = {}

    def look(path: str, _: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        x = args[0]
        mask = batch.get(_MASK)
        by_token = mask is not None and x.ndim == 3 and x.shape[:2] == mask.shape
        chosen = x[mask.bool()] if mask is not None and by_token else x
        see(path, chosen.abs().flatten(), by_token)

    with ExitStack() as hooks, torch.inference_mode():
        for path in linear_paths(module):
            hook = module.get_submodule(path).register_forward_pre_hook(partial(look, path))
            hooks.callback(hook.remove)
        for batch in batches:
            module(**batch)


def _samples(batch: Inputs) -> int:
    return len(next(iter(batch.values())))


def _tokens(batch: Inputs) -> int:
    """Real ones; 0 for a batch without a mask."""
    return int(batch[_MASK].sum()) if _MASK in batch else 0


class _Largest:
    """The largest thousandth of a layer's inputs. most: no more of them will come."""

    def __init__(self, path: str, most: int) -> None:
        self._path = path
        self._keep = _rank(most)[0] + 1
        self.count = 0  # inputs that came
        self._values = torch.empty(0)
        self._least = 0.0

    def add(self, magnitudes: torch.Tensor) -> None:
        """[n]. Raises ConfigError for values that are not finite."""
        if not magnitudes.numel():
            return
        if not torch.isfinite(magnitudes.max()):
            raise ConfigError(f"an input of layer {self._path!r} is not finite: its scale cannot be measured")
        self.count += magnitudes.numel()
        if len(self._values) == self._keep:
            magnitudes = magnitudes[magnitudes > self._least]
        self._values = torch.cat([self._values, magnitudes])
        if len(self._values) > self._keep:
            self._values = torch.topk(self._values, self._keep, sorted=False).values
            self._least = float(self._values.min())

    def percentile(self) -> float:
        """The 99.9 percentile. Raises ConfigError when more inputs came than were to come."""
        below, share = _rank(self.count)
        if below >= self._keep:
            raise ConfigError(
                f"layer {self._path!r} does not get the same number of inputs from every sample: its scale "
                "cannot be measured"
            )
        ordered = self._values.sort(descending=True).values.double()
        low, high = float(ordered[below]), float(ordered[max(0, below - 1)])
        return low + (high - low) * share


def _rank(count: int) -> tuple[int, float]:
    """Where the 99.9 percentile of `count` values lies: how many values are above the one below it, and how
    far it is from that one to the next larger."""
    position, thousandths = divmod((count - 1) * 999, 1000)
    return count - 1 - position, thousandths / 1000
