"""Checkpoints that were quantised by another library: loaded by transformers, served as the one kind that
they are, and never widened to pass for fp32.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from wattserve_server.engine.checkpoint import check_finite, load_checkpoint
from wattserve_server.engine.made import DTYPES, Made, locate, named_tensors, read_json, skeleton
from wattserve_server.engine.quantisers import Scheme, scheme_of
from wattserve_server.engine.tasks import Task
from wattserve_server.engine.variants import fp32, hardware
from wattserve_server.engine.variants.linears import linear_paths
from wattserve_server.engine.variants.port import Built, Kind, Materials, Support
from wattserve_server.engine.weights import Sketch
from wattserve_server.errors import ConfigError

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
    found = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(found, dict):
        return None
    scheme = scheme_of(source, found)
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
        running=fp32.KIND.running,  # without TF32, which would change what is multiplied in fp32
    )
    return Made(kind, f"model {source!r} is quantised by {scheme.label} and holds only {scheme.name}")


def _dtype(own: str, device: torch.device) -> str:
    """Of the activations: the checkpoint's own; on a CPU fp32, which holds every value of the others and
    needs no special hardware."""
    return own if device.type == "cuda" else "fp32"


def _support(scheme: Scheme, own: str, device: torch.device) -> Support:
    dtype = _dtype(own, device)
    operands = scheme.operands or dtype
    found = _HARDWARE[operands](device)
    if not found.native:
        return found
    library = scheme.packages.partition(" ")[0]
    return Support(True, found.why, f"{found.kernels}, as {library} calls it", dtype, operands)


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
    found = []
    for path in sorted((config or Path(source)).parent.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()
                for name in names:
                    part = file.get_slice(name)
                    count = 1
                    for size in part.get_shape():
                        count *= size
                    found.append((name, str(part.get_dtype()), count))
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"model {source!r}: {path.name} cannot be read: {error}") from error
    return found
