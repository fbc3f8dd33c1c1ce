"""Everything that decides what the demo model becomes."""

from __future__ import annotations

from dataclasses import dataclass

from demo_model.grammar import Noise


@dataclass(frozen=True, slots=True)
class Lesson:
    """A number of training reviews of a typical length."""

    reviews: int
    median_words: float


_NOISE = Noise(taste=0.35, flip_rate=0.02)


@dataclass(frozen=True, slots=True)
class Recipe:
    seed: int = 2026
    noise: Noise = _NOISE
    heldout: int = 2000  # reviews kept for measuring, of the last lesson's lengths
    # From short to long. A sentence is learned quickly alone; which words belong to which sentence is learned
    # quickly from two; only then is it worth paying for whole reviews.
    course: tuple[Lesson, ...] = (Lesson(8000, 4.0), Lesson(16000, 12.0), Lesson(8000, 21.0))
    vocabulary: int = 1800
    max_tokens: int = 128
    # Few wide layers: in narrow ones the steps around a product take longer than the product, and then no
    # lower precision pays.
    dim: int = 384
    layers: int = 2
    heads: int = 6
    hidden_dim: int = 1024
    batch: int = 24
    learning_rate: float = 4e-4
    embedding_rate: float = 8e-4
    warm_up: float = 0.08
    sentence_weight: float = 3.0  # of the loss on each sentence's sentiment, relative to the label's loss
    # Threads that share each batch; fixed, for the weights' last bits depend on the order of additions.
    workers: int = 2

    @property
    def typical_words(self) -> float:
        return self.course[-1].median_words
