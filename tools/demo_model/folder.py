"""A trained demo model as a folder, in the layout that is shipped; and how accurate such a folder is."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Protocol

import tokenizers
import torch
import transformers

from demo_model.recipe import Recipe
from demo_model.training import Trained
from wattserve_server.engine.builtin.demo import HELDOUT

_CARD = "MODEL.md"


def write(trained: Trained, recipe: Recipe, folder: Path) -> None:
    save(trained, folder)
    rows = ({"text": review.text, "label": review.label} for review in trained.heldout)
    (folder / HELDOUT).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    lengths = trained.lengths
    write_card(
        folder,
        (files(__package__) / "card.md").read_text("utf-8"),
        trained,
        recipe=recipe,
        vocabulary=len(trained.tokenizer),
        training=sum(lesson.reviews for lesson in recipe.course),
        last_lesson=recipe.course[-1],
        heldout=len(trained.heldout),
        positive=sum(review.label for review in trained.heldout) / len(trained.heldout),
        shortest=min(lengths),
        median=median(lengths),
        mean=fmean(lengths),
        p95=quantiles(lengths, n=20)[-1],
        longest=max(lengths),
    )


class TrainedModel(Protocol):
    """What any recipe makes."""

    @property
    def model(self) -> transformers.PreTrainedModel: ...

    @property
    def tokenizer(self) -> transformers.PreTrainedTokenizerFast: ...


def save(trained: TrainedModel, folder: Path) -> None:
    """The model and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    trained.model.save_pretrained(folder)
    trained.tokenizer.save_pretrained(folder)
    # safetensors writes for the owner only; the folder may serve others, as in an image built by root.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def digests(folder: Path) -> str:
    """Of its files, as the module that ships them lists them."""
    told = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    return "\n".join(f'    "{name}": "{digest}",' for name, digest in told.items())


def write_card(folder: Path, form: str, trained: TrainedModel, **figures: object) -> None:
    """Markdown. Holds nothing that differs between two runs of the same recipe, such as dates."""
    used = (torch, transformers, tokenizers)
    text = form.format(
        trained=trained,
        parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
        software="\n".join(f"- {library.__name__} {library.__version__}" for library in used),
        **figures,
    )
    (folder / _CARD).write_text(text, encoding="utf-8")
