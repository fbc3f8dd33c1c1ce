"""Tasks on token ids: an item is int64 [tokens]. With them, what all classifiers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from wattserve_common.positions import longest_sequence
from wattserve_common.words import counted
from wattserve_server.engine.tasks.port import InputFacts, Inputs, Item, Scoring
from wattserve_server.errors import ConfigError

MEAN, FIRST, LAST = "mean", "cls", "lasttoken"  # of a text's tokens; as sentence-transformers calls them

_FEW = 16  # labels for which numpy's calls take longer than the arithmetic


class TokenItems:
    """The methods of a Task that concern its items."""

    takes_text = True
    generates = False

    def refusal(self, config: Mapping[str, Any]) -> str:
        return ""

    def facts(self, source: str, config: Any, tokenizer: Any | None) -> InputFacts:
        size = getattr(config, "vocab_size", None)
        takes_images = hasattr(config, "num_channels")  # some of those have a vocabulary, of image patches
        if takes_images or not isinstance(size, int) or size < 1:
            raise ConfigError(
                f"model {source!r} does not take token ids (a classifier of images is "
                "served by --task image-classification)"
            )
        pad_id = _pad_id(source, config, size)
        return InputFacts(longest_sequence(config, tokenizer, pad_id), size, pad_id=pad_id)

    def length(self, item: Item) -> int:
        return len(item)

    def example(self, facts: InputFacts, tokenizer: Any | None, length: int, seed: int) -> Item:
        """Random ids, between the special tokens that the model expects around a text."""
        ids = np.random.default_rng(seed).integers(0, facts.vocabulary_size, size=length, dtype=np.int64)
        ids[ids == facts.pad_id] = (facts.pad_id + 1) % facts.vocabulary_size
        if tokenizer is None:
            return ids
        special = set(tokenizer.all_special_ids)
        plain = next(i for i in range(facts.vocabulary_size) if i not in special)
        ids[np.isin(ids, list(special))] = plain
        around = tokenizer("a")["input_ids"]
        if length >= 3 and around and around[0] in special:
            ids[0] = around[0]
        if length >= 3 and around and around[-1] in special:
            ids[-1] = around[-1]
        return ids

    def collate(self, items: Sequence[Item], facts: InputFacts) -> Inputs:
        longest = max(len(ids) for ids in items)
        padded = np.full((len(items), longest), facts.pad_id, dtype=np.int64)
        mask = np.zeros((len(items), longest), dtype=np.int64)
        for row, ids in enumerate(items):
            padded[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
        return {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}


def _pad_id(source: str, config: Any, size: int) -> int:
    pad_id = getattr(config, "pad_token_id", None)
    if pad_id is None:
        raise ConfigError(
            f"model {source!r} has no padding token, without which texts of different lengths cannot share a "
            "batch: set pad_token_id in its config.json to an id that its texts do not use"
        )
    if not isinstance(pad_id, int) or not 0 <= pad_id < size:
        raise ConfigError(
            f"model {source!r}: pad_token_id in its config.json is {pad_id!r}; its vocabulary has the ids 0 "
            f"to {size - 1}"
        )
    return pad_id


class LabelAnswers:
    """The methods of a Task that concern its answers."""

    output_name = "logits"
    unused_weights: tuple[str, ...] = ()

    def labels(self, config: Any) -> list[str]:
        names: dict[int, Any] = config.id2label
        lost = [index for index in range(config.num_labels) if not isinstance(names.get(index), str | int)]
        if lost:
            raise ConfigError(
                f"id2label in the model's config.json names no label {lost[0]}: of "
                f"{counted(config.num_labels, 'label')} each needs a name, from 0 to {config.num_labels - 1}"
            )
        return [str(names[index]) for index in range(config.num_labels)]

    def forward(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        logits: torch.Tensor = module(**inputs).logits
        return logits

    def scoring(self, config: Any) -> Scoring:
        """Softmax; sigmoid for multi-label models; the raw value for a regression."""
        kind = getattr(config, "problem_type", None)
        if kind == "regression" or (kind is None and config.num_labels == 1):
            return _raw
        return _sigmoid if kind == "multi_label_classification" else _softmax


def _raw(row: NDArray[np.float32]) -> list[float]:
    numbers: list[float] = row.tolist()
    return numbers


def _softmax(row: NDArray[np.float32]) -> list[float]:
    if len(row) <= _FEW:
        numbers: list[float] = row.tolist()
        highest = max(numbers)
        powers = [math.exp(number - highest) for number in numbers]
        total = sum(powers)
        return [power / total for power in powers]
    exponentials: NDArray[np.float32] = np.exp(row - row.max())
    return _raw(exponentials / exponentials.sum())


def _sigmoid(row: NDArray[np.float32]) -> list[float]:
    return _raw(np.reciprocal(1 + np.exp(-row), dtype=np.float32))


class SequenceClassification(TokenItems, LabelAnswers):
    name = "sequence-classification"
    auto_class = "AutoModelForSequenceClassification"
    architectures = frozenset(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values())


class FeatureExtraction(TokenItems):
    name = "feature-extraction"
    auto_class = "AutoModel"
    architectures: frozenset[str] = frozenset()  # any encoder may do it: it is asked for by name
    output_name = "embedding"
    unused_weights: tuple[str, ...] = ("pooler.",)

    def labels(self, config: Any) -> list[str]:
        return []

    def forward(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        hidden = module(**inputs).last_hidden_state.float()
        return _pooled(module.config, hidden, inputs["attention_mask"])

    def scoring(self, config: Any) -> None:
        return None


def _pooled(config: Any, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """hidden: [texts, tokens, width]; mask: ones, then zeros -> [texts, width]"""
    pooling = getattr(config, "embedding_pooling", MEAN)
    if pooling == FIRST:
        embedding = hidden[:, 0]
    elif pooling == LAST:
        embedding = hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(dim=1) - 1]
    else:
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        embedding = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
    if getattr(config, "embedding_is_normalised", False):
        embedding = torch.nn.functional.normalize(embedding)
    return embedding
