"""Checkpoints that were quantised by another library: loaded by transformers, served as the one kind that
they are, and never widened to pass for fp32.

What each library makes of a checkpoint is read from its config alone, and named after what that says. What
each really computes in was found by trying (docs/variants.md); the profiler looks again at every start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from wattserve_server.engine.checkpoint import (
    DTYPES,
    Made,
    check_finite,
    load_checkpoint,
    locate,
    named_tensors,
    read_json,
    skeleton,
)
from wattserve_server.engine.generation.proof import check_steps
from wattserve_server.engine.tasks import Task
from wattserve_server.engine.variants import hardware
from wattserve_server.engine.variants.floats import without_tf32
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials, Support
from wattserve_server.engine.weights import Sketch
from wattserve_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a library has quantised a checkpoint."""

    name: str  # of the kind
    label: str  # the method, for people
    weights: str  # as `proxy`: see Kind
    modules: tuple[str, ...]  # that it is loaded by
    packages: str  # that hold them
    operands: str = ""  # what its layers multiply in; empty for the dtype of the activations
    proxy: str = ""
    is_unpacked: bool = False  # its weights are floating point once loaded
    takes_map: bool = False  # the library wants to know the device while it loads

    @property
    def missing(self) -> list[str]:
        return [module for module in self.modules if find_spec(module) is None]


# torchao's configurations: the name of the kind, how it stores weights, what it multiplies in.
_TORCHAO = {
    "Int8WeightOnlyConfig": ("torchao-int8-weight-only", "int8", ""),
    "Int8DynamicActivationInt8WeightConfig": ("torchao-int8", "int8", "int8"),
    "Float8WeightOnlyConfig": ("torchao-fp8-weight-only", "fp8", ""),
    "Float8DynamicActivationFloat8WeightConfig": ("torchao-fp8", "fp8", "fp8"),
}


def scheme_of(source: str, settings: dict[str, Any]) -> Scheme:
    """settings: a config's `quantization_config`. Raises ConfigError for what cannot be named truthfully."""
    method = str(
        settings.get("quant_method") or ("bitsandbytes" if _is_bitsandbytes(settings) else "unknown")
    )
    readers: dict[str, Callable[[dict[str, Any]], Scheme | None]] = {
        "torchao": _torchao,
        "compressed-tensors": _compressed_tensors,
        "gptq": partial(_by_gptqmodel, "gptq", ("gptqmodel", "optimum", "accelerate")),
        "awq": partial(_by_gptqmodel, "awq", ("gptqmodel", "accelerate")),
        "bitsandbytes": _bitsandbytes,
    }
    if method not in readers:
        raise ConfigError(
            f"model {source!r} is quantised by {method!r}: Wattserve does not know what that computes in, "
            f"and so has no name for it; known: {', '.join(readers)}"
        )
    scheme = readers[method](settings)
    if scheme is None:
        raise ConfigError(
            f"model {source!r} is quantised by {method} in a way that Wattserve does not know, and so has no "
            f"name for: {_shown(settings)}"
        )
    return scheme


def _torchao(settings: dict[str, Any]) -> Scheme | None:
    quantised = settings.get("quant_type")
    default = quantised.get("default") if isinstance(quantised, dict) else None
    config = str(default.get("_type")) if isinstance(default, dict) else ""
    if config not in _TORCHAO:
        return None
    name, weights, operands = _TORCHAO[config]
    return Scheme(name, f"torchao ({config})", weights, ("torchao",), "torchao", operands)


def _compressed_tensors(settings: dict[str, Any]) -> Scheme | None:
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return None
    forms = {_form(group) for group in groups.values()}
    if len(forms) != 1 or "" in forms:
        return None
    form = forms.pop()
    bits, activations = re.findall(r"\d+", form)[:2]
    family = "fp" if form.endswith("fp") else "int"
    if activations == "16":
        proxy = (
            f"{family}{bits} weights unpacked by compressed-tensors: stored and multiplied in floating point"
        )
    else:
        proxy = (
            f"{family}{bits} weights and {activations}-bit activations simulated by compressed-tensors: "
            "rounded to their levels, stored and multiplied in floating point"
        )
    return Scheme(
        f"compressed-tensors-{form}",
        f"compressed-tensors ({form})",
        f"floating point, rounded to {family}{bits} levels",
        ("compressed_tensors",),
        "compressed-tensors",
        proxy=proxy,
        is_unpacked=True,
    )


