"""The text: the King James Version as Debian packages it, split by whole books. And its tokenizer."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from demo_llm.recipe import Recipe

PAD, BEGIN, END = "<pad>", "<s>", "</s>"
_LINE = re.compile(r"(\d?[A-Za-z]+)(\d+):\d+ (.+)")
_WHOLE = "gen1:1-rev22:21"

Chapter = tuple[str, ...]  # verses


@dataclass(frozen=True, slots=True)
class Corpus:
    """No book is in two of its parts."""

    training: list[Chapter]
    validation: list[Chapter]
    heldout: list[Chapter]


def read_books() -> dict[str, list[Chapter]]:
    """Chapters by book, by Debian's command `bible`; its file is compressed in a way of its own.

    Raises SystemExit where the command is missing.
    """
    command = shutil.which("bible")
    if command is None:
        raise SystemExit("demo-llm is trained on Debian's text: apt-get install bible-kjv")
    done = subprocess.run([command, "-f", _WHOLE], capture_output=True, text=True, check=True)
    return parse(done.stdout.splitlines())


def parse(lines: Iterable[str]) -> dict[str, list[Chapter]]:
    """Lines such as "Ge1:1 In the beginning ..."; others are no verses."""
    chapters: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if found := _LINE.fullmatch(line.strip()):
            chapters.setdefault((found[1], found[2]), []).append(found[3])
    books: dict[str, list[Chapter]] = {}
    for (book, _), verses in chapters.items():
        books.setdefault(book, []).append(tuple(verses))
    return books


def split(books: Mapping[str, list[Chapter]], recipe: Recipe) -> Corpus:
    """Raises KeyError for a book that the text does not have."""
    apart = {*recipe.heldout, *recipe.validation}
    return Corpus(
        [chapter for book, chapters in books.items() if book not in apart for chapter in chapters],
        [chapter for book in recipe.validation for chapter in books[book]],
        [chapter for book in recipe.heldout for chapter in books[book]],
    )


def text_of(chapters: Iterable[Chapter]) -> str:
    """A verse a line, an empty line between chapters."""
    return "\n\n".join("\n".join(chapter) for chapter in chapters) + "\n"


def train_tokenizer(chapters: Iterable[Chapter], recipe: Recipe) -> PreTrainedTokenizerFast:
    """Of bytes, so that it spells every text and gives it back; <s> before a text, </s> only where asked."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(("\n".join(chapter) for chapter in chapters), trainer)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A",
        pair=f"{BEGIN} $A {BEGIN} $B",
        special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=recipe.context_tokens,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a prompt that spells </s> is text, and ends nothing
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
    )
