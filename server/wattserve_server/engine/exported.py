"""Exported variants: folders by `wattserve variants export`, written, and served as the one variant that they
hold.

The architecture is made without numbers, empty quantised layers are put where the export has them, and then
the file's tensors: the fp32 weights of converted layers never exist.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from wattserve_common.strict_json import json_of
from wattserve_server.engine.checkpoint import (
    DTYPES,
    Made,
    fill,
    locate,
    named_tensors,
    skeleton,
    without_path,
)
from wattserve_server.engine.tasks import Task
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.fp8 import Fp8Linear
from wattserve_server.engine.variants.int8 import Int8Linear, StaticInt8Linear
from wattserve_server.engine.variants.linears import QuantisedLinear
from wattserve_server.engine.variants.llm_int8 import LLMInt8Linear
from wattserve_server.engine.variants.port import ActivationScales, Built, Materials
from wattserve_server.engine.variants.weight_only import WeightOnlyInt4Linear, WeightOnlyInt8Linear
from wattserve_server.engine.weights import Sketch, computed_buffers
from wattserve_server.errors import ConfigError

if TYPE_CHECKING:  # it is made of a model, which may be an exported one
    from wattserve_server.engine.variants.variant import Variant

FILE = "wattserve_variant.json"
WEIGHTS = "model.safetensors"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """What wattserve_variant.json holds: what an exported variant says of itself, beside its weights."""

    kind: str
    task: str
    made_from: str  # the model that it was converted from, without the path to it
    device: str  # where it was made
    rest_dtype: str  # of everything except the quantised layers
    detail: str  # as `converted` and `kept`: see Built
    converted: tuple[str, ...]
    kept: tuple[str, ...]
    calibration: str  # where static activation scales came from
    random_weights: bool
    sha256: str  # of the weights file
    torch: str  # its version, as `wattserve`
    wattserve: str
    format: int = FORMAT

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def parse_manifest(source: str, path: Path) -> Manifest:
    """Raises ConfigError for what this version cannot read."""
    where = f"model {source!r}: its {FILE}"
    try:
        content: Any = json_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{where} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{where} is damaged: it holds no object")
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{where} has the format {content.get('format')!r}, this version reads {FORMAT}: export it again"
        )
    values: dict[str, Any] = {}
    for item in fields(Manifest):
        value = content.get(item.name)
        if item.name in ("converted", "kept"):
            is_right = isinstance(value, list) and all(isinstance(path, str) for path in value)
            values[item.name] = tuple(value) if isinstance(value, list) else ()
        else:
            is_right = type(value).__name__ == item.type
            values[item.name] = value
        if not is_right:
            raise ConfigError(f"{where} is damaged: {item.name!r} is missing or not what it must be")
    return Manifest(**values)


def sha256_of(path: Path) -> str:
    """Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# What stands in place of converted linear layers; other kinds keep those as linear layers.
LAYERS: dict[str, type[QuantisedLinear]] = {
    "int8": Int8Linear,
    "int8-static": StaticInt8Linear,
    "int8-weight-only": WeightOnlyInt8Linear,
    "int4-weight-only": WeightOnlyInt4Linear,
    "llm-int8": LLMInt8Linear,
    "fp8": Fp8Linear,
}


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
    uncast = {name: module.get_buffer(name) for name in computed_buffers(module)}
    module = module.to(rest)
    parts = dict(module.named_modules())
    for name, buffer in uncast.items():
        path, _, own = name.rpartition(".")
        setattr(parts[path], own, buffer)
    for path in converted:
        linear = parts.get(path)
        if not isinstance(linear, nn.Linear):
            raise ConfigError(f"{path!r} is no linear layer of this architecture")
        if kind in LAYERS:
            with torch.device("meta"):
                layer = LAYERS[kind](linear.in_features, linear.out_features, linear.bias is not None)
            module.set_submodule(path, layer)
    return module.eval()


