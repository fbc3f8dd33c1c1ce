"""Everything that decides what the `demo-llm` model becomes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lesson:
    """A number of passes over the training text, in rows of one length."""

    epochs: int
    row_tokens: int
    rows: int  # of a step


@dataclass(frozen=True, slots=True)
class Recipe:
    seed: int = 2026
    # Whole books, as the text abbreviates them, so that no sentence of theirs was read in training; of
    # several kinds, and none that another book retells.
    heldout: tuple[str, ...] = ("Ruth", "Jonah", "Hab", "Phi", "Jas")
    validation: tuple[str, ...] = ("Est", "Mic", "1Pet")  # by which training chooses what it keeps
    # A verse ends its passage with this probability, whatever was before it: a generation then ends by itself
    # after four verses in the mean, and at the end of a verse only.
    passage_end: float = 0.25
    vocabulary: int = 2048
    context_tokens: int = 1024
    # Every width is a multiple of 64, for the kinds of int4 that share a scale in groups of 32 or 64.
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    key_value_heads: int = 2
    intermediate: int = 768
    # Short rows while it learns words; long ones at the end, so that every position of the context is learnt.
    course: tuple[Lesson, ...] = (Lesson(2, 256, 8), Lesson(1, 512, 4), Lesson(1, 1024, 2))
    learning_rate: float = 1.5e-3
    last_rate: float = 0.02  # of the cosine's end, relative to its top
    warm_up: float = 0.03  # share of the steps
    weight_decay: float = 0.1
    checks: int = 20  # measurements on the validation text, evenly spread over the steps
    patience: int = 4  # of them in a row without a better one, after which training stops
