"""The recipe of the demo model, at a tiny size. What it learns is asked by `make demo-model`."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from demo_model import training
from demo_model.folder import write
from demo_model.recipe import Lesson, Recipe
from wattserve_server.engine.builtin.demo import HELDOUT, SHA256, SHIPPED

TINY = Recipe(
    heldout=50,
    course=(Lesson(64, 4.0), Lesson(64, 21.0)),
    vocabulary=1500,
    max_tokens=256,
    dim=16,
    layers=1,
    heads=2,
    hidden_dim=32,
)


def made(folder: Path) -> Path:
    write(training.train(TINY, lambda stage, done: None), TINY, folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("models") / "tiny")


def heldout(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / HELDOUT).read_text("utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_has_the_files_that_are_shipped(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(SHA256)


def test_everyone_who_may_read_the_card_may_read_the_weights(folder: Path) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert len(modes) == 1


def test_transformers_loads_a_classifier_with_the_two_labels(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.architectures == ["DistilBertForSequenceClassification"]
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert model.config.max_position_embeddings == 256
    assert model.config.dtype == torch.float32


def test_transformers_loads_the_tokenizer_as_it_was_trained(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer("The ACTING is not bad.")
    assert list(encoded) == ["input_ids", "attention_mask"]
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert "".join(tokens[1:-1]).replace("##", "") == "theactingisnotbad."
    assert (tokenizer.pad_token, tokenizer.pad_token_id, tokenizer.model_max_length) == ("[PAD]", 0, 256)
    assert tokenizer(["no", "not at all good"], padding=True)["attention_mask"][0][-1] == 0


def test_any_ascii_text_can_be_spelled(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    printable = "".join(chr(code) for code in range(32, 127))
    assert tokenizer.unk_token_id not in tokenizer(f"{printable} zzqx9 ##q q##")["input_ids"]


def test_sentence_by_sentence_the_ids_are_those_of_the_whole_text(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reviews = training.write_corpus(TINY).heldout
    rows = training.tokenise(reviews, tokenizer)
    assert [row.ids for row in rows] == tokenizer([review.text for review in reviews])["input_ids"]
    for row, review in zip(rows, reviews, strict=True):
        assert len(row.stops) == len(review.sentences)
        assert {tokenizer.convert_ids_to_tokens(row.ids[stop]) for stop, _ in row.stops} <= {".", "!"}


def test_heldout_rows_are_texts_with_labels_that_training_never_saw(folder: Path) -> None:
    rows = heldout(folder)
    assert len(rows) == 50
    assert all(list(row) == ["text", "label"] and row["label"] in (0, 1) for row in rows)
    trained_on = {review.text.lower() for lesson in training.write_corpus(TINY).lessons for review in lesson}
    assert len(trained_on) == 128
    assert not trained_on & {row["text"].lower() for row in rows}


def test_the_card_tells_the_accuracy_of_the_saved_folder(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    right = 0
    for row in heldout(folder):
        with torch.inference_mode():
            right += int(model(**tokenizer(row["text"], return_tensors="pt")).logits.argmax()) == row["label"]
    card = (folder / "MODEL.md").read_text("utf-8")
    assert f"accuracy **{right / 50:.2%}**" in card
    assert "For demonstration, not for use" in card
    assert f"torch {torch.__version__}" in card


def test_the_same_recipe_gives_the_same_folder_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)
    assert contents(made(tmp_path / "again")) == contents(folder)


def test_training_leaves_the_callers_randomness_and_threads() -> None:
    torch.manual_seed(5)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        training.train(TINY, lambda stage, done: None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_shipped_reviews_are_those_that_the_recipe_writes() -> None:
    shipped = [json.loads(line) for line in (SHIPPED / HELDOUT).read_text("utf-8").splitlines()]
    recipe = Recipe()
    no_training = replace(recipe, course=(Lesson(0, recipe.typical_words),))
    written = training.write_corpus(no_training).heldout
    assert [(row["text"], row["label"]) for row in shipped] == [(each.text, each.label) for each in written]


def test_the_shipped_model_has_the_size_that_the_recipe_says() -> None:
    config = json.loads((SHIPPED / "config.json").read_text("utf-8"))
    recipe = Recipe()
    said = (recipe.dim, recipe.layers, recipe.heads, recipe.hidden_dim, recipe.max_tokens)
    names = ("dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings")
    assert tuple(config[name] for name in names) == said