def mismatch(wanted: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> str:
    """What is wrong with `given`, for people; empty where names, shapes and dtypes agree."""
    for word, names in (
        ("lacks", wanted.keys() - given.keys()),
        ("also holds", given.keys() - wanted.keys()),
    ):
        if names:
            first = sorted(names)
            return f"{word} {', '.join(first[:3])}" + (f" and {len(first) - 3} more" if first[3:] else "")
    for name, tensor in wanted.items():
        if given[name].shape != tensor.shape or given[name].dtype != tensor.dtype:
            return f"holds {name} as {_form(given[name])} where {_form(tensor)} belongs"
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
            uncast = computed_buffers(empty)
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not name.startswith(inside) and name not in uncast:
                    tensors[name] = tensor.to(rest)
        module = fill(empty, tensors)
    return Built(module, detail, manifest.converted, manifest.kept)


def _frame(source: str, manifest: Manifest, task: Task, rest: torch.dtype) -> nn.Module:
    try:
        return frame(manifest.kind, manifest.converted, skeleton(source, task), rest)
    except ConfigError as error:
        raise ConfigError(f"model {source!r}: its {FILE} and its config.json disagree: {error}") from error


def _rest(source: str, manifest: Manifest, device: torch.device) -> tuple[torch.dtype, str]:
    """In which dtype everything except the quantised layers runs on a device, and how it got there.

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
        own = sha256_of(path)
        if own != sha256:
            raise ConfigError(
                f"model {source!r}: its {WEIGHTS} has the sha256 {own[:12]}..., and was exported with "
                f"{sha256[:12]}...: it is damaged or another file"
            )
        tensors: dict[str, torch.Tensor] = load_file(path, device=str(device))
    except OSError as error:
        raise ConfigError(f"model {source!r}: its {WEIGHTS} cannot be read: {error.strerror}") from error
    except SafetensorError as error:
        raise ConfigError(f"model {source!r}: its {WEIGHTS} is no safetensors file: {error}") from error
    return tensors


_PREPROCESSOR = "preprocessor_config.json"


def check_out(out: Path) -> None:
    """Raises ConfigError for a place that holds something already."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"--out {out}: exists and is not an empty folder")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error


def export(variant: Variant, scales: ActivationScales | None, out: Path) -> Manifest:
    """Write a variant to the folder `out`: all of it, or, with a ConfigError, nothing.

    scales: those that the variant was made with.
    """
    check_out(out)
    model = variant.model
    if getattr(model.config, "auto_map", None):
        raise ConfigError(f"model {model.source!r} needs code that comes with it, which is not exported")
    part: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        manifest = _write(variant, scales, part)
        part.chmod(0o755)  # mkdtemp's are for their owner only
        part.replace(out)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error
    except SafetensorError as error:  # a full disk comes as one of these
        raise ConfigError(f"--out {out}: cannot be written: {error}") from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
    return manifest


def _write(variant: Variant, scales: ActivationScales | None, folder: Path) -> Manifest:
    model, kind, built = variant.model, variant.kind, variant.built
    model.config.save_pretrained(folder)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    preprocessor = None if model.task.takes_text else locate(model.source, _PREPROCESSOR)
    if preprocessor is not None:
        shutil.copyfile(preprocessor, folder / _PREPROCESSOR)
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in named_tensors(built.module).items()
    }
    empty = frame(kind.name, built.converted, skeleton(str(folder), model.task), DTYPES[variant.dtype])
    wrong = mismatch(named_tensors(empty), tensors)
    if wrong:  # a checkpoint of another shape than its config describes, or a kind that LAYERS lacks
        raise ConfigError(f"{kind.name} of {model.source!r} cannot be exported: it {wrong}")
    weights = folder / WEIGHTS
    save_file(tensors, weights, metadata={"format": "pt", "wattserve_kind": kind.name})
    weights.chmod(0o644)  # safetensors writes for the owner only
    manifest = Manifest(
        kind=kind.name,
        task=model.task.name,
        made_from=without_path(model.source),
        device=variant.device.type,
        rest_dtype=variant.dtype,
        detail=built.detail,
        converted=built.converted,
        kept=built.kept,
        calibration=scales.origin if scales is not None and kind.needs_calibration else "",
        random_weights=model.has_random_weights,
        sha256=sha256_of(weights),
        torch=torch.__version__,
        wattserve=version("wattserve"),
    )
    (folder / FILE).write_text(manifest.as_json(), encoding="utf-8")
    return manifest
