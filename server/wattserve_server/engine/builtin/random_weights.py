"""Real architectures with seeded random weights: right for speed and energy, their answers mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from wattserve_server.engine.builtin import random_llms
from wattserve_server.engine.builtin.byte_tokenizer import byte_tokenizer
from wattserve_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RandomModel:
    make: Callable[[], torch.nn.Module]  # with weights from torch's own randomness
    tasks: tuple[str, ...]  # that it can be served for, by name, the usual one first
    make_tokenizer: Callable[[Any], Any | None] = lambda config: None  # None: it takes token ids only


def _distilbert_base() -> torch.nn.Module:
    # The config's defaults are those of distilbert-base-uncased.
    model: torch.nn.Module = DistilBertForSequenceClassification(DistilBertConfig(num_labels=2))
    return model


def _distilbert_tiny() -> torch.nn.Module:
    """Small enough for the server around it to be what takes the time."""
    config = DistilBertConfig(num_labels=2, dim=128, n_layers=4, n_heads=2, hidden_dim=512)
    model: torch.nn.Module = DistilBertForSequenceClassification(config)
    return model


def _resnet18() -> torch.nn.Module:
    """As torchvision's: 1000 labels, 11,689,512 parameters."""
    config = ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=1000,
    )
    config.image_size = 224  # which transformers keeps in a checkpoint's preprocessor, and this has none
    model: torch.nn.Module = ResNetForImageClassification(config)
    return model


def _llm(make: Callable[[], torch.nn.Module]) -> RandomModel:
    return RandomModel(make, ("text-generation",), byte_tokenizer)


RANDOM_MODELS: dict[str, RandomModel] = {
    "distilbert-base": RandomModel(_distilbert_base, ("sequence-classification", "feature-extraction")),
    "distilbert-tiny": RandomModel(_distilbert_tiny, ("sequence-classification", "feature-extraction")),
    "resnet18": RandomModel(_resnet18, ("image-classification",)),
    "gpt2": _llm(random_llms.gpt2),
    "gpt2-tiny": _llm(random_llms.gpt2_tiny),
    "llama-tiny": _llm(random_llms.llama_tiny),
    "qwen-tiny": _llm(random_llms.qwen_tiny),
    "mistral-tiny": _llm(random_llms.mistral_tiny),
    "gemma-tiny": _llm(random_llms.gemma_tiny),
}


def random_model(name: str) -> RandomModel:
    """Raises ConfigError for an unknown name."""
    if name not in RANDOM_MODELS:
        names = ", ".join(f"random:{model}" for model in RANDOM_MODELS)
        raise ConfigError(f"no built-in model random:{name}; known: {names}")
    return RANDOM_MODELS[name]


def build_random_model(name: str, seed: int = 0) -> torch.nn.Module:
    """A model in evaluation mode, fp32, on the CPU; the same name and seed give the same weights."""
    model = random_model(name)
    with seeded(seed):
        return model.make().eval()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's randomness inside repeats, and the caller's is undisturbed.

    `torch.manual_seed` would also reseed every GPU's generator, which nobody would restore.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
