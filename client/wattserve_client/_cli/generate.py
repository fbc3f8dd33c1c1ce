"""The commands that ask a language model: its answer as it comes, and how likely it finds given texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from wattserve_client._cli import show, words
from wattserve_client._cli.commands import asked_by, width
from wattserve_client._cli.words import ArgumentsError
from wattserve_client.client import Client
from wattserve_client.generations import GenerationPiece

# Of `generate`, by the argument that each becomes: not sent where it was not given.
OPTIONS = (
    "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed", "logprobs",
    "max_energy_uj",
)  # fmt: skip


def generate(client: Client, options: argparse.Namespace) -> int:
    """The answer on standard output as it comes, then what it cost on standard error; as JSON, both at the
    end."""
    if (options.prompt is None) == (options.tokens is None):
        raise ArgumentsError("generate takes PROMPT or --tokens, and only one of them")
    prompt = options.tokens if options.prompt is None else _text(options.prompt)
    given = {name: getattr(options, name) for name in OPTIONS}
    asked = {name: value for name, value in given.items() if value is not None} | asked_by(options)
    with words.refusing_arguments():
        pieces = client.generate_stream(prompt, stop=options.stop, ignore_eos=options.ignore_eos, **asked)
    came: list[GenerationPiece] = []
    try:
        for piece in pieces:
            came.append(piece)
            if not options.json:
                print(piece.text, end="", flush=True)
    finally:
        pieces.close()
        if came and not options.json:
            print(_instead(came) if options.prompt is None else "", flush=True)
    if options.json:
        print(words.as_json(words.plain(pieces.result)))
    else:
        print(f"\n{show.generation(pieces.result, width())}", file=sys.stderr)
    return 0


def score(client: Client, options: argparse.Namespace) -> int:
    if bool(options.texts) == bool(options.tokens):
        raise ArgumentsError("score takes TEXT or --tokens, and only one of them")
    with words.refusing_arguments():
        answer = client.score(options.texts or options.tokens, **asked_by(options))
    texts = options.texts or [f"{len(ids)} token ids" for ids in options.tokens]
    print(words.as_json(words.plain(answer)) if options.json else show.scores(answer, texts, width()))
    return 0


def _text(prompt: str) -> str:
    """- is standard input."""
    if prompt != "-":
        return prompt
    try:
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")  # type: ignore[union-attr]
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ArgumentsError(f"standard input: not UTF-8 text ({error.reason})") from None


def _instead(pieces: Sequence[GenerationPiece]) -> str:
    """Of a text that a model without a tokenizer does not write: its token ids."""
    if any(piece.text for piece in pieces):
        return ""
    return " ".join(str(token) for piece in pieces for token in piece.token_ids)
