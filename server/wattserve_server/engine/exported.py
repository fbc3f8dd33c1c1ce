"""Exported variants: folders by `wattserve variants export`, served as the one variant that they hold.

The architecture is made without numbers, empty quantised layers are put where the export has them, and then
the file's tensors: the fp32 weights of converted layers never exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from wattserve_server.engine.made import DTYPES, Made, fill, locate, named_tensors, skeleton
from wattserve_server.engine.manifest import FILE, WEIGHTS, Manifest, parse_manifest, sha256_of
from wattserve_server.engine.tasks import Task
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.fp8 import Fp8Linear
from wattserve_server.engine.variants.int8 import Int8Linear
from wattserve_server.engine.variants.int8_arithmetic import Int8Weights
from wattserve_server.engine.variants.int8_static import StaticInt8Linear
from wattserve_server.engine.variants.int8_weight_only import WeightOnlyInt8Linear
from wattserve_server.engine.variants.llm_int8 import LLMInt8Linear
from wattserve_server.engine.variants.port import Built, Materials
from wattserve_server.engine.weights import Sketch
from wattserve_server.errors import ConfigError

LAYERS: dict[str, type[Int8Weights] | type[Fp8Linear]] = {
    "int8": Int8Linear,
    "int8-static": StaticInt8Linear,
    "int8-weight-only": WeightOnlyInt8Linear,
    "llm-int8": LLMInt8Linear,
    "fp8": Fp8Linear,
}
"""What stands in place of converted linear layers; other kinds keep those as linear layers."""


def made_of(source: str, task: Task) -> Made | None:
    """What an exported folder holds; None for any other model. Raises ConfigError for one that this version
    cannot serve, or not for that task."""
    path = locate(source, FILE)
    if path is None:
        return None
    manifest = parse_manifest(source, path)
    kind = KINDS.get(manifest.kind)
    if kind is None or manifest.rest_dtype not in DTYPES:
        what = f"kind {manifest.kind!r}" if kind is None else f"rest_dtype {manifest.rest_dtype!r}"
        raise ConfigError(f"model {source!r}: its {FILE} names the unknown {what}; kinds: {', '.join(KINDS)}")
    if manifest.task != task.name:
        raise ConfigError(f"model {source!r} was exported for --task {manifest.task}, not {task.name}")
    own = replace(
        kind, needs_calibration=False, build=partial(_build, source=source, manifest=manifest, task=task)
    )
    words = f"model {source!r} holds only {kind.name}, exported from {manifest.made_from}"
    return Made(own, words, manifest.random_weights)


def frame(kind: str, converted: tuple[str, ...], module: nn.Module, rest: torch.dtype) -> nn.Module:
    """An architecture as a variant of that kind has it, without numbers: with empty quantised layers, and
    everything else in `rest`. Changes its argument. Raises ConfigError for layers that it lacks."""
    module = module.to(rest)
    parts = dict(module.named_modules())
    for path in converted:
        linear = parts.get(path)
        if not isinstance(linear, nn.Linear):
            raise ConfigError(f"{path!r} is no linear layer of this architecture")
        if kind in LAYERS:
            with torch.device("meta"):
                layer = LAYERS[kind](linear.in_features, linear.out_features, linear.bias is not None)
            module.set_submodule(path, layer)
    return module.eval()


def mismatch(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> str:
    """What is wrong with `found`, for people; empty where names, shapes and dtypes agree."""
    for word, names in (
        ("lacks", wanted.keys() - found.keys()),
        ("also holds", found.keys() - wanted.keys()),
    ):
        if names:
            first = sorted(names)
            return f"{word} {', '.join(first[:3])}" + (f" and {len(first) - 3} more" if first[3:] else "")
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            return f"holds {name} as {_form(found[name])} where {_form(tensor)} belongs"
    return ""


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _build(materials: Materials, device: torch.device, source: str, manifest: Manifest, task: Task) -> Built:
    stored = DTYPES[manifest.rest_dtype]
    rest, detail = _rest(source, manifest, device)
    if isinstance(materials.weights, Sketch):
        module = _frame(source, manifest, task, rest)
    else:
        empty = _frame(source, manifest, task, stored)
        tensors = _read(source, manifest, empty, device)
        if rest is not stored:
            inside = tuple(f"{path}." for path in manifest.converted if manifest.kind in LAYERS)
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not name.startswith(inside):
                    tensors[name] = tensor.to(rest)
        module = fill(empty, tensors)
    return Built(module, detail, manifest.converted, manifest.kept)


def _frame(source: str, manifest: Manifest, task: Task, rest: torch.dtype) -> nn.Module:
    try:
        return frame(manifest.kind, manifest.converted, skeleton(source, task), rest)
    except ConfigError as error:
        raise ConfigError(f"model {source!r}: its {FILE} and its config.json disagree: {error}") from error


def _rest(source: str, manifest: Manifest, device: torch.device) -> tuple[torch.dtype, str]:
    """In which dtype everything but the quantised layers runs on a device, and how it got there.

    From fp32 it is what a variant made on that device has, bit for bit; to fp32 the stored values stay. From
    one 16-bit format to the other they would not.
    """
    wanted = KINDS[manifest.kind].support(device).dtype
    detail = f"{manifest.detail}; exported from {manifest.made_from} on {manifest.device}"
    if not wanted or wanted == manifest.rest_dtype:  # none: not native, and then nothing is known of it
        return DTYPES[manifest.rest_dtype], detail
    if "fp32" not in (wanted, manifest.rest_dtype):
        raise ConfigError(
            f"model {source!r} was exported with everything but its quantised layers in "
            f"{manifest.rest_dtype}, and {device} computes {manifest.kind} with {wanted}: export it there"
        )
    return DTYPES[
        wanted
    ], f"{detail}; the rest, and with it the activations, cast from {manifest.rest_dtype} to {wanted}"


def _read(
    source: str, manifest: Manifest, wanted: nn.Module, device: torch.device
) -> dict[str, torch.Tensor]:
    """The tensors of the weights file. Raises ConfigError when they are not those that were exported."""
    path = locate(source, WEIGHTS)
    if path is None:
        raise ConfigError(f"model {source!r} holds no {WEIGHTS}")
    tensors = _load(source, path, manifest.sha256, device)
    wrong = mismatch(named_tensors(wanted), tensors)
    if wrong:
        raise ConfigError(f"model {source!r}: its {WEIGHTS} {wrong}")
    return tensors


def _load(source: str, path: Path, sha256: str, device: torch.device) -> dict[str, torch.Tensor]:
    try:
        found = sha256_of(path)
        if found != sha256:
            raise ConfigError(
                f"model {source!r}: its {WEIGHTS} has the sha256 {found[:12]}..., and was exported with "
                f"{sha256[:12]}...: it is damaged or another file"
            )
        tensors: dict[str, torch.Tensor] = load_file(path, device=str(device))
    except OSError as error:
        raise ConfigError(f"model {source!r}: its {WEIGHTS} cannot be read: {error.strerror}") from error
    except SafetensorError as error:
        raise ConfigError(f"model {source!r}: its {WEIGHTS} is no safetensors file: {error}") from error
    return tensors
