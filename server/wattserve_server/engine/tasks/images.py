"""Image classification: one logit per label, for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
from transformers.utils import cached_file

from wattserve_common.strict_json import json_of
from wattserve_server.engine.tasks.port import InputFacts, Inputs, Item
from wattserve_server.engine.tasks.tokens import LabelAnswers
from wattserve_server.errors import ConfigError

_USUAL_SIZE = (224, 224)
_PREPROCESSOR = "preprocessor_config.json"


class ImageClassification(LabelAnswers):
    """An item is float32 [channels, height, width], preprocessed by the caller: resized and normalised as
    the model's preprocessor does it. It counts as one sequence of one token."""

    name = "image-classification"
    auto_class = "AutoModelForImageClassification"
    architectures = frozenset(
        name
        for names in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.values()
        for name in ([names] if isinstance(names, str) else names)
    )
    takes_text = False
    generates = False

    def refusal(self, config: Mapping[str, Any]) -> str:
        return ""

    def facts(self, source: str, config: Any, tokenizer: Any | None) -> InputFacts:
        vision = getattr(config, "vision_config", config)  # of models that pair images with text
        channels = getattr(vision, "num_channels", None)
        if not isinstance(channels, int):
            raise ConfigError(f"model {source!r} does not take images: it cannot do --task {self.name}")
        size = _pair(getattr(vision, "image_size", None)) or _preprocessed_size(source) or _USUAL_SIZE
        return InputFacts(max_tokens=1, pixel_shape=(channels, *size))

    def length(self, item: Item) -> int:
        return 1

    def example(self, facts: InputFacts, tokenizer: Any | None, length: int, seed: int) -> Item:
        """Noise as a normalised image has it: mean 0, deviation 1."""
        return np.random.default_rng(seed).standard_normal(facts.pixel_shape, dtype=np.float32)

    def collate(self, items: Sequence[Item], facts: InputFacts) -> Inputs:
        return {"pixel_values": torch.from_numpy(np.stack(items))}


def _pair(size: Any) -> tuple[int, int] | None:
    """(height, width) of what configurations call a size; None of what says neither."""
    match size:
        case int():
            return size, size
        case [int() as height, int() as width]:
            return height, width
        case {"height": int() as height, "width": int() as width}:
            return height, width
        case {"shortest_edge": int() as edge}:
            return edge, edge
    return None


def _preprocessed_size(source: str) -> tuple[int, int] | None:
    """The size of images that the checkpoint's own preprocessor makes, where one lies beside the weights.

    Read as JSON: transformers' own class for it needs torchvision.
    """
    try:
        path = cached_file(source, _PREPROCESSOR)
        settings = json_of(Path(path).read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError):
        return None
    if not isinstance(settings, dict):
        return None
    cropped = _pair(settings.get("crop_size")) if settings.get("do_center_crop", True) else None
    return cropped or _pair(settings.get("size"))
