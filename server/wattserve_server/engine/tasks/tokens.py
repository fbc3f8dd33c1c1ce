"""Tasks on token ids: an item is int64 [tokens]. With them, the tokenizer, and what all classifiers share."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from jinja2 import TemplateError
from numpy.typing import NDArray
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from wattserve_common.positions import longest_sequence
from wattserve_common.words import counted
from wattserve_server.engine.fair import Turns
from wattserve_server.engine.tasks.port import InputFacts, Inputs, Item, Scoring
from wattserve_server.errors import ConfigError, InvalidRequest, NotPossibleHere, OverloadedError

T = TypeVar("T")

MEAN, FIRST, LAST = "mean", "cls", "lasttoken"  # of a text's tokens; as sentence-transformers calls them

# Characters of one caller's texts that may wait, the ones under way included: about a second's work. Of all
# callers' so many times that; but nobody may have more than he leaves to others, so that few cannot fill it.
MOST_WAITING, MOST_CALLERS = 2_000_000, 8
CHARACTERS_PER_S = 2_500_000  # of DistilBERT's tokenizer on one core of 2026, of plain text
EACH_TEXT = 100  # characters that take as long as a text does, however short: 40 us
AT_A_TIME = 20_000  # characters of a request, after which others have their turn

# Words that a tokenizer does not know take ten times as long as others. So characters count for as many more
# as those of their caller have taken lately; not for what a busy machine took of a few.
MOST_SLOWNESS, HICCUP_S, REMEMBERED = 100.0, 0.005, 1000

HEAD_CHARACTERS = 32  # per token that the model takes, after which a text is looked at
SPECIAL = 8  # tokens around a text, which may fall away with its end
PARTED = 0.25  # of the tokens wanted: more than pieces of a text have above what the whole text has

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
        return InputFacts(
            longest_sequence(config, tokenizer, pad_id), size, pad_id=pad_id, end_id=_end_id(config, size)
        )

    def length(self, item: Item) -> int:
        return len(item)

    def example(self, facts: InputFacts, tokenizer: Any | None, length: int, seed: int) -> Item:
        """Random ids, between the special tokens that the model expects around a text."""
        ids = np.random.default_rng(seed).integers(0, facts.vocabulary_size, size=length, dtype=np.int64)
        special = {facts.pad_id, *(() if facts.end_id is None else (facts.end_id,))}
        special.update(() if tokenizer is None else tokenizer.all_special_ids)
        plain = next((i for i in range(facts.vocabulary_size) if i not in special), 0)
        ids[np.isin(ids, list(special))] = plain
        around = [] if tokenizer is None else tokenizer("a")["input_ids"]
        if length >= 3 and around and around[0] in special:
            ids[0] = around[0]
        if length >= 3 and around and around[-1] in special:
            ids[-1] = around[-1]
        if facts.end_id is not None:
            ids[-1] = facts.end_id
        return ids

    def collate(self, items: Sequence[Item], facts: InputFacts) -> Inputs:
        longest = max(len(ids) for ids in items)
        padded = np.full((len(items), longest), facts.pad_id, dtype=np.int64)
        mask = np.zeros((len(items), longest), dtype=np.int64)
        for row, ids in enumerate(items):
            padded[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
        return {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}


def _end_id(config: Any, size: int) -> int | None:
    """Encoder-decoders classify by the token that ends a text, and raise where there is none."""
    end_id = getattr(config, "eos_token_id", None)
    is_looked_for = getattr(config, "is_encoder_decoder", False)
    return end_id if is_looked_for and isinstance(end_id, int) and 0 <= end_id < size else None


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
    """The model's tokenizer on a thread of its own: tokenizers are not safe to share. Callers take turns, and
    so do a caller's requests, some of their texts at a time. longest: the tokens that the model takes of one
    text. most_waiting: of one caller."""

    def __init__(self, tokenizer: Any, longest: int, most_waiting: int = MOST_WAITING) -> None:
        self._tokenizer = tokenizer
        self._longest = longest
        self._most_waiting = most_waiting
        self.waiting = 0  # characters of all, as they count, and those under way
        self._of_caller: Counter[str] = Counter()  # of those
        self._slowness: dict[str, float] = {}  # by caller, the latest last; 1 where there is none
        self._turns = Turns()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wattserve-tokenizer")

    async def encode(
        self,
        texts: Sequence[str],
        most: int | None = None,
        place: str = "",
        remedy: str = REMEDY,
        who: str = "",
    ) -> tuple[list[NDArray[np.int64]], list[int]]:
        """Token ids of each text, special tokens included; and how many tokens each lost. most: to which they
        are cut; None: to none. place: of the texts in the request. remedy: what to do about one too long.
        who: the caller.

        Raises OverloadedError when too much waits already; InvalidRequest for a text so long that only its
        head was looked at.
        """
        ids, cut = list[NDArray[np.int64]](), list[int]()
        with self._waits(texts, who):
            for index, text in enumerate(texts if most is None else ()):
                await self._check_long(text, who, f"{place}[{index}]", remedy)
            most_whole = AT_A_TIME if most is None else _head(most)
            for part in _parts(texts, most_whole):
                if most is not None and len(part[0]) > most_whole:
                    kept, lost = await self._cut_long(part[0], most, who)
                    ids.append(kept)
                    cut.append(lost)
                else:
                    more = await self._run(part, who, self._encode, part, most)
                    ids += more[0]
                    cut += more[1]
        return ids, cut

    async def _check_long(self, text: str, who: str, field: str, remedy: str) -> None:
        """So that a text which cannot fit is not tokenised for nothing, to its end."""
        count, head = 0, _head(self._longest)
        for end, piece in _pieces(text, head) if len(text) > head else ():
            count += await self._run([piece], who, self._count, piece)
            if _are_more(count, self._longest):
                raise InvalidRequest(
                    f"of {len(text)} characters the first {end} are {count} tokens already; "
                    f"this model takes at most {self._longest}{remedy}",
                    field,
                )

    async def _cut_long(self, text: str, most: int, who: str) -> tuple[NDArray[np.int64], int]:
        """As `_encode` cuts it, but so that others have their turn: the head is cut, and the rest is counted,
        to within a token for each piece that ends in a word."""
        count, head = 0, 0
        cuts_the_end = getattr(self._tokenizer, "truncation_side", "right") == "right"
        for end, piece in _pieces(text, _head(most)) if cuts_the_end else ():
            count += await self._run([piece], who, self._count, piece)
            if not head and _are_more(count, most):
                head = end
        if not head:
            ids, cut = await self._run([text], who, self._encode, [text], most)
            return ids[0], cut[0]
        kept = await self._run([text[:head]], who, self._cut, text[:head], most)
        whole = count + self._tokenizer.num_special_tokens_to_add(pair=False)
        return np.array(kept, dtype=np.int64), whole - len(kept)

    async def encode_chat(
        self, messages: Sequence[Mapping[str, str]], place: str, who: str = ""
    ) -> NDArray[np.int64]:
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
        with self._waits(contents, who):
            if sum(map(len, contents)) > _head(self._longest):
                rendered = await self._run((), who, self._rendered, messages, place)
                await self._check_long(rendered, who, place, "; send fewer messages, or shorter ones")
            return await self._run(contents, who, self._encode_chat, messages, place)

    @contextmanager
    def _waits(self, texts: Sequence[str], who: str) -> Iterator[None]:
        slowness, own = self._slowness.get(who, 1.0), self._of_caller[who]
        characters = round(_characters(texts) * slowness)
        waiting, most = self.waiting, max(0, MOST_CALLERS * self._most_waiting - self.waiting - characters)
        if own and most > self._most_waiting:  # without any, one request may be longer
            waiting, most = own, self._most_waiting
        if self.waiting and own + characters > most:
            slow = f" and counted {slowness:.1f} times, for they take so long" if slowness > 1.05 else ""
            raise OverloadedError(
                f"the tokeniser's queue is full: {self.waiting} characters wait, {own} of them this "
                f"caller's, who may have {most} with this request; it has {characters}, {EACH_TEXT} of them "
                f"for each text{slow}; try again later, or send token ids",
                "tokenizer",
                waiting / CHARACTERS_PER_S,
            )
        self.waiting += characters
        self._of_caller[who] += characters
        try:
            yield
        finally:
            self.waiting -= characters
            self._of_caller[who] -= characters
            if not self._of_caller[who]:
                del self._of_caller[who]

    async def _run(self, texts: Sequence[str], who: str, work: Callable[..., T], *arguments: Any) -> T:
        def timed() -> tuple[T | Exception, float]:
            begun_s = time.perf_counter()
            try:
                done: T | Exception = work(*arguments)
            except Exception as error:
                done = error
            return done, time.perf_counter() - begun_s

        characters = _characters(texts)
        likely_s = characters * self._slowness.get(who, 1.0) / CHARACTERS_PER_S
        async with self._turns.of(who, likely_s):
            done, took_s = await asyncio.get_running_loop().run_in_executor(self._thread, timed)
        self._learn(who, characters, took_s)
        if isinstance(done, Exception):
            raise done
        return done

    def _learn(self, who: str, characters: int, took_s: float) -> None:
        """How long the texts of that caller take."""
        seen = min(max(took_s - HICCUP_S, 0.0) * CHARACTERS_PER_S / characters, MOST_SLOWNESS)
        known = self._slowness.pop(who, 1.0)
        slowness = max(known + (seen - known) * characters / (characters + AT_A_TIME), 1.0)
        if slowness > 1.0:
            self._slowness[who] = slowness
            if len(self._slowness) > REMEMBERED:
                del self._slowness[next(iter(self._slowness))]

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _encode(self, texts: list[str], most: int | None) -> tuple[list[NDArray[np.int64]], list[int]]:
        whole = self._tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]
        kept = [
            ids if most is None or len(ids) <= most else self._cut(text, most)
            for text, ids in zip(texts, whole, strict=True)
        ]
        cut = [len(ids) - len(left) for ids, left in zip(whole, kept, strict=True)]
        return [np.array(ids, dtype=np.int64) for ids in kept], cut

    def _rendered(self, messages: Sequence[Mapping[str, str]], place: str) -> str:
        rendered: str = self._by_template(messages, place, tokenize=False)
        return rendered

    def _encode_chat(self, messages: Sequence[Mapping[str, str]], place: str) -> NDArray[np.int64]:
        ids = self._by_template(messages, place, return_dict=False, sanitize_control_tokens=True)
        return np.array(ids, dtype=np.int64)

    def _by_template(self, messages: Sequence[Mapping[str, str]], place: str, **how: bool) -> Any:
        try:
            return self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, **how)
        except (TemplateError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            raise InvalidRequest(f"the model's chat template refuses this: {error}", place) from error

    def _count(self, piece: str) -> int:
        """Tokens, but for special ones."""
        return len(self._tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])

    def _cut(self, text: str, most: int) -> list[int]:
        """As `loadgen prepare` cuts it: the special tokens around a text stay."""
        ids: list[int] = self._tokenizer(text, truncation=True, max_length=most, verbose=False)["input_ids"]
        return ids


def _characters(texts: Sequence[str]) -> int:
    return sum(map(len, texts)) + EACH_TEXT * max(len(texts), 1)


def _head(most: int) -> int:
    """Characters after which a text is looked at, of which so many tokens are wanted."""
    return min(HEAD_CHARACTERS * most, AT_A_TIME)


def _are_more(count: int, most: int) -> bool:
    """Whether a text whose pieces have so many tokens has surely more than that as a whole."""
    return count > (1 + PARTED) * most + SPECIAL


def _pieces(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Of so many characters, and then of as many as are tokenised at a time; between words where there are
    any. Each with where it ends in the text."""
    begin, most = 0, first
    while begin < len(text):
        piece = text[begin : begin + most]
        if begin + most < len(text) and (end := piece.rfind(" ")) > 0:
            piece = piece[:end]
        begin += len(piece)
        yield begin, piece
        most = AT_A_TIME


def _parts(texts: Sequence[str], most_whole: int) -> Iterator[list[str]]:
    """Each of about so many characters as are tokenised at a time; of a longer text, or of one of more
    characters than most_whole, that text alone."""
    part, characters = list[str](), 0
    for text in texts:
        size = AT_A_TIME if len(text) > most_whole else len(text) + EACH_TEXT
        if part and characters + size > AT_A_TIME:
            yield part
            part, characters = [], 0
        part.append(text)
        characters += size
    if part:
        yield part


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
