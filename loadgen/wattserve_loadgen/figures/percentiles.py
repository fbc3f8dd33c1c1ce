"""Percentiles that say how far they can be trusted: floors, and 99 % confidence bounds on both sides.

The bounds are MLPerf's early stopping (mlcommons/inference, early_stopping.adoc). Of n independent latencies
let t be the largest count for which n >= h(t) + t, where h(t) is the least h with I_p(h, t + 1) < 0.01: so
few values lie above the p-quantile in less than one case of a hundred.
The t-th highest latency is then an upper bound of the quantile. The same rule from below gives a lower bound.

Answers of one batch are not independent. Floors and t are found for the effective sample (`stats`), and the
bound is taken at the same fraction of the real one. Pure; knows nothing of requests, cells or objectives.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wattserve_common.stats import SAMPLE_FLOORS, binomial_tail, nearest_rank
from wattserve_loadgen.model.cells import PERCENTILES, Percentiles

RISK = 0.01  # that the quantile lies beyond a bound

Latencies = npt.NDArray[np.int64]


def percentiles_of(
    values: Latencies, effective: float | None, *, floors_by_effective: bool = True
) -> Percentiles:
    """The percentiles of `values`, in the order of sending, of which `effective` are worth counting.

    A percentile is a value that was really seen (nearest rank). With `floors_by_effective` false a percentile
    is held against the plain count, its bound still against the effective one. An `effective` of None
    counts as 0: what is not known to be independent bounds nothing.
    """
    count = len(values)
    worth = _worth(effective, count)
    held = worth if floors_by_effective else count
    percents = PERCENTILES.values()
    ranks = [nearest_rank(count, percent) if held >= SAMPLE_FLOORS[percent] else None for percent in percents]
    bounds = [upper_rank(count, worth, percent) for percent in percents]
    mean = float(np.mean(values)) if count else None
    return Percentiles(count, effective, mean, *_at_ranks(values, [*ranks, *bounds, count or None]))


@dataclass(frozen=True)
class Quantile:
    """One percentile between its bounds: the quantile lies above `low_ns`, and below `high_ns`, with 99 %
    confidence each."""

    value_ns: int | None
    low_ns: int | None
    high_ns: int | None


def quantile_of(values: Latencies, effective: float | None, percent: float) -> Quantile:
    """A percentile and both its bounds. Each is None where the effective sample does not carry it."""
    count = len(values)
    worth = _worth(effective, count)
    rank = nearest_rank(count, percent) if worth >= SAMPLE_FLOORS[percent] else None
    return Quantile(
        *_at_ranks(values, [rank, lower_rank(count, worth, percent), upper_rank(count, worth, percent)])
    )


def upper_rank(count: int, effective: float, percent: float) -> int | None:
    """The rank from below, counted from 1, of the upper bound; None when the sample is too small for one."""
    worth = math.floor(min(effective, count))
    spared = spared_values(worth, (100 - percent) / 100)
    if not spared:
        return None
    return count + 1 - _scaled(spared, count, effective)


def lower_rank(count: int, effective: float, percent: float) -> int | None:
    """The rank from below, counted from 1, of the lower bound; None when the sample is too small for one."""
    worth = math.floor(min(effective, count))
    spared = spared_values(worth, percent / 100)
    return _scaled(spared, count, effective) if spared else None


@lru_cache(maxsize=4096)
def spared_values(trials: int, chance: float) -> int:
    """The largest t with P(X <= t) < 0.01, X binomial of `trials` and `chance`; 0 when there is none.

    It is the t of the module's rule: with `chance` that of a value above the quantile.
    """
    mean = math.ceil(trials * chance)  # the tail up to it is about 1/2
    above = bisect_left(range(mean + 2), RISK, key=lambda most: binomial_tail(trials, most, chance))
    return max(0, above - 1)


def _worth(effective: float | None, count: int) -> float:
    return 0.0 if effective is None else min(effective, float(count))


def _scaled(spared: int, count: int, effective: float) -> int:
    """The same fraction of the real sample, rounded towards its end: the safe side of either bound."""
    return math.floor(spared * count / min(effective, count))


def _at_ranks(values: Latencies, ranks: Sequence[int | None]) -> list[int | None]:
    wanted = sorted({rank - 1 for rank in ranks if rank is not None})
    if not wanted:
        return [None] * len(ranks)
    ordered = np.partition(values, wanted)
    return [None if rank is None else int(ordered[rank - 1]) for rank in ranks]
