"""Writing a variant to a folder, from which exported.py serves it again."""

from __future__ import annotations

import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from wattserve_server.engine.checkpoint import without_path
from wattserve_server.engine.exported import frame, mismatch
from wattserve_server.engine.made import DTYPES, locate, named_tensors, skeleton
from wattserve_server.engine.manifest import FILE, WEIGHTS, Manifest, sha256_of
from wattserve_server.engine.variants.port import ActivationScales
from wattserve_server.engine.variants.variant import Variant
from wattserve_server.errors import ConfigError

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
    if wrong:  # a checkpoint of another shape than its config describes, or a kind that exported.py lacks
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
