"""The recipe of the demo language model, at a tiny size. What it learns is asked by `make demo-llm-model`."""

from __future__ import annotations

import math
import random
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo_llm.corpus import parse, read_books, split, text_of
from demo_llm.folder import write
from demo_llm.measure import bits_by_counts, bits_by_xz, bits_per_byte
from demo_llm.recipe import Lesson, Recipe
from demo_llm.training import passages, rows_of, train
from wattserve_server.engine.builtin.demo_llm import HELDOUT, SHA256

LINES = [f"{book}{chapter}:{verse} {book} saith the word of verse {verse} in {chapter} chapters."
         for book in ("Ge", "1Sm", "Ruth", "Est") for chapter in (1, 2) for verse in range(12)]  # fmt: skip
TINY = Recipe(
    heldout=("Ruth",), validation=("Est",), vocabulary=320, context_tokens=64, hidden=64, layers=1, heads=1,
    key_value_heads=1, intermediate=64, course=(Lesson(1, 32, 2), Lesson(1, 64, 1)), checks=2,
)  # fmt: skip
CORPUS = split(parse(LINES), TINY)


def made(folder: Path) -> Path:
    write(train(CORPUS, TINY, lambda what, share: None), CORPUS, TINY, folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("models") / "tiny")


def test_lines_become_chapters_of_books_and_others_are_no_verses() -> None:
    books = parse(
        ["", "Ge1:1 In the beginning", "Ge1:2 And the earth", "Ge2:1 Thus", "1Jn1:1 That", "a line"]
    )
    assert books == {"Ge": [("In the beginning", "And the earth"), ("Thus",)], "1Jn": [("That",)]}


def test_books_are_held_out_whole() -> None:
    assert [len(part) for part in (CORPUS.training, CORPUS.validation, CORPUS.heldout)] == [4, 2, 2]
    assert "Ruth" not in text_of([*CORPUS.training, *CORPUS.validation])
    assert text_of([("a", "b"), ("c",)]) == "a\nb\n\nc\n"
    with pytest.raises(KeyError, match="Est"):
        split({"Ge": []}, TINY)


def test_the_text_is_asked_of_debians_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get install bible-kjv"):
        read_books()


def test_passages_are_runs_of_verses_of_one_chapter() -> None:
    rng = random.Random(1)
    chapters = [tuple(f"{chapter}.{verse}" for verse in range(50)) for chapter in range(40)]
    found = [passage.split("\n") for passage in passages(chapters, 0.25, rng)]
    assert [verse for passage in found for verse in passage] == [v for chapter in chapters for v in chapter]
    assert all(len({verse.partition(".")[0] for verse in passage}) == 1 for passage in found)
    assert 2000 / len(found) == pytest.approx(4, abs=0.5)


def test_rows_begin_with_a_passage_and_do_not_overlap() -> None:
    stream = [1, 5, 5, 1, 6, 6, 6, 1, 7, 1, 8, 8]
    assert rows_of(stream, 1, 4) == [[1, 5, 5, 1], [1, 7, 1, 8]]
    assert rows_of(stream, 1, 13) == []


def test_bits_per_byte_count_each_token_once_however_long_the_text() -> None:
    def uniform(input_ids: torch.Tensor, use_cache: bool) -> Any:
        assert input_ids.shape[1] <= 8
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 16))

    def tokenizer(text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *(3 for _ in text)]}

    for length in (1, 7, 8, 9, 30):
        assert bits_per_byte(uniform, tokenizer, ["x" * length], 8) == pytest.approx(math.log2(16))


def test_the_baselines_know_what_the_training_text_shows() -> None:
    training, heldout = b"abcd" * 500, b"abcd" * 20
    assert bits_by_counts(training, heldout, 0) == pytest.approx(2.0, abs=0.01)
    assert bits_by_counts(training, heldout, 2) < 0.2
    assert bits_by_xz(random.Random(1).randbytes(2000), random.Random(2).randbytes(2000)) >= 7.9


def test_the_same_recipe_makes_the_same_files(folder: Path, tmp_path: Path) -> None:
    again = made(tmp_path / "again")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }


def test_the_folder_has_the_files_that_are_shipped_and_all_may_read_them(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(SHA256)
    assert len({stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}) == 1
    assert (folder / HELDOUT).read_text("utf-8") == text_of(CORPUS.heldout)


def test_transformers_loads_what_was_made(folder: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (model.dtype, model.config.tie_word_embeddings) == (torch.bfloat16, True)
    ids = tokenizer("in </s> chapter")["input_ids"]
    assert (ids[0], tokenizer.eos_token_id in ids) == (tokenizer.bos_token_id, False)


def test_training_stops_when_checks_grow_no_better() -> None:
    recipe = Recipe(
        heldout=("Ruth",), validation=("Est",), vocabulary=300, context_tokens=64, hidden=64, layers=1,
        heads=1, key_value_heads=1, intermediate=64, course=(Lesson(8, 32, 2),), checks=16, patience=2,
        learning_rate=0.0,
    )  # fmt: skip
    shares: list[float] = []
    train(CORPUS, recipe, lambda what, share: shares.append(share))
    assert len(shares) == 3  # the first is the best so far, and two are no better
