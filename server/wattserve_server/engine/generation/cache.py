"""The cache of keys and values: a place for each sequence, in blocks of tokens, within a bound in bytes.

A sequence's keys of a layer lie in one piece, [heads, tokens, width], so that attention reads them where they
are and a sequence costs what it reads itself, whatever its company. A place grows by blocks; who grows the
pool beyond its bound is told so, and nothing has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:  # a queue is simulated without variants
    from wattserve_server.engine.variants.variant import Variant

BLOCK = 64  # tokens

Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values: [heads, tokens, width] each


class CachePool:
    """What the sequences of one variant hold. Belongs to the lane's thread; `used_bytes` may be read by any.

    limit_bytes: of all places. most_tokens: of one sequence.
    """

    def __init__(self, limit_bytes: int, most_tokens: int) -> None:
        self.limit_bytes = limit_bytes
        self.most_tokens = most_tokens
        self.token_bytes = 0  # of all layers; 0 before the first sequence was seen
        self.used_bytes = 0

    def size(self, tokens: int) -> int:
        """Bytes of a place for so many tokens."""
        return -(-tokens // BLOCK) * BLOCK * self.token_bytes

    def fits(self, tokens: int) -> bool:
        """Whether one sequence of so many tokens fits while there is no other."""
        return self.size(tokens) <= self.limit_bytes

    def has_room(self, tokens: int, held_bytes: int = 0) -> bool:
        """For a sequence of so many tokens, which holds some bytes of it already."""
        return self.used_bytes - held_bytes + self.size(tokens) <= self.limit_bytes

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits while there is no other."""
        return self.limit_bytes // (BLOCK * self.token_bytes) * BLOCK

    def open(self) -> SequenceCache:
        return SequenceCache(self)


class CachePools:
    """A pool for each variant in memory, on each of its devices. limit_bytes: of each."""

    def __init__(self, limit_bytes: int, most_tokens: int) -> None:
        self._limit_bytes, self._most_tokens = limit_bytes, most_tokens
        self._pools: dict[tuple[str, torch.device], CachePool] = {}

    def of_variant(self, variant: Variant) -> CachePool:
        whose = variant.name, variant.device
        pool = self._pools.get(whose)
        if pool is None:
            pool = self._pools[whose] = CachePool(self._limit_bytes, self._most_tokens)
            pool.token_bytes = token_bytes(variant.model.config, variant.activation_bytes)
        return pool

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """By variant: bytes that are used, and that there may be, on all of its devices. Any thread."""
        found: dict[str, tuple[int, int]] = {}
        for (name, _), pool in tuple(self._pools.items()):
            used_bytes, limit_bytes = found.get(name, (0, 0))
            found[name] = used_bytes + pool.used_bytes, limit_bytes + pool.limit_bytes
        return found


def token_bytes(config: Any, number_bytes: int) -> int:
    """What the keys and values of one token take, in all layers of a model of that config."""
    config = config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = 2 * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    if getattr(config, "kv_lora_rank", None):  # DeepSeek's: keys are wider than values
        heads = config.num_attention_heads
        width = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    return int(config.num_hidden_layers * heads * width * number_bytes)


class SequenceCache:
    """One sequence's place. `length`: tokens whose keys and values it holds."""

    def __init__(self, pool: CachePool) -> None:
        self._pool = pool
        self._layers: dict[int, Pair] = {}
        self._bytes = 0
        self.capacity = 0
        self.length = 0

    def reserve(self, tokens: int) -> bool:
        """Make room for so many in all. Whether there is."""
        if tokens <= self.capacity:
            return True
        pool = self._pool
        if not pool.has_room(tokens, self._bytes):
            return False
        more = pool.size(tokens) - self._bytes
        pool.used_bytes += more
        self._bytes += more
        self.capacity = -(-tokens // BLOCK) * BLOCK
        return True

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        """The keys and values of a layer, with those of new tokens behind the others: [heads, new, width]."""
        end = self.length + keys.shape[1]
        held = self._layers.get(layer)
        if held is None or held[0].shape[1] < end:
            held = self._layers[layer] = self._grown(held, keys), self._grown(held and held[::-1], values)
        for place, new in zip(held, (keys, values), strict=True):
            place[:, self.length : end] = new
        return held[0][:, :end], held[1][:, :end]

    def pretend(self, tokens: int, more: int) -> None:
        """Hold keys and values of nothing for so many, and have room for more."""
        self.reserve(tokens + more)
        self.length = tokens

    def advance(self, tokens: int) -> None:
        """All layers have put so many."""
        self.length += tokens

    def close(self) -> None:
        """Give its room back. It may be used again, from the begin."""
        self._pool.used_bytes -= self._bytes
        self._layers.clear()
        self._bytes = self.capacity = self.length = 0

    def _grown(self, held: Pair | None, new: torch.Tensor) -> torch.Tensor:
        heads, _, width = new.shape
        place = new.new_zeros(heads, max(self.capacity, self.length + new.shape[1]), width)
        if held is not None:
            place[:, : self.length] = held[0][:, : self.length]
        return place
