"""A stretch of code with its own torch randomness: its results repeat and the caller's are undisturbed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator; restore its state on leaving.

    `torch.manual_seed` would also reseed every GPU's generator, which nobody would restore.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
