"""Causal language models with seeded random weights: GPT-2 in its own size, and small ones of other families.

The small ones' weights are spread wider than a training would begin with, so that of two next tokens one is
clearly the likelier, in every precision.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

_CLEAR = 0.1  # the weights' standard deviation
_IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SMALL: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": _CLEAR,
    **_IDS,
}


def gpt2() -> torch.nn.Module:
    """The config's defaults are those of gpt2: 124,439,808 parameters, 50,257 tokens, 1,024 positions."""
    model: torch.nn.Module = GPT2LMHeadModel(GPT2Config())
    return model


def gpt2_tiny() -> torch.nn.Module:
    config = GPT2Config(
        vocab_size=1024, n_embd=64, n_layer=2, n_head=4, n_positions=512, initializer_range=_CLEAR, **_IDS
    )
    model: torch.nn.Module = GPT2LMHeadModel(config)
    return model


def llama_tiny() -> torch.nn.Module:
    """Small enough for the server around it to be what takes the time; 128 wide, so that int4 fits."""
    size = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "head_dim": 32}
    config = LlamaConfig(**_SMALL | size | {"max_position_embeddings": 1024})
    model: torch.nn.Module = LlamaForCausalLM(config)
    return model


def qwen_tiny() -> torch.nn.Module:
    """Qwen3: queries and keys are normalised, the head is tied."""
    model: torch.nn.Module = Qwen3ForCausalLM(Qwen3Config(**_SMALL, tie_word_embeddings=True))
    return model


def mistral_tiny() -> torch.nn.Module:
    """With a window of attention that slides, as the first Mistral's."""
    model: torch.nn.Module = MistralForCausalLM(MistralConfig(**_SMALL, sliding_window=64))
    return model


def gemma_tiny() -> torch.nn.Module:
    """The first Gemma: embeddings are scaled, heads are wider than their share of the width, the head is
    tied."""
    model: torch.nn.Module = GemmaForCausalLM(GemmaConfig(**_SMALL | {"head_dim": 32}))
    return model
