"""Attention of a step: every sequence to its own cache, whatever model calls it.

transformers' models ask for attention by a name. Under ours they get this function, which finds the step that
runs on this thread: rows of one packed sequence of tokens, each belonging to a member of the step. Where no
step runs, as in warm-up and verification, sequences stand one to a row, are not padded, and are attended to
causally.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from wattserve_server.engine.generation.cache import SequenceCache
from wattserve_server.errors import ConfigError

NAME = "wattserve"


class Rows(NamedTuple):
    """The rows of a step's tokens that are one member's, and where its keys and values are kept."""

    begin: int
    end: int
    cache: SequenceCache


class _Running(threading.local):
    rows: Sequence[Rows] | None = None


_running = _Running()


@contextmanager
def attending(rows: Sequence[Rows]) -> Iterator[None]:
    """In the block, models that run on this thread attend to what these members hold."""
    _running.rows = rows
    try:
        yield
    finally:
        _running.rows = None


def use_own_attention(module: PreTrainedModel, source: str) -> None:
    """Raises ConfigError for a model that brings attention of its own, which no cache could be kept for."""
    if not getattr(module, "_supports_attention_backend", False):
        raise ConfigError(
            f"{source!r} is a {type(module).__name__}, whose attention cannot be exchanged; models of the "
            "families GPT-2, Llama, Qwen, Mistral and Gemma, and others that transformers lets choose their "
            "attention, can generate"
        )
    module.set_attn_implementation(NAME)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query: [1, heads, tokens, width]; key, value: [1, heads of keys, tokens, width]; s_aux: [heads], the
    score of attending to nothing. Returns [1, tokens, heads, width]. As transformers' attention functions are
    called."""
    window = sliding_window or 0
    rows = _running.rows
    if rows is None:
        each = [
            _one(query[index], key[index], value[index], scaling, window, softcap, s_aux)
            for index in range(len(query))
        ]
        return torch.stack(each).transpose(1, 2).contiguous(), None
    layer: Any = module.layer_idx
    parts = []
    for begin, end, cache in rows:
        keys, values = cache.put(layer, key[0, :, begin:end], value[0, :, begin:end])
        parts.append(_one(query[0, :, begin:end], keys, values, scaling, window, softcap, s_aux))
    return torch.cat(parts, dim=1).transpose(0, 1)[None].contiguous(), None


def _one(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float | None,
    window: int,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The last rows of one sequence: [heads, new, width] to [heads of keys, all, width]."""
    heads, new, _ = query.shape
    if window and new == 1 and keys.shape[1] > window:
        keys, values = keys[:, -window:], values[:, -window:]
    group = heads // keys.shape[0]
    is_plain = not softcap and sinks is None  # torch has it
    if new == 1 and group > 1 and is_plain:  # all that share keys at once: it needs no copies of them
        together = query.reshape(keys.shape[0], group, -1)[None]
        attended = scaled_dot_product_attention(together, keys[None], values[None], scale=scaling)
        return attended.reshape(heads, 1, -1)
    if group > 1:
        keys, values = keys.repeat_interleave(group, dim=0), values.repeat_interleave(group, dim=0)
    mask = None if new == 1 else _causal(new, keys.shape[1], window, query.device)
    if not is_plain:
        scores = query @ keys.transpose(1, 2) * (scaling or 1.0)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        if sinks is not None:
            scores = torch.cat((scores, sinks.to(scores.dtype).reshape(-1, 1, 1).expand(-1, new, 1)), dim=-1)
        return torch.softmax(scores.float(), dim=-1)[:, :, : keys.shape[1]].to(values.dtype) @ values
    is_whole = new == keys.shape[1] and (not window or new <= window)
    return scaled_dot_product_attention(
        query[None], keys[None], values[None],
        attn_mask=None if is_whole else mask, is_causal=is_whole and new > 1, scale=scaling,
    )[0]  # fmt: skip


def _causal(new: int, every: int, window: int, device: torch.device) -> torch.Tensor:
    """[new, every]: which tokens each of the last ones attends to."""
    at = torch.arange(every - new, every, device=device)[:, None]
    other = torch.arange(every, device=device)[None, :]
    mask = other <= at
    return mask & (other > at - window) if window else mask


AttentionInterface.register(NAME, attend)
