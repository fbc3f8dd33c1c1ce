"""Everything that decides what the demo model becomes, and a digest of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

import tokenizers
import torch
import transformers

from wattserve_server.engine.builtin.grammar import Noise

_SOURCES = ("words.toml", "grammar.py", "random_weights.py", "recipe.py", "training.py")


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
    course: tuple[Lesson, ...] = (Lesson(6000, 4.0), Lesson(14000, 12.0), Lesson(8000, 21.0))
    vocabulary: int = 3000
    max_tokens: int = 128
    dim: int = 128
    layers: int = 4
    heads: int = 4
    hidden_dim: int = 512
    batch: int = 24
    learning_rate: float = 1e-3
    embedding_rate: float = 2e-3
    warm_up: float = 0.08
    sentence_weight: float = 3.0  # of the loss on each sentence's sentiment, relative to the label's loss
    # Threads that share each batch; fixed, for the weights' last bits depend on the order of additions.
    workers: int = 2

    @property
    def typical_words(self) -> float:
        return self.course[-1].median_words

    def digest(self) -> str:
        """Twelve hex digits that change with these settings, the code behind them, and the libraries."""
        here = files("wattserve_server.engine.builtin")
        content = hashlib.sha256(repr((self, *versions().items())).encode())
        for name in _SOURCES:
            content.update(here.joinpath(name).read_bytes())
        return content.hexdigest()[:12]


def versions() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
