"""What tasks on token ids have in common: an item is int64 [tokens]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wattserve_server.engine.tasks.port import InputFacts, Inputs, Item
from wattserve_server.errors import ConfigError

_PADDED_POSITIONS = (
    "camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm",
    "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
"""Architectures whose position table starts after the padding id: those of transformers' classifiers and
encoders of text that look positions up from `padding_idx + 1` on."""

_MPNET_PADDING = 1
"""MPNet's positions start after this, whatever the padding id."""


class TokenItems:
    """The methods of a Task that concern its items."""

    takes_text = True

    def facts(self, source: str, config: Any, tokenizer: Any | None) -> InputFacts:
        size = getattr(config, "vocab_size", None)
        takes_images = hasattr(config, "num_channels")  # some of those have a vocabulary, of image patches
        if takes_images or not isinstance(size, int) or size < 1:
            raise ConfigError(
                f"model {source!r} does not take token ids (a classifier of images is "
                "served by --task image-classification)"
            )
        pad_id = _pad_id(source, config)
        return InputFacts(_longest(config, tokenizer, pad_id), size, pad_id=pad_id)

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


def _longest(config: Any, tokenizer: Any | None, pad_id: int) -> int:
    """The longest sequence that both the position table and the tokenizer allow."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    longest = int(positions) if positions and positions > 0 else 512
    architecture = getattr(config, "model_type", "")
    has_table = getattr(config, "position_embedding_type", None) != "rotary"  # most ESM have none
    if architecture in _PADDED_POSITIONS and has_table:
        longest -= (_MPNET_PADDING if architecture == "mpnet" else pad_id) + 1
    if tokenizer is not None:
        longest = min(longest, int(tokenizer.model_max_length))
    return longest


def _pad_id(source: str, config: Any) -> int:
    pad_id = getattr(config, "pad_token_id", None)
    if pad_id is None:
        raise ConfigError(
            f"model {source!r} has no padding token, without which texts of different lengths cannot share a "
            "batch: set pad_token_id in its config.json to an id that its texts do not use"
        )
    return int(pad_id)
