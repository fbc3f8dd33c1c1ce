"""How long a sequence may be: what a model's table of positions holds and its tokenizer allows.

The server refuses longer ones, and `loadgen prepare` cuts them to it. Of transformers' objects this reads
attributes alone.
"""

from __future__ import annotations

from typing import Any

DEFAULT_LONGEST = 512  # tokens, of a model whose configuration has no table of positions
_UNBOUNDED = 1_000_000  # transformers gives tokenizers without a limit a huge model_max_length

# Architectures whose position table starts after the padding id: those of transformers' classifiers and
# encoders of text that look positions up from `padding_idx + 1` on.
_PADDED_POSITIONS = (
    "camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm",
    "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip

_MPNET_PADDING = 1  # MPNet's positions start after this, whatever the padding id


def longest_sequence(config: Any, tokenizer: Any | None, pad_id: int) -> int:
    """In tokens, special ones included: what both the position table and the tokenizer allow."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    longest = int(positions) if positions and positions > 0 else DEFAULT_LONGEST
    architecture = getattr(config, "model_type", "")
    has_table = getattr(config, "position_embedding_type", None) != "rotary"  # most ESM have none
    if architecture in _PADDED_POSITIONS and has_table:
        longest -= (_MPNET_PADDING if architecture == "mpnet" else pad_id) + 1
    return min(longest, tokenizer_limit(tokenizer) or longest, _turned_alike(config) or longest)


def _turned_alike(config: Any) -> int | None:
    """Tokens up to which LongRoPE turns all positions alike. Beyond, transformers turns those of a whole
    batch otherwise, so that one long text would change the answers of others. None: it is not used."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for each in (parameters, *parameters.values()):  # of all layers, or of each kind of them
        if isinstance(each, dict) and each.get("rope_type") == "longrope":
            limit = each.get("original_max_position_embeddings")
            return int(limit) if limit else None
    return None


def tokenizer_limit(tokenizer: Any | None) -> int | None:
    """In tokens; None: it states none."""
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if limit and limit < _UNBOUNDED else None
