"""Makes dataset folders of prompts for a language model, each with how many tokens are to follow it.

From a file: a text or a conversation for each prompt; or synthetic: random tokens with given lengths. An
answer always has the length that is written down (the server is told to go on behind end tokens), so that
every variant does the same work, and joules per token compare like with like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from wattserve_common import dataset
from wattserve_common.errors import DatasetError
from wattserve_common.strict_json import check_characters, json_of
from wattserve_common.tensor_files import NO_LABEL
from wattserve_loadgen.data.lengths import Lengths
from wattserve_loadgen.data.prepare import MOST_TOKENS, Prepared, check_random
from wattserve_loadgen.data.tables import read_lines, read_rows
from wattserve_loadgen.data.tokenizing import check_seed, load_config, load_tokenizer, row_limit

_ASKING = ("human", "user", "system")
_ANSWERING = ("gpt", "assistant", "chatgpt", "bing", "bard")
_ROLES = {"human": "user", "user": "user", "system": "system"}
_NO_LABELS = "none (prompts: the quality of a language model is its perplexity)"


@dataclass(frozen=True)
class Prompt:
    """What is asked, and what was answered to it."""

    place: str  # "line 12", for errors
    messages: tuple[tuple[str, str], ...]  # (role, text): up to the first answer
    answer: str = ""  # empty: the file holds none
    is_chat: bool = False  # it was taken from a conversation


def prepare_prompts(
    source: Path,
    out: Path,
    *,
    tokenizer: str,
    output_tokens: Lengths | None = None,
    text_column: str = "text",
    max_length: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Prepared:
    """Prompts of a file: a text each (.txt, .csv, .jsonl, .parquet), or conversations (.json, .jsonl).

    Conversations are those of ShareGPT (`conversations` of `from` and `value`) or of OpenAI (`messages` of
    `role` and `content`): what stands before the first answer is the prompt, in the tokenizer's chat template
    where it has one. Without `output_tokens` an answer is as long as the recorded one, and at most half the
    model's context. A prompt is cut at its end to `max_length`, and to what its answer leaves of the context.
    """
    check_seed(seed)
    prompts = _read_prompts(source, text_column, limit)
    encoder, config = load_tokenizer(tokenizer), load_config(tokenizer)
    context = row_limit(encoder, config, None)
    longest = row_limit(encoder, config, max_length)
    if output_tokens is None:
        wanted = [_recorded_length(source, encoder, prompt) for prompt in prompts]
        lengths = [min(length, context // 2) for length in wanted]
    else:
        wanted = lengths = output_tokens.draw(len(prompts), np.random.default_rng(seed))
    rows, truncated = [], 0
    for prompt, length in zip(prompts, lengths, strict=True):
        if length >= context:
            raise DatasetError(
                f"--output-tokens: {length} tokens leave no room for a prompt: the model takes {context}"
            )
        ids = _encode(encoder, prompt)
        if not ids:
            raise DatasetError(f"{source}: {prompt.place}: the tokenizer makes no tokens of it; remove it")
        most = min(longest, context - length)
        truncated += len(ids) > most
        rows.append(ids[:most])
    description = {
        "kind": "prompts",
        "source": str(source),
        "tokenizer": tokenizer,
        "rows": len(rows),
        "chat_template": any(_takes_template(encoder, prompt) for prompt in prompts),
        "output_tokens": "as recorded" if output_tokens is None else output_tokens.text,
        "shortened_answers": sum(length < asked for length, asked in zip(lengths, wanted, strict=True)),
        "max_length": longest,
        "truncated_rows": truncated,
        "seed": seed,
        "label_names": [],
    }
    pad_id = encoder.pad_token_id
    dataset.save(out, rows, [NO_LABEL] * len(rows), description, 0 if pad_id is None else pad_id, lengths)
    return Prepared(out, len(rows), truncated, longest, _NO_LABELS, len(rows))


def prepare_random_prompts(
    out: Path,
    *,
    rows: int,
    vocabulary_size: int,
    prompt_tokens: Lengths,
    output_tokens: Lengths,
    seed: int = 0,
) -> Prepared:
    """Prompts of random tokens. For speed and energy only: they mean nothing."""
    check_random("--random-prompts", rows, "prompt", seed, vocabulary_size)
    generator = np.random.default_rng(seed)
    lengths, answers = (one.draw(rows, generator) for one in (prompt_tokens, output_tokens))
    token_rows = [generator.integers(1, vocabulary_size, size=length).tolist() for length in lengths]
    description = {
        "kind": "random prompts",
        "note": "random token ids: for speed and energy only",
        "rows": rows,
        "vocabulary_size": vocabulary_size,
        "prompt_tokens": prompt_tokens.text,
        "output_tokens": output_tokens.text,
        "seed": seed,
        "label_names": [],
    }
    dataset.save(out, token_rows, [NO_LABEL] * rows, description, max_new_tokens=answers)
    return Prepared(out, rows, 0, max(lengths), _NO_LABELS, rows)


def _read_prompts(source: Path, text_column: str, limit: int | None) -> list[Prompt]:
    if source.suffix == ".json" or (source.suffix == ".jsonl" and _holds_conversations(source)):
        prompts = [
            _conversation(f"{source}: {place}", place, value)
            for place, value in islice(_objects(source), limit or MOST_TOKENS)
        ]
        if not prompts:
            raise DatasetError(f"{source}: no conversations in it")
        return prompts
    table = read_rows(source, text_column, None, limit)
    return [Prompt(row.place, (("user", row.text),)) for row in table.rows]


def _holds_conversations(source: Path) -> bool:
    """Whether its first object does."""
    if not source.is_file():
        return False
    _, value = next(_objects(source), ("", None))
    return isinstance(value, dict) and ("conversations" in value or "messages" in value)


def _objects(source: Path) -> Iterator[tuple[str, Any]]:
    if not source.is_file():
        raise DatasetError(f"{source}: no such file")
    if source.suffix == ".json":
        try:
            value = json_of("".join(read_lines(source)))
        except ValueError as error:
            raise DatasetError(f"{source}: not JSON ({error})") from None
        if not isinstance(value, list):
            raise DatasetError(f"{source}: must hold a list of conversations, found {type(value).__name__}")
        yield from ((f"conversation {number}", entry) for number, entry in enumerate(value, start=1))
        return
    for number, line in enumerate(read_lines(source), start=1):
        try:
            yield f"line {number}", json_of(line)
        except ValueError as error:
            raise DatasetError(f"{source}: line {number}: not JSON ({error})") from None


def _conversation(where: str, place: str, value: Any) -> Prompt:
    turns = value.get("conversations", value.get("messages")) if isinstance(value, dict) else None
    if not isinstance(turns, list):
        raise DatasetError(f"{where}: no `conversations` (from, value) or `messages` (role, content) in it")
    asked: list[tuple[str, str]] = []
    for turn in turns:
        role, text = _turn(where, turn)
        if role in _ANSWERING and asked:
            return Prompt(place, tuple(asked), text, is_chat=True)
        if role in _ASKING:
            asked.append((_ROLES[role], text))
    if not asked:
        raise DatasetError(f"{where}: nobody asks anything in it")
    return Prompt(place, tuple(asked), is_chat=True)


def _turn(where: str, turn: Any) -> tuple[str, str]:
    if isinstance(turn, dict):
        role, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if role in (*_ASKING, *_ANSWERING) and isinstance(text, str):
            try:
                check_characters(text)
            except ValueError as error:
                raise DatasetError(f"{where}: a turn's text: {error}; repair or remove it") from None
            return role, text
    raise DatasetError(
        f"{where}: {str(turn)[:60]!r} is no turn; it names who says it ({', '.join((*_ASKING, *_ANSWERING))})"
        " and a text"
    )


def _recorded_length(source: Path, encoder: Any, prompt: Prompt) -> int:
    """Of the answer, in tokens, at least 1."""
    if not prompt.answer:
        raise DatasetError(
            f"{source}: {prompt.place}: no answer is recorded, so its length is not known; give"
            " --output-tokens"
        )
    return max(1, len(encoder(prompt.answer, add_special_tokens=False, verbose=False)["input_ids"]))


def _takes_template(encoder: Any, prompt: Prompt) -> bool:
    return prompt.is_chat and bool(encoder.chat_template)


def _encode(encoder: Any, prompt: Prompt) -> list[int]:
    if _takes_template(encoder, prompt):
        asked = [{"role": role, "content": text} for role, text in prompt.messages]
        ids = encoder.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        return list(ids)
    return list(encoder("\n".join(text for _, text in prompt.messages), verbose=False)["input_ids"])
