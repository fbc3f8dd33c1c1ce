"""Warm-up: which shapes to run before a variant is ready, and what their times say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattserve_server.engine.policy import BatchLimits

SHORTEST = 8
"""Tokens of the shortest warm-up sequence."""

USUAL = 32
"""Tokens of a usual sequence."""

FRONT_END_S = 0.0003
"""What a request costs outside of its batch, in seconds of a core: here and in a client beside it."""


def usual_shape(max_tokens: int, limits: BatchLimits) -> tuple[int, int]:
    """(sequences, length) of a full batch of usual sequences."""
    return fullest(min(USUAL, max_tokens), limits)


def fullest(length: int, limits: BatchLimits) -> tuple[int, int]:
    """(sequences, length) of the largest batch at that length."""
    return max(1, min(limits.max_sequences, limits.max_tokens // length)), length


def threads_worth(cores: int, sequence_s: float) -> int:
    """How many threads should compute a batch, of a model of which a sequence takes one of them `sequence_s`.

    n threads finish n / sequence_s sequences in a second, which take n / sequence_s * FRONT_END_S of a core
    to bring and to answer. More threads than the cores have left would wait for each other at every barrier.
    """
    return max(1, round(cores / (1 + FRONT_END_S / sequence_s)))


def warmup_shapes(max_tokens: int, limits: BatchLimits) -> list[tuple[int, int]]:
    """(sequences, length) pairs: alone at powers of two up to the limit, and the fullest batches of usual and
    of longest sequences."""
    lengths: list[int] = []
    length = SHORTEST
    while length < max_tokens:
        lengths.append(length)
        length *= 2
    shapes = [(1, length) for length in (*lengths, max_tokens)]
    full = (usual_shape(max_tokens, limits), fullest(max_tokens, limits))
    return list(dict.fromkeys((*shapes, *full)))


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
