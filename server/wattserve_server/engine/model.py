"""Loading a model: from a hub id, a folder, or one of the built-ins.

The loaded module is in fp32, in evaluation mode, on the CPU: what the variants are made from.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from wattserve_server.engine.builtin.demo import ensure_demo_model
from wattserve_server.engine.builtin.random_weights import RANDOM_MODELS, build_random_model
from wattserve_server.engine.tasks import Task
from wattserve_server.errors import ConfigError

DEMO = "demo"
RANDOM_PREFIX = "random:"

_PADDED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "longformer", "mpnet")
"""Architectures whose position table starts after the padding id."""

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model",
    "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip


@dataclass(slots=True)
class LoadedModel:
    """A model ready to be made into variants.

    name: as it is served. source: as the operator named it. max_tokens: the longest sequence,
    special tokens included. vocabulary_size: ids lie in [0, vocabulary_size). has_random_weights:
    its answers mean nothing; only speed and energy do.
    """

    name: str
    source: str
    task: Task
    module: torch.nn.Module
    config: Any
    tokenizer: Any | None
    labels: list[str]
    max_tokens: int
    vocabulary_size: int
    pad_id: int
    parameters: int
    has_random_weights: bool = False


def load_model(
    source: str, task: Task, name: str = "", trust_remote_code: bool = False, max_tokens: int | None = None
) -> LoadedModel:
    """source: a hub id, a local folder, `demo` or `random:NAME`. Raises ConfigError."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    module: Any
    if source.startswith(RANDOM_PREFIX):
        module = build_random_model(source.removeprefix(RANDOM_PREFIX))
        if task.name != "sequence-classification":
            module = module.base_model
        tokenizer = None
    else:
        place = str(ensure_demo_model()) if source == DEMO else source
        _check_place(place)
        module = _load_module(place, task, trust_remote_code)
        tokenizer = _load_tokenizer(place, trust_remote_code)
    config: Any = module.config
    longest = _longest(config, tokenizer)
    if max_tokens is not None:
        if max_tokens > longest:
            raise ConfigError(f"--max-tokens {max_tokens}: {source!r} takes at most {longest} tokens")
        longest = max_tokens
    pad_id = getattr(config, "pad_token_id", None)
    return LoadedModel(
        name=name or _default_name(source),
        source=source,
        task=task,
        module=module.float().eval(),
        config=config,
        tokenizer=tokenizer,
        labels=task.labels(config),
        max_tokens=longest,
        vocabulary_size=_vocabulary_size(source, config),
        pad_id=int(pad_id) if pad_id is not None else 0,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        has_random_weights=source.startswith(RANDOM_PREFIX),
    )


def _default_name(source: str) -> str:
    if source.startswith(RANDOM_PREFIX):
        return source.removeprefix(RANDOM_PREFIX)
    return Path(source).resolve().name if os.path.isdir(source) else source.rstrip("/").rpartition("/")[2]


def _check_place(place: str) -> None:
    """A local path must be a readable model folder; anything else is left to the hub."""
    path = Path(place)
    looks_local = place.startswith((".", "/", "~")) or path.exists()
    if not looks_local:
        return
    if not path.is_dir():
        raise ConfigError(f"model folder {place!r} does not exist or is not a folder")
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"model folder {place!r} cannot be read: permission denied")
    if not (path / "config.json").is_file():
        raise ConfigError(f"model folder {place!r} holds no config.json; is it a transformers model?")


def _load_module(place: str, task: Task, trust_remote_code: bool) -> torch.nn.Module:
    loader = getattr(transformers, task.auto_class)
    try:
        module, report = loader.from_pretrained(
            place,
            dtype=torch.float32,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
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
        raise ConfigError(
            f"cannot load model {place!r}: {_first_line(error)}{_known_builtins(place)}"
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
    result: torch.nn.Module = module
    return result


def _load_tokenizer(place: str, trust_remote_code: bool) -> Any | None:
    """None where there is none: the server then takes token ids only."""
    if Path(place).is_dir() and not any((Path(place) / file).exists() for file in _TOKENIZER_FILES):
        return None  # transformers would make one up, with an empty vocabulary
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"cannot load the tokenizer of {place!r}: {_first_line(error)}") from error
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_ids) else None


def _vocabulary_size(source: str, config: Any) -> int:
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"model {source!r} has no vocabulary: it does not take token ids")
    return size


def _longest(config: Any, tokenizer: Any | None) -> int:
    """The longest sequence that both the position table and the tokenizer allow."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    longest = int(positions) if positions and positions > 0 else 512
    if getattr(config, "model_type", "") in _PADDED_POSITIONS:
        longest -= int(config.pad_token_id) + 1
    if tokenizer is not None:
        longest = min(longest, int(tokenizer.model_max_length))
    return longest


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _known_builtins(place: str) -> str:
    if Path(place).exists():
        return ""
    known = ", ".join([DEMO, *(RANDOM_PREFIX + name for name in RANDOM_MODELS)])
    return f" (a hub id needs the network; built-in models: {known})"
