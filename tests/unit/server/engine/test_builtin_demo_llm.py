"""The demo language model as it is shipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from demo_llm.measure import bits_per_byte
from wattserve_server.engine.builtin.demo_llm import HELDOUT, SHA256, SHIPPED, demo_llm_folder
from wattserve_server.engine.model import LoadedModel, load_model, task_of

TOKENIZER = AutoTokenizer.from_pretrained(SHIPPED)
END = TOKENIZER.eos_token_id


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("demo-llm", task_of("demo-llm"))


def test_the_package_holds_the_model_and_nothing_else_within_12_mb() -> None:
    files = list(SHIPPED.iterdir())
    assert sorted(path.name for path in files) == sorted(SHA256)
    assert sum(path.stat().st_size for path in files) <= 12e6


def test_it_is_kept_in_a_cache_of_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTSERVE_CACHE", str(tmp_path))
    folder = demo_llm_folder()
    assert folder.parent == tmp_path
    assert folder.name.startswith("demo-llm-")
    assert sorted(path.name for path in folder.iterdir()) == sorted(SHA256)


def test_it_is_served_as_a_language_model_under_its_name(model: LoadedModel) -> None:
    assert (model.name, model.task.name, model.has_random_weights) == ("demo-llm", "text-generation", False)
    assert (model.facts.max_tokens, model.facts.vocabulary_size) == (1024, 2048)
    assert (model.config.eos_token_id, END) == (2, 2)


def test_every_linear_layer_divides_into_groups_of_64(model: LoadedModel) -> None:
    layers = [part for part in model.weights.module.modules() if isinstance(part, torch.nn.Linear)]
    assert len(layers) == 6 * 7 + 1
    assert all(side % 64 == 0 for layer in layers for side in layer.weight.shape)


def test_it_predicts_a_book_that_it_never_read_about_as_well_as_its_card_says(model: LoadedModel) -> None:
    card = re.search(r"this model \| \*\*([0-9.]+)\*\*", (SHIPPED / "MODEL.md").read_text("utf-8"))
    assert card is not None
    ruth = (SHIPPED / HELDOUT).read_text("utf-8").strip().split("\n\n")[:2]
    assert ruth[0].startswith("Now it came to pass in the days when the judges ruled")
    found = bits_per_byte(model.weights.module, TOKENIZER, ruth, model.facts.max_tokens)
    assert found == pytest.approx(float(card[1]), abs=0.1)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("In the beginning God created the heaven and the earth.", 0.1, 0.4),  # as a verse ends a passage
        ("In the beginning God created the", 0.0, 0.001),
    ],
)
def test_it_ends_where_a_verse_does(model: LoadedModel, text: str, least: float, most: float) -> None:
    with torch.inference_mode():
        logits = model.weights.module(input_ids=torch.tensor([TOKENIZER(text)["input_ids"]])).logits
    assert least <= float(logits[0, -1].softmax(dim=-1)[END]) <= most


@given(st.text(max_size=60))
def test_the_tokenizer_gives_every_text_back_and_takes_none_for_an_end(text: str) -> None:
    ids = TOKENIZER(f"{text}</s>")["input_ids"]
    assert ids[0] == TOKENIZER.bos_token_id
    assert END not in ids
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == f"{text}</s>"
