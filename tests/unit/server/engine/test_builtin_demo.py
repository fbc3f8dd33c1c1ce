"""The demo model's folder. Every training here is tiny; what it learns is not the question."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from wattserve_server.engine.builtin import demo, training
from wattserve_server.engine.builtin.demo import ensure_demo_model, ensure_model
from wattserve_server.engine.builtin.recipe import Lesson, Recipe
from wattserve_server.errors import ConfigError

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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(cache: Path) -> Path:
    return ensure_model(TINY, cache)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes trained during a test."""
    seen: list[Recipe] = []

    def counted(recipe: Recipe, report: Any) -> training.Trained:
        seen.append(recipe)
        return training.train(recipe, report)

    monkeypatch.setattr(demo, "train", counted)
    return seen


def heldout(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "heldout.jsonl").read_text("utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_is_named_after_the_recipes_digest_and_holds_six_files(folder: Path) -> None:
    assert folder.name == f"demo-{TINY.digest()}"
    assert sorted(path.name for path in folder.iterdir()) == [
        "MODEL.md",
        "config.json",
        "heldout.jsonl",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


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
    assert contents(ensure_model(TINY, tmp_path)) == contents(folder)


def test_another_recipe_has_another_digest() -> None:
    digests = {
        Recipe().digest(),
        TINY.digest(),
        dataclasses.replace(Recipe(), seed=1).digest(),
        dataclasses.replace(Recipe(), course=(Lesson(1, 4.0),)).digest(),
    }
    assert len(digests) == 4
    assert all(re.fullmatch(r"[0-9a-f]{12}", digest) for digest in digests)


def test_another_torch_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = TINY.digest()
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert TINY.digest() != before


def test_training_leaves_the_callers_randomness_and_threads(tmp_path: Path) -> None:
    torch.manual_seed(5)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ensure_model(TINY, tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:Cannot enable progress bars")  # conftest's environment forbids them
@pytest.mark.parametrize("shown", [True, False])
def test_saving_leaves_transformers_progress_bars_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    monkeypatch.setattr(transformers_logging, "_tqdm_active", shown)
    ensure_model(TINY, tmp_path)
    assert transformers_logging.is_progress_bar_enabled() is shown


def test_a_finished_model_is_found_without_writing_anything(
    folder: Path, cache: Path, trainings: list[Recipe]
) -> None:
    (cache / f"{folder.name}.lock").unlink()
    assert ensure_model(TINY, cache) == folder
    assert trainings == []
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_two_callers_at_once_share_one_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second comes while the first trains; it says that it waits, and finds the first's model."""
    trained: list[Recipe] = []
    found: list[Path] = []
    second = threading.Thread(target=lambda: found.append(ensure_model(TINY, tmp_path)))

    def meanwhile(recipe: Recipe, report: Any) -> training.Trained:
        trained.append(recipe)
        second.start()
        while "another process" not in capfd.readouterr().err:
            second.join(0.01)
        return training.train(recipe, report)

    monkeypatch.setattr(demo, "train", meanwhile)
    found.append(ensure_model(TINY, tmp_path))
    second.join()
    assert found == [tmp_path / f"demo-{TINY.digest()}"] * 2
    assert trained == [TINY]


def test_an_interrupted_training_leaves_nothing_and_the_next_call_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(recipe: Recipe, report: Any) -> training.Trained:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_model(TINY, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert (ensure_model(TINY, tmp_path) / "model.safetensors").is_file()


def test_what_a_killed_training_left_is_neither_used_nor_kept(tmp_path: Path) -> None:
    remains = tmp_path / f"demo-{TINY.digest()}.partial-0123abcd"
    remains.mkdir()
    (remains / "config.json").write_text("{}")
    folder = ensure_model(TINY, tmp_path)
    assert not remains.exists()
    assert len(contents(folder)) == 6


def test_a_folder_with_a_missing_file_is_made_again(tmp_path: Path, folder: Path) -> None:
    damaged = ensure_model(TINY, tmp_path)
    (damaged / "model.safetensors").unlink()
    assert contents(ensure_model(TINY, tmp_path)) == contents(folder)


def test_a_cache_that_cannot_be_written_is_the_operators_to_change(
    tmp_path: Path, trainings: list[Recipe]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/cache: Not a directory; set WATTSERVE_CACHE to a folder"):
        ensure_demo_model(tmp_path / "file" / "cache")
    assert trainings == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WATTSERVE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"WATTSERVE_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/wattserve"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/ada"}, "/home/ada/.cache/wattserve"),
    ],
)
def test_the_cache_is_where_the_environment_says(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WATTSERVE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(demo, "ensure_model", lambda recipe, cache: cache)
    assert ensure_demo_model() == Path(expected)


def test_away_from_a_terminal_a_few_lines_tell_the_progress(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ensure_model(TINY, tmp_path)
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "demo model: writing reviews (0%)"
    assert lines[-1] == "demo model: ready (100%)"
    assert all(line.startswith("demo model: ") for line in lines)
    assert 5 <= len(lines) <= 10


def test_on_a_terminal_a_bar_tells_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    from wattserve_server.engine.builtin.demo import progress_on_stderr

    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with progress_on_stderr("demo model") as report:
            report("learning", 0.5)
    shown = b""
    with contextlib.suppress(OSError):  # all has been read once the closed terminal says so
        while part := os.read(master, 100_000):
            shown += part
    os.close(master)
    text = shown.decode()
    assert "demo model: learning" in text
    assert "50%" in text
