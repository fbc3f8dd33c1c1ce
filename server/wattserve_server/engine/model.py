"""Loading a model: from a hub id, a folder, or one of the built-ins; and the kinds it can be served as."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch.nn.functional import pad

from wattserve_common.hub import hub_is_reachable
from wattserve_server.engine import exported, prequantised
from wattserve_server.engine.builtin.random_weights import build_random_model, random_model
from wattserve_server.engine.checkpoint import (
    BUILT_IN,
    RANDOM_PREFIX,
    Made,
    check_finite,
    check_not_an_export,
    digest,
    fingerprint,
    in_words,
    known_builtins,
    load_checkpoint,
    read_json,
    runnable,
    skeleton,
)
from wattserve_server.engine.generation.proof import check_steps
from wattserve_server.engine.pooling import note_pooling
from wattserve_server.engine.tasks import InputFacts, Item, Scoring, Task, task_by_config, task_named
from wattserve_server.engine.tasks.tokens import FeatureExtraction
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.port import Kind
from wattserve_server.engine.weights import Weights
from wattserve_server.errors import ConfigError

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model",
    "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip


# Of the largest number of an answer: far above rounding in fp32, far below what reading the padding changes.
_PADDING_TOLERANCE = 0.005


@dataclass(slots=True)
class LoadedModel:
    """A model ready to be made into variants."""

    name: str  # as it is served
    source: str  # as the operator named it
    task: Task
    weights: Weights
    config: Any
    tokenizer: Any | None
    labels: list[str]
    facts: InputFacts  # what it takes, `max_tokens` as the operator limited it
    parameters: int
    weights_digest: str = ""  # of `checkpoint.digest`
    has_random_weights: bool = False  # its answers mean nothing; only speed and energy do
    is_packable: bool | None = None  # whether packing tokens was found to change no answer; None: not tried
    scoring: Scoring | None = field(init=False)  # asked of the task once: a config takes long to say anything

    def __post_init__(self) -> None:
        self.scoring = self.task.scoring(self.config)


def load_model(
    source: str, task: Task, name: str = "", trust_remote_code: bool = False, max_tokens: int | None = None
) -> LoadedModel:
    """source: a hub id, a local folder, `demo`, `demo-llm` or `random:NAME`. Raises ConfigError."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer: Any | None = None

    def load() -> torch.nn.Module:
        if source.startswith(RANDOM_PREFIX):
            return runnable(source, task, _random_module(source.removeprefix(RANDOM_PREFIX), task))
        if fingerprint(place) != as_opened:  # variants made before and after would share tensors
            raise ConfigError(
                f"model folder {place!r} has changed since it was opened: start the server again"
            )
        if made is not None:
            module = skeleton(place, task, trust_remote_code)
        else:
            check_not_an_export(place)
            module = load_checkpoint(place, task, trust_remote_code)
            if getattr(module, "hf_quantizer", None) is not None:
                raise ConfigError(f"model {source!r} is quantised, and its config.json does not say how")
            module = module.float()
            check_finite(source, module)
        _borrow_pad_id(module.config, tokenizer)
        if task.name == FeatureExtraction.name:
            note_pooling(place, module.config)
        return module

    place = _place(source)
    if not source.startswith(RANDOM_PREFIX):
        _check_place(place)
        _check_task(place, task)
    as_opened = fingerprint(place)
    made = made_of(source, task, trust_remote_code)
    weights = Weights(load, "" if made is None else made.words)
    module: Any = weights.module
    config = module.config
    if source.startswith(RANDOM_PREFIX):
        tokenizer = random_model(source.removeprefix(RANDOM_PREFIX)).make_tokenizer(config)
    elif task.takes_text:
        tokenizer = _load_tokenizer(place, trust_remote_code)
        _borrow_pad_id(config, tokenizer)
    facts = task.facts(source, config, tokenizer)
    if max_tokens is not None:
        if max_tokens > facts.max_tokens:
            raise ConfigError(
                f"--max-tokens {max_tokens}: {source!r} takes at most {facts.max_tokens} tokens"
            )
        facts = replace(facts, max_tokens=max_tokens)
    if made is None and task.takes_text and not task.generates:
        _check_padding(
            source, task, module, task.example(facts, tokenizer, min(4, facts.max_tokens), 0), facts
        )
    if made is None and task.generates:
        check_steps(source, module)
    return LoadedModel(
        name=name or _default_name(source),
        source=source,
        task=task,
        weights=weights,
        config=config,
        tokenizer=tokenizer,
        labels=task.labels(config),
        facts=facts,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        weights_digest=digest(place),
        has_random_weights=source.startswith(RANDOM_PREFIX) if made is None else made.has_random_weights,
    )


