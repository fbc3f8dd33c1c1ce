"""Real architectures with seeded random weights: right for speed and energy, meaningless as classifiers."""

from __future__ import annotations

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from wattserve_server.engine.builtin.seeding import seeded
from wattserve_server.errors import ConfigError

RANDOM_MODELS: tuple[str, ...] = ("distilbert-base",)


def build_random_model(name: str, seed: int = 0) -> torch.nn.Module:
    """A model in evaluation mode, fp32, on the CPU; the same name and seed give the same weights."""
    if name not in RANDOM_MODELS:
        known = ", ".join(f"random:{known}" for known in RANDOM_MODELS)
        raise ConfigError(f"no built-in model random:{name}; known: {known}")
    with seeded(seed):
        # The config's defaults are those of distilbert-base-uncased.
        model: torch.nn.Module = DistilBertForSequenceClassification(DistilBertConfig(num_labels=2))
    return model.eval()
