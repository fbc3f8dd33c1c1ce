"""Warm-up: which shapes to run before a variant is ready, and what their times say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattserve_server.engine.policy import BatchLimits

SHORTEST = 8
"""Tokens of the shortest warm-up sequence."""


def warmup_shapes(max_tokens: int, limits: BatchLimits) -> list[tuple[int, int]]:
    """(sequences, length) pairs: alone and in the fullest batch, at powers of two up to the limit."""
    lengths: list[int] = []
    length = SHORTEST
    while length < max_tokens:
        lengths.append(length)
        length *= 2
    lengths.append(max_tokens)
    shapes: list[tuple[int, int]] = []
    for length in lengths:
        fullest = max(1, min(limits.max_sequences, limits.max_tokens // length))
        shapes += [(count, length) for count in sorted({1, fullest})]
    return shapes


def overhead_tokens(shapes: Sequence[tuple[int, int]], seconds: Sequence[float]) -> float:
    """What starting a batch costs, in computed tokens: the fixed part of a straight line through
    the times over the part per token. Relative errors count, so that small batches are heard."""
    tokens = np.array([count * length for count, length in shapes], dtype=float)
    times = np.array(seconds)
    if len(set(tokens)) < 2:
        return 0.0
    per_token, fixed = np.polyfit(tokens, times, 1, w=1 / times)
    if per_token <= 0:
        return float(tokens.max())
    return float(min(max(fixed / per_token, 0.0), tokens.max()))
