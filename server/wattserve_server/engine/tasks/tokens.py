"""Tasks on token ids: an item is int64 [tokens]. With them, the tokenizer, and what all classifiers share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from jinja2 import TemplateError
from numpy.typing import NDArray
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from wattserve_common.positions import longest_sequence
from wattserve_server.engine.tasks.port import InputFacts, Inputs, Item, Scoring
from wattserve_server.errors import ConfigError, InvalidRequest, NotPossibleHere, OverloadedError

T = TypeVar("T")

MEAN, FIRST, LAST = "mean", "cls", "lasttoken"  # of a text's tokens; as sentence-transformers calls them

# Characters of all texts that may wait, the ones under way included: about a second's work.
MOST_WAITING = 2_000_000
CHARACTERS_PER_S = 2_500_000  # of DistilBERT's tokenizer on one core of 2026
EACH_TEXT = 100  # characters that take as long as a text does, however short: 40 us

HEAD_CHARACTERS = 32  # per token that the model takes, after which a text is looked at
SPECIAL = 8  # tokens around a text, which may fall away with its end

REMEDY = "; shorten it, or ask for truncate"

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


class Tokenizer:
    """The model's tokenizer on a thread of its own: tokenizers are not safe to share. longest: the tokens
    that the model takes of one text."""

    def __init__(self, tokenizer: Any, longest: int, most_waiting: int = MOST_WAITING) -> None:
        self._tokenizer = tokenizer
        self._longest = longest
        self._most_waiting = most_waiting
        self.waiting = 0  # characters, `EACH_TEXT` included, and those under way
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wattserve-tokenizer")

    async def encode(
        self, texts: Sequence[str], most: int | None = None, place: str = "", remedy: str = REMEDY
    ) -> tuple[list[NDArray[np.int64]], list[int]]:
        """Token ids of each text, special tokens included; and how many tokens each lost. most: to which they
        are cut; None: to none. place: of the texts in the request. remedy: what to do about one too long.

        Raises OverloadedError when too much waits already; InvalidRequest for a text so long that only its
        head was looked at.
        """
        return await self._run(texts, self._encode, list(texts), most, place, remedy)

    async def encode_chat(self, messages: Sequence[Mapping[str, str]], place: str) -> NDArray[np.int64]:
        """Token ids of a conversation, `role`, `content` and perhaps `name` each, up to where the model is to
        answer, by the tokenizer's own template. What spells a special token in a message is text.

        Raises NotPossibleHere where there is no template; InvalidRequest for what it refuses; OverloadedError
        as `encode`.
        """
        if getattr(self._tokenizer, "chat_template", None) is None:
            raise NotPossibleHere(
                "this model's tokenizer has no chat template: send a prompt to /v1/completions", place
            )
        contents = [message["content"] for message in messages]
        return await self._run(contents, self._encode_chat, list(messages), place)

    async def _run(self, texts: Sequence[str], work: Callable[..., T], *arguments: Any) -> T:
        characters = sum(map(len, texts)) + EACH_TEXT * len(texts)
        if self.waiting and self.waiting + characters > self._most_waiting:
            raise OverloadedError(
                f"the tokeniser's queue is full: {self.waiting} of {self._most_waiting} characters wait, and "
                f"this request has {characters}, {EACH_TEXT} of them for each text; try again later, or send "
                "token ids",
                "tokenizer",
                self.waiting / CHARACTERS_PER_S,
            )
        self.waiting += characters
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, work, *arguments)
        finally:
            self.waiting -= characters

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _encode(
        self, texts: list[str], most: int | None, place: str, remedy: str
    ) -> tuple[list[NDArray[np.int64]], list[int]]:
        if most is None:
            for index, text in enumerate(texts):
                self._check_head(text, f"{place}[{index}]", remedy)
        whole = self._tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]
        kept = [
            ids if most is None or len(ids) <= most else self._cut(text, most)
            for text, ids in zip(texts, whole, strict=True)
        ]
        cut = [len(ids) - len(left) for ids, left in zip(whole, kept, strict=True)]
        return [np.array(ids, dtype=np.int64) for ids in kept], cut

    def _encode_chat(self, messages: list[Mapping[str, str]], place: str) -> NDArray[np.int64]:
        try:
            ids = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False, sanitize_control_tokens=True
            )
        except (TemplateError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            raise InvalidRequest(f"the model's chat template refuses this: {error}", place) from error
        return np.array(ids, dtype=np.int64)

    def _check_head(self, text: str, field: str, remedy: str) -> None:
        """So that one which cannot fit is not tokenised for nothing, to its end."""
        if len(text) <= HEAD_CHARACTERS * self._longest:
            return
        head = text[: HEAD_CHARACTERS * self._longest]
        head = head.rpartition(" ")[0] or head
        ids = self._tokenizer(head, truncation=False, padding=False, verbose=False)["input_ids"]
        if len(ids) > self._longest + SPECIAL:
            raise InvalidRequest(
                f"of the text's {len(text)} characters the first {len(head)} are {len(ids)} tokens already; "
                f"this model takes at most {self._longest}{remedy}",
                field,
            )

    def _cut(self, text: str, most: int) -> list[int]:
        """As `loadgen prepare` cuts it: the special tokens around a text stay."""
        ids: list[int] = self._tokenizer(text, truncation=True, max_length=most, verbose=False)["input_ids"]
        return ids


class LabelAnswers:
    """The methods of a Task that concern its answers."""

    output_name = "logits"
    unused_weights: tuple[str, ...] = ()

    def labels(self, config: Any) -> list[str]:
        return [str(config.id2label[index]) for index in range(config.num_labels)]

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
