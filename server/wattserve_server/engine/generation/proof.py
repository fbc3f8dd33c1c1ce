"""Whether a model answers step by step, beside others, what transformers answers by itself.

Models ask for attention in one way and may do more than that: heads that are subtracted from each other,
windows that only a mask tells, states beside keys and values. In steps of ours such a model would answer
something else, or what depends on whose tokens share its step. So each is tried when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface

from wattserve_server.engine.generation.attention import NAME, attend, attending
from wattserve_server.engine.generation.cache import CachePool
from wattserve_server.engine.generation.port import TokenIds
from wattserve_server.engine.generation.stepper import Part, prepare
from wattserve_server.errors import ConfigError

_WATCHED = "wattserve-watched"
_NO_END = 1 << 30  # tokens that a model takes whose config does not say
_LONGEST_WINDOW = 128  # tokens; of a longer one it is only seen that attention is told of it
# Of logits, root mean square of the differences over their spread. What is wrong is beyond a third in models
# that were tried; what is right is within 1e-6 in fp32 and 0.02 in bf16.
_TOLERANCE, _COARSE_TOLERANCE = 1e-3, 0.1

_windows = set[int]()  # that attention was told of


def _watched(*given: Any, **named: Any) -> tuple[torch.Tensor, None]:
    if window := named.get("sliding_window"):
        _windows.add(window)
    return attend(*given, **named)


AttentionInterface.register(_WATCHED, _watched)


def check_steps(source: str, module: nn.Module, is_exact: bool = True) -> None:
    """module: `runnable`. is_exact: it computes in fp32, and quantises nothing. Raises ConfigError for one
    whose answers in steps would not be its own."""
    model: Any = module
    config = model.config.get_text_config()
    declared = _declared_windows(config)
    context = getattr(config, "max_position_embeddings", None) or _NO_END
    longest = max((window for window in declared if window <= _LONGEST_WINDOW), default=16) + 8
    rng = np.random.default_rng(0)
    lengths = min(longest, context), min(16, context)
    first, other = (rng.integers(0, config.vocab_size, length) for length in lengths)
    try:
        model.set_attn_implementation("eager")
        own = [_whole(model, first), _whole(model, other)]
        model.set_attn_implementation(_WATCHED)
        _windows.clear()
        in_steps = _stepped(model, first, other)
    except MemoryError:
        raise
    except Exception as error:  # whatever a model raises that was not made for this
        words = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{_named(source, model)} cannot be run step by step: {words}") from error
    finally:
        model.set_attn_implementation(NAME)
    tolerance = _TOLERANCE if is_exact else _COARSE_TOLERANCE
    if any(_apart(*pair) > tolerance for pair in zip(own, in_steps, strict=True)):
        raise ConfigError(
            f"{_named(source, model)} answers otherwise step by step, beside others, than transformers does "
            "by itself: it does more than attend to keys and values, and is not served"
        )
    if unknown := {window for window in declared if window < context} - _windows:
        raise ConfigError(
            f"{_named(source, model)} attends to windows of {min(unknown)} tokens without telling attention "
            "so: longer texts would be answered wrongly, and it is not served"
        )


def _declared_windows(config: Any) -> set[int]:
    """Of tokens that a layer attends to, as a config of transformers says."""
    layers = getattr(config, "layer_types", None)
    found = set()
    for kind, name in (("sliding", "sliding_window"), ("chunked", "attention_chunk_size")):
        window = getattr(config, name, None)
        is_used = getattr(config, f"use_{name}", True) is not False
        if window and is_used and (not layers or any(kind in layer for layer in layers)):
            found.add(int(window))
    return found


def _named(source: str, model: Any) -> str:
    return f"model {source!r} is a {type(model).__name__}, which"


def _whole(model: Any, ids: TokenIds) -> torch.Tensor:
    """Its logits: [tokens, vocabulary]."""
    on_device = torch.from_numpy(ids)[None].to(next(model.parameters()).device)
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=on_device, use_cache=False).logits[0].float().cpu()
    return logits


def _stepped(model: Any, first: TokenIds, other: TokenIds) -> Sequence[torch.Tensor]:
    """Likewise of two sequences. The first begins alone, is joined by the other, and ends by one token."""
    pool = CachePool(0, 0)
    device = next(model.parameters()).device
    half = len(first) // 2
    logits: tuple[list[torch.Tensor], ...] = ([], [])
    caches = pool.open(), pool.open()
    steps = ((first[:half], other[:0]), (first[half:-1], other[:-1]), (first[-1:], other[-1:]))
    for step in steps:
        chosen = [index for index, ids in enumerate(step) if len(ids)]
        prepared = prepare([Part(step[index], caches[index], len(step[index]), False) for index in chosen])
        inputs = {name: tensor.to(device) for name, tensor in prepared.inputs.items()}
        with torch.inference_mode(), attending(prepared.rows):
            found = model(**inputs, use_cache=False).logits[0].float().cpu()
        for index, part in zip(chosen, found.split(prepared.wanted), strict=True):
            logits[index].append(part)
            caches[index].advance(len(step[index]))
    return [torch.cat(parts) for parts in logits]


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    spread = one.std()
    return float((one - other).square().mean().sqrt() / spread) if spread > 0 else 0.0