def _form(group: Any) -> str:
    """E.g. ``w8a8``, ``w4a16`` or ``w8a8-fp``; empty for what is not understood."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or weights.get("type") not in ("int", "float"):
        return ""
    inputs = group.get("input_activations")
    activations = inputs.get("num_bits") if isinstance(inputs, dict) else 16
    if not isinstance(weights.get("num_bits"), int) or not isinstance(activations, int):
        return ""
    return f"w{weights['num_bits']}a{activations}" + ("-fp" if weights["type"] == "float" else "")


def _by_gptqmodel(method: str, modules: tuple[str, ...], settings: dict[str, Any]) -> Scheme | None:
    bits = settings.get("bits", settings.get("w_bit"))
    if not isinstance(bits, int):
        return None
    label = f"{method.upper()} ({bits} bit)"
    return Scheme(f"{method}-{bits}bit", label, f"int{bits}", modules, " ".join(modules), takes_map=True)


def _bitsandbytes(settings: dict[str, Any]) -> Scheme | None:
    modules = ("bitsandbytes", "accelerate")
    if settings.get("load_in_8bit"):
        name, weights, operands = "bitsandbytes-int8", "int8", "int8"
    elif settings.get("load_in_4bit") and settings.get("bnb_4bit_quant_type") in ("nf4", "fp4"):
        weights = str(settings["bnb_4bit_quant_type"])
        name, operands = f"bitsandbytes-{weights}", ""
    else:
        return None
    label = f"bitsandbytes ({weights})"
    return Scheme(name, label, weights, modules, " ".join(modules), operands, takes_map=True)


def _is_bitsandbytes(settings: dict[str, Any]) -> bool:
    """Its older checkpoints do not name the method."""
    return bool(settings.get("load_in_8bit") or settings.get("load_in_4bit"))


def _shown(settings: dict[str, Any]) -> str:
    text = ", ".join(f"{key}: {value}" for key, value in settings.items() if value and key != "quant_method")
    return text if len(text) <= 120 else text[:117] + "..."


_CONFIG = "config.json"
_HARDWARE = {
    "fp32": hardware.fp32_support,
    "bf16": hardware.bf16_support,
    "fp16": hardware.fp16_support,
    "int8": hardware.int8_support,
    "fp8": hardware.fp8_support,
}
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}


def made_of(source: str, task: Task, trust_remote_code: bool = False) -> Made | None:
    """What a quantised checkpoint holds; None for any other model. Raises ConfigError where the library that
    it needs is not installed, or nobody knows what it computes in."""
    config = read_json(source, _CONFIG) or {}
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    if not isinstance(settings, dict):
        raise ConfigError(
            f"model {source!r}: the quantization_config of its {_CONFIG} is "
            f"{str(settings)[:40]!r}; it must be an object with a quant_method"
        )
    scheme = scheme_of(source, settings)
    if scheme.missing:
        raise ConfigError(
            f"model {source!r} is quantised by {scheme.label}: not installed: {', '.join(scheme.missing)}; "
            f"pip install {scheme.packages}"
        )
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    own = {"bfloat16": "bf16", "float16": "fp16"}.get(stored, "fp32")
    kind = Kind(
        scheme.name,
        weights=scheme.weights,
        support=partial(_support, scheme, own),
        build=partial(_build, scheme, own, source, task, trust_remote_code),
        proxy=scheme.proxy,
        running=without_tf32,  # without TF32, which would change what is multiplied in fp32
    )
    return Made(kind, f"model {source!r} is quantised by {scheme.label} and holds only {scheme.name}")


def _dtype(own: str, device: torch.device) -> str:
    """Of the activations: the checkpoint's own; on a CPU fp32, which holds every value of the others and
    needs no special hardware."""
    return own if device.type == "cuda" else "fp32"


def _support(scheme: Scheme, own: str, device: torch.device) -> Support:
    dtype = _dtype(own, device)
    operands = scheme.operands or dtype
    support = _HARDWARE[operands](device)
    if not support.native:
        return support
    library = scheme.packages.partition(" ")[0]
    return Support(True, support.why, f"{support.kernels}, as {library} calls it", dtype, operands)


def _build(
    scheme: Scheme,
    own: str,
    source: str,
    task: Task,
    trust_remote_code: bool,
    materials: Materials,
    device: torch.device,
) -> Built:
    dtype = DTYPES[_dtype(own, device)]
    if isinstance(materials.weights, Sketch):
        empty = skeleton(source, task, trust_remote_code).to(dtype)
        return Built(_foretold(scheme, source, empty), "foretold", ())
    options: dict[str, Any] = {"device_map": {"": str(device)}} if scheme.takes_map else {}
    module: Any = load_checkpoint(source, task, trust_remote_code, dtype=dtype, **options)
    if scheme.is_unpacked:  # now, rather than in the first batch, so that its bytes are those that it has
        module.hf_quantizer.compressor.decompress_model(module)
    if not scheme.takes_map:
        module = module.to(device)
    check_finite(source, module)
    if task.generates:
        check_steps(source, module, is_exact=False)
    architecture: Any = materials.weights.module
    module.config.pad_token_id = architecture.config.pad_token_id  # which may come from the tokenizer
    linears = linear_paths(architecture)
    converted = tuple(path for path in linears if _is_quantised(module.get_submodule(path)))
    if not converted:
        raise ConfigError(f"model {source!r}: {scheme.label} has left no linear layer of it quantised")
    kept = tuple(path for path in linears if path not in converted)
    library = scheme.packages.partition(" ")[0]
    detail = (
        f"{len(converted)} of {len(linears)} linear layers; quantised elsewhere by {scheme.label}; loaded by "
        f"{library} {version(library)}"
    )
    if kept:
        detail += f"; kept in {_dtype(own, device)}: {', '.join(kept)}"
    return Built(module.eval(), detail, converted, kept)


def _is_quantised(part: nn.Module) -> bool:
    """Whether a linear layer is not one as torch makes them: libraries put in layers of their own, weights of
    a class of their own, or (compressed-tensors) a scheme."""
    weight = getattr(part, "weight", None)
    is_wrapped = isinstance(weight, torch.Tensor) and is_traceable_wrapper_subclass(weight)
    return type(part) is not nn.Linear or is_wrapped or hasattr(part, "quantization_scheme")


def _foretold(scheme: Scheme, source: str, architecture: nn.Module) -> nn.Module:
    """A module that takes no memory and counts as many bytes as the checkpoint will once it is loaded: those
    of its files, their floating point in the dtype that it gets; of weights that get unpacked, those of the
    architecture."""
    names = named_tensors(architecture)
    rest = next(tensor.element_size() for tensor in names.values() if tensor.is_floating_point())
    total = 0
    for name, dtype, count in _stored(source):
        in_architecture = scheme.is_unpacked and (name in names or name.endswith(".weight_packed"))
        if dtype != "I64" and not in_architecture:  # indices are not counted anywhere
            total += count * (rest if dtype in ("F32", "F16", "BF16") else _BYTES.get(dtype, 1))
    foretold = architecture if scheme.is_unpacked else nn.Module()
    foretold.register_buffer("others", torch.empty(total, dtype=torch.uint8, device="meta"))
    return foretold


def _stored(source: str) -> list[tuple[str, str, int]]:
    """Name, dtype and count of numbers of every tensor in the checkpoint's files, without reading those."""
    config = locate(source, _CONFIG)
    stored = []
    for path in sorted((config or Path(source)).parent.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()
                for name in names:
                    part = file.get_slice(name)
                    stored.append((name, str(part.get_dtype()), math.prod(part.get_shape())))
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"model {source!r}: {path.name} cannot be read: {error}") from error
    return stored
