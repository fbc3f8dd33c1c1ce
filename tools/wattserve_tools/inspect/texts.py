"""Documents of a text file, as tokens, cut into windows that slide: each token is foreseen once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattserve_common.strict_json import check_characters, json_of
from wattserve_server.errors import ConfigError

TokenIds = NDArray[np.int64]


@dataclass(frozen=True)
class Document:
    token_ids: TokenIds
    bytes: (
        int  # of the text that is foreseen, in UTF-8: of its first token only where something stands before
    )


@dataclass(frozen=True)
class Span:
    """One window of a document: its tokens, of which the last `foreseen` have not been foreseen before."""

    document: int
    token_ids: TokenIds
    foreseen: int


def read_documents(path: Path, most: int | None) -> list[str]:
    """The first `most` documents: of a .jsonl file the field `text` of each line, of any other what empty
    lines separate. Raises ConfigError."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--text {path}: cannot be read ({reason})") from None
    found = _of_lines(path, content) if path.suffix == ".jsonl" else _of_paragraphs(content)
    documents = [text for text in found if text.strip()][:most]
    if not documents:
        raise ConfigError(f"--text {path}: there is no text in it")
    return documents


def tokenised(texts: list[str], tokenizer: Any | None, vocabulary: int) -> list[Document]:
    """With the model's token for a beginning in front, where it has one: so the first token of the text is
    foreseen too. Raises ConfigError."""
    if tokenizer is None:
        raise ConfigError("inspect perplexity: this model has no tokenizer, and a text must become tokens")
    documents = []
    for text in texts:
        ids = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        size = len(text.encode())
        if tokenizer.bos_token_id is not None:
            ids.insert(0, tokenizer.bos_token_id)
        elif ids:
            size -= len(tokenizer.decode(ids[:1]).encode())
        if ids and max(ids) >= vocabulary:
            raise ConfigError(f"inspect perplexity: its tokenizer makes token {max(ids)} of {vocabulary}")
        if len(ids) > 1 and size > 0:
            documents.append(Document(np.array(ids, dtype=np.int64), size))
    if not documents:
        raise ConfigError("--text: no document has two tokens, and the first has nothing before it")
    return documents


def spans(documents: list[Document], window: int, stride: int) -> list[Span]:
    """Windows of `window` tokens that move on by `stride`: a token is foreseen from at least window less
    stride before it, but at a document's beginning."""
    found = []
    for number, document in enumerate(documents):
        count, seen = len(document.token_ids), 1
        begin = 0
        while seen < count:
            end = min(begin + window, count)
            found.append(Span(number, document.token_ids[begin:end], end - seen))
            seen, begin = end, begin + stride
    return found


def _of_lines(path: Path, content: str) -> Iterator[str]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json_of(line)
        except ValueError as error:
            raise ConfigError(f"--text {path}: line {number}: not JSON ({error})") from None
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise ConfigError(f"--text {path}: line {number}: no field `text` that holds a text")
        try:
            check_characters(value["text"])
        except ValueError as error:
            raise ConfigError(f"--text {path}: line {number}: the text: {error}") from None
        yield value["text"]


def _of_paragraphs(content: str) -> Iterator[str]:
    lines: list[str] = []
    for line in content.splitlines():
        if line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)
