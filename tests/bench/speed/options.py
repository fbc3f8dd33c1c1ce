"""What is to be measured, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

MODELS = {"base": "random:distilbert-base", "tiny": "random:distilbert-tiny"}

TITLES = {"base": "DistilBERT-base", "tiny": "the tiny model"}

VARIANTS = ("fp32", "bf16", "int8", "int8-static")

PLAIN_VARIANTS = ("fp32", "bf16")
"""Those that a module of transformers runs in by itself."""

MANY = 4
"""Times as many rounds where turns are short and what is looked for is small."""


@dataclass(frozen=True)
class Options:
    """rows: which of the table. seconds: that a turn takes at the least. sequences: of the set. against:
    another checkout, or empty."""

    rows: frozenset[str]
    variants: tuple[str, ...] = VARIANTS
    rounds: int = 5
    seconds: float = 2.0
    sequences: int = 1000
    seed: int = 0
    against: str = ""
