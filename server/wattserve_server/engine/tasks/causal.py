"""The task of causal language models: an item is a prompt, int64 [tokens], and what follows is generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.pytorch_utils import Conv1D

from wattserve_common.positions import longest_sequence
from wattserve_server.engine.tasks.port import InputFacts, Inputs
from wattserve_server.engine.tasks.tokens import TokenItems
from wattserve_server.errors import ConfigError


class TextGeneration(TokenItems):
    """As rows, which warm-up and verification run: the logits of the next token. `engine/generation` runs it
    in steps."""

    name = "text-generation"
    auto_class = "AutoModelForCausalLM"
    architectures = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    output_name = "logits"
    unused_weights: tuple[str, ...] = ()
    generates = True

    def refusal(self, config: Mapping[str, Any]) -> str:
        kind = config.get("model_type", "")
        if config.get("is_encoder_decoder"):
            return f"{kind} is an encoder and a decoder, and only a decoder alone is served"
        is_encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder")
        if is_encoder and kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            return (
                f"{kind} is an encoder: a token sees those behind it (is_decoder is not set in config.json)"
            )
        return ""

    def facts(self, source: str, config: Any, tokenizer: Any | None) -> InputFacts:
        """Batches are padded behind their texts, which no token of a text sees; so any id will do."""
        size = getattr(config, "vocab_size", None)
        if not isinstance(size, int) or size < 1:
            raise ConfigError(f"model {source!r} takes more than text: its config.json has no vocab_size")
        named = getattr(config, "pad_token_id", None)
        pad_id = named if isinstance(named, int) and 0 <= named < size else 0  # some checkpoints say -1
        return InputFacts(longest_sequence(config, tokenizer, pad_id), size, pad_id=pad_id)

    def labels(self, config: Any) -> list[str]:
        return []

    def forward(self, module: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        last = inputs["attention_mask"].sum(dim=1) - 1
        kept, which = last.unique(return_inverse=True)  # logits of a whole prompt would be large
        logits: torch.Tensor = module(**inputs, use_cache=False, logits_to_keep=kept).logits
        return logits[torch.arange(len(last), device=last.device), which]

    def scoring(self, config: Any) -> None:
        return None


def with_linear_layers(module: nn.Module) -> nn.Module:
    """GPT-2 keeps its linear layers as Conv1D, transposed: the same products as linear layers, which kinds
    can convert."""
    for parent in tuple(module.modules()):
        for name, part in tuple(parent.named_children()):
            if isinstance(part, Conv1D):
                setattr(parent, name, _linear(part))
    return module


def _linear(layer: Conv1D) -> nn.Linear:
    made = nn.Linear(layer.nx, layer.nf, device="meta")
    made.weight = nn.Parameter(layer.weight.detach().t().contiguous(), requires_grad=False)
    made.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    return made
