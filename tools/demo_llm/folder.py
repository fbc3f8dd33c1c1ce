"""A trained demo language model as a folder, in the layout that is shipped."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import tokenizers
import torch
import transformers

from demo_llm.corpus import Corpus, text_of
from demo_llm.measure import bits_by_counts, bits_by_xz
from demo_llm.recipe import Recipe
from demo_llm.training import Trained
from wattserve_server.engine.builtin.demo_llm import HELDOUT

_CARD = "MODEL.md"
_ORDER = 5  # bytes that the baseline looks back


def write(trained: Trained, corpus: Corpus, recipe: Recipe, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trained.model.save_pretrained(folder)
    trained.tokenizer.save_pretrained(folder)
    # safetensors writes for the owner only; the folder may serve others, as in an image built by root.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    (folder / HELDOUT).write_text(text_of(corpus.heldout), encoding="utf-8")
    (folder / _CARD).write_text(_model_card(trained, corpus, recipe), encoding="utf-8")


def _model_card(trained: Trained, corpus: Corpus, recipe: Recipe) -> str:
    """Markdown. Holds nothing that differs between two runs of the same recipe, such as dates."""
    training, heldout = text_of(corpus.training).encode(), text_of(corpus.heldout).encode()
    return (
        (files(__package__) / "card.md")
        .read_text("utf-8")
        .format(
            recipe=recipe,
            trained=trained,
            parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
            training_bytes=len(training),
            heldout_bytes=len(heldout),
            bytes_per_token=len(training) / trained.epoch_tokens,
            passes=trained.tokens / trained.epoch_tokens,
            rows=", ".join(str(lesson.row_tokens) for lesson in recipe.course),
            heldout_books=", ".join(recipe.heldout),
            validation_books=", ".join(recipe.validation),
            order=_ORDER,
            counts=bits_by_counts(training, heldout, _ORDER),
            xz=bits_by_xz(training, heldout),
            unigram=bits_by_counts(training, heldout, 0),
            software="\n".join(f"- {name} {version}" for name, version in _versions().items()),
        )
    )


def _versions() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
