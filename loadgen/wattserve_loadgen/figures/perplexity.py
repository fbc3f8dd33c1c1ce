"""Perplexity of every arm on the same rows, paired row by row with the baseline's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.model.results import Perplexity

_RESAMPLES = 2000
_SEED = 0  # the same scores have the same interval

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """What one arm says of the rows, in their order."""

    nats: Sequence[float]  # of each row: minus the sum of its log-probabilities
    tokens: Sequence[int]  # of each row: those that were foreseen
    energy_uj: int | None = None
    energy_reason: str = ""


def measure_perplexity(scored: Mapping[str, Scored], baseline: str) -> dict[str, Perplexity]:
    """By arm. All have scored the same rows; the interval is over rows, which are the sample."""
    drawn: dict[str, Floats] = {}
    told: dict[str, Perplexity] = {}
    for arm, one in scored.items():
        nats, tokens = np.array(one.nats), np.array(one.tokens, dtype=np.float64)
        drawn[arm] = _resampled(nats, tokens)
        low, high = _ends(drawn[arm])
        mean, count = float(nats.sum() / tokens.sum()), int(tokens.sum())
        told[arm] = Perplexity(
            mean, low, high, len(nats), count, energy_uj=one.energy_uj, energy_reason=one.energy_reason
        )
    base = told.get(baseline)
    if base is None:
        return told
    for arm, own in told.items():
        if arm != baseline:
            low, high = _ends(drawn[arm] - drawn[baseline])  # of the same draws: rows are paired
            told[arm] = replace(
                own,
                difference=own.nats_per_token - base.nats_per_token,
                difference_low=low,
                difference_high=high,
            )
    return told


def _resampled(nats: Floats, tokens: Floats) -> Floats:
    """Nats per token of rows drawn anew with replacement, often; none of a single row."""
    if len(nats) < 2:
        return np.zeros(0)
    rows = np.random.default_rng(_SEED).integers(0, len(nats), size=(_RESAMPLES, len(nats)))
    means: Floats = nats[rows].sum(axis=1) / tokens[rows].sum(axis=1)
    return means


def _ends(values: Floats) -> tuple[float | None, float | None]:
    """Of the 95 % interval."""
    if not len(values):
        return None, None
    low, high = np.percentile(values, (2.5, 97.5)).tolist()
    return low, high
