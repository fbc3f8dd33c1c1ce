"""A trained demo language model as a folder, in the layout that is shipped."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from demo_llm.corpus import Corpus, text_of
from demo_llm.measure import bits_by_counts, bits_by_xz
from demo_llm.recipe import Recipe
from demo_llm.training import Trained
from demo_model.folder import save, write_card
from wattserve_server.engine.builtin.demo_llm import HELDOUT

_ORDER = 5  # bytes that the baseline looks back


def write(trained: Trained, corpus: Corpus, recipe: Recipe, folder: Path) -> None:
    save(trained, folder)
    (folder / HELDOUT).write_text(text_of(corpus.heldout), encoding="utf-8")
    training, heldout = text_of(corpus.training).encode(), text_of(corpus.heldout).encode()
    write_card(
        folder,
        (files(__package__) / "card.md").read_text("utf-8"),
        trained,
        recipe=recipe,
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
    )