def _random_module(name: str, task: Task) -> torch.nn.Module:
    usable = random_model(name).tasks
    if task.name not in usable:
        raise ConfigError(
            f"{RANDOM_PREFIX}{name} cannot do the task {task.name}: serve it with --task {usable[0]}"
        )
    module: Any = build_random_model(name)
    if task.name == "feature-extraction":
        module = module.base_model
    result: torch.nn.Module = module.float().eval()
    return result


def _default_name(source: str) -> str:
    if source.startswith(RANDOM_PREFIX):
        return source.removeprefix(RANDOM_PREFIX)
    return Path(source).resolve().name if os.path.isdir(source) else source.rstrip("/").rpartition("/")[2]


def _place(source: str) -> str:
    """The folder or the hub id where it is; of a random model, its name."""
    return str(BUILT_IN[source]()) if source in BUILT_IN else source


def _check_place(place: str) -> None:
    """A local path must be a readable model folder; anything else is left to the hub, or to its cache."""
    path = Path(place)
    looks_local = place.startswith((".", "/", "~")) or path.exists()
    if not looks_local:
        if not _is_cached(place) and not hub_is_reachable():
            raise ConfigError(
                f"model {place!r}: there is no such folder, the hub's local cache does not have it, and the "
                f"hub cannot be reached{known_builtins(place)}"
            )
        return
    if not path.is_dir():
        raise ConfigError(f"model folder {place!r} does not exist or is not a folder")
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"model folder {place!r} cannot be read: permission denied")
    if not (path / "config.json").is_file():
        raise ConfigError(f"model folder {place!r} holds no config.json; is it a transformers model?")


def _check_task(place: str, task: Task) -> None:
    if why := task.refusal(read_json(place, "config.json") or {}):
        raise ConfigError(f"model {place!r} cannot do the task {task.name}: {why}")


def _check_padding(source: str, task: Task, module: torch.nn.Module, item: Item, facts: InputFacts) -> None:
    """Refuse a model that reads its padding, such as XLNet's head: its answer to a text would depend on the
    texts that it shares a batch with."""
    batch = task.collate([item], facts)
    length = min(2 * len(item), facts.max_tokens) - len(item)
    ends = {"input_ids": facts.pad_id, "attention_mask": 0}
    padded = {name: pad(tensor, (0, length), value=ends[name]) for name, tensor in batch.items()}
    with torch.inference_mode():
        try:
            alone, beside = (task.forward(module, inputs) for inputs in (batch, padded))
        except Exception:  # whatever it raises: the first variant's own check says so, with its words
            return
    apart = (alone - beside).abs().max()
    if apart > _PADDING_TOLERANCE * alone.abs().max():
        raise ConfigError(
            f"model {source!r} reads the padding behind a text: padded, the same text is answered "
            "otherwise, so that answers would depend on what they share a batch with"
        )


def _is_cached(name: str) -> bool:
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:  # no name that the hub could have
        return False


def _borrow_pad_id(config: Any, tokenizer: Any | None) -> None:
    """Some classifiers look in their config for what fills a batch, and some checkpoints have it only in the
    tokenizer."""
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = getattr(tokenizer, "pad_token_id", None)


def _load_tokenizer(place: str, trust_remote_code: bool) -> Any | None:
    """None where there is none: the server then takes token ids only."""
    if Path(place).is_dir() and not any((Path(place) / file).exists() for file in _TOKENIZER_FILES):
        return None  # transformers would make one up, with an empty vocabulary
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
    except MemoryError:
        raise
    except Exception as error:  # whatever transformers and tokenizers raise where anything in it is wrong
        why = f"its file lacks {error}" if isinstance(error, KeyError) else in_words(error)
        raise ConfigError(f"cannot load the tokenizer of {place!r}: {why}") from error
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_ids) else None


def task_of(source: str, name: str = "") -> Task:
    """The task of that name; without one, what the model is made for. Raises ConfigError."""
    if name:
        return task_named(name)
    if source.startswith(RANDOM_PREFIX):
        return task_named(random_model(source.removeprefix(RANDOM_PREFIX)).tasks[0])
    place = _place(source)
    _check_place(place)
    return task_by_config(read_json(place, "config.json") or {})


def made_of(source: str, task: Task, trust_remote_code: bool = False) -> Made | None:
    """None for a model that variants are made from. Reads two small files, no weights. Raises ConfigError for
    a variant that cannot be served here."""
    if source in BUILT_IN or source.startswith(RANDOM_PREFIX):
        return None
    _check_place(source)
    return exported.made_of(source, task) or prequantised.made_of(source, task, trust_remote_code)


def kinds_of(source: str, task: Task, trust_remote_code: bool = False) -> tuple[Mapping[str, Kind], str]:
    """The kinds to choose from, and, where that is only one, why. Raises ConfigError."""
    made = made_of(source, task, trust_remote_code)
    return (KINDS, "") if made is None else ({made.kind.name: made.kind}, made.words)
