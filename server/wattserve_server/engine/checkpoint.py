"""Loading a checkpoint through transformers, with its complaints made into one line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open

from wattserve_server.engine.builtin.random_weights import RANDOM_MODELS
from wattserve_server.engine.tasks import TASKS, Task
from wattserve_server.engine.weights import stored_tensors
from wattserve_server.errors import ConfigError

DEMO = "demo"
RANDOM_PREFIX = "random:"


def without_path(source: str) -> str:
    """Of a folder its name only: exports and reports are given away, and tell nothing of where they were
    made."""
    is_folder = source.startswith(("/", ".", "~")) or Path(source).is_dir()
    return Path(source).resolve().name if is_folder else source


def load_checkpoint(
    place: str, task: Task, trust_remote_code: bool, dtype: torch.dtype = torch.float32, **options: Any
) -> torch.nn.Module:
    """In evaluation mode; as it is stored where it is quantised, else in `dtype`. options: for transformers.
    Raises ConfigError."""
    loader = getattr(transformers, task.auto_class)
    try:
        module, report = loader.from_pretrained(
            place,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        ImportError,
        AttributeError,
        SafetensorError,
    ) as error:
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"model {place!r} needs code that comes with it; if you trust it, pass --trust-remote-code"
            ) from error
        if "Unrecognized configuration class" in str(error):
            raise ConfigError(
                f"model {place!r} cannot do the task {task.name}: its architecture has no {task.auto_class}; "
                f"choose its --task: {', '.join(TASKS)}"
            ) from error
        raise ConfigError(
            f"cannot load model {place!r}: {first_line(error)}{_known_builtins(place)}"
        ) from error
    missing = sorted(
        key for key in report.get("missing_keys") or () if not key.startswith(task.unused_weights)
    )
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ConfigError(
            f"model {place!r} has no weights for {shown}: it is not a {task.name} checkpoint "
            "(they would be random, and so would its answers)"
        )
    result: torch.nn.Module = module.eval()
    return result


def check_finite(source: str, module: torch.nn.Module) -> None:
    """Raises ConfigError."""
    broken = {
        name: count
        for name, tensor in module.state_dict().items()
        if (count := sum(map(_not_finite, stored_tensors([tensor]))))
    }
    if broken:
        name, count = next(iter(broken.items()))
        raise ConfigError(
            f"model {source!r} holds {sum(broken.values())} weights that are NaN or infinite, in "
            f"{len(broken)} tensors, e.g. {count} in {name}: the checkpoint is damaged"
        )


def fingerprint(place: str) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of a folder's weights and config; empty for what is not a folder."""
    files = [
        path for path in Path(place).glob("*") if path.suffix == ".safetensors" or path.name == "config.json"
    ]
    return tuple(sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


def check_not_an_export(place: str) -> None:
    """Raises ConfigError for an exported variant without its description: its int8 levels would pass for
    weights."""
    for path in Path(place).glob("*.safetensors"):
        with suppress(SafetensorError, OSError), safe_open(path, "pt") as file:
            kind = (file.metadata() or {}).get("wattserve_kind")
            if kind:
                raise ConfigError(
                    f"model {place!r} is an exported {kind} whose wattserve_variant.json is missing: copy "
                    "the whole folder, or export it again"
                )


def _not_finite(tensor: torch.Tensor) -> int:
    if not tensor.is_floating_point():
        return 0
    is_small = tensor.element_size() == 1  # torch cannot ask 8-bit numbers
    return int((~torch.isfinite(tensor.float() if is_small else tensor)).sum())


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _known_builtins(place: str) -> str:
    if Path(place).exists():
        return ""
    known = ", ".join([DEMO, *(RANDOM_PREFIX + name for name in RANDOM_MODELS)])
    return f" (a hub id needs the network; built-in models: {known})"
