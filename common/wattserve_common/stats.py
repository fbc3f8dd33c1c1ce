"""Statistics of a sweep: order statistics with floors, intervals over blocks, proportions, pairs.

Pure: numbers in, numbers out. A figure whose sample cannot carry it is None, never a guess.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

# The least sample that bounds a percentile from above with 99 % confidence (MLPerf's early stopping,
# recomputed with an exact binomial).
SAMPLE_FLOORS: dict[float, int] = {50.0: 11, 90.0: 64, 95.0: 130, 99.0: 662, 99.9: 6636}


_LARGEST_EXPONENT = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Interval:
    """A mean over `n` blocks with its two-sided 95 % interval; the bounds are None below two blocks."""

    mean: float  # the mean; of ratios the geometric one
    low: float | None  # lower end; None below two blocks
    high: float | None  # upper end; None below two blocks
    n: int  # blocks


def percentile(values: Numbers, percent: float) -> int | None:
    """The nearest-rank percentile (a value that was really seen), in the values' unit.

    None when there are fewer values than `SAMPLE_FLOORS` asks for.
    """
    if len(values) < SAMPLE_FLOORS[percent]:
        return None
    rank = nearest_rank(len(values), percent)
    return int(np.partition(values, rank - 1)[rank - 1])


def nearest_rank(count: int, percent: float) -> int:
    """The rank from below, counted from 1, of the least value with `percent` of the sample at or below it."""
    return max(1, math.ceil(round(percent * count / 100, 9)))


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion, within [0, 1]."""
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} of {trials} is not a proportion")
    z = 1.959963984540054  # the normal law's 97.5th percentile
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Mean with a Student-t interval; the values are blocks, which are the sample. None without values."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1)
    spread = math.hypot(*(value - mean for value in values))
    half = t_quantile(0.975, n - 1) * spread / math.sqrt(n * (n - 1))
    return Interval(mean, mean - half, mean + half, n)


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """The ratio value/baseline from (value, baseline) pairs, one per block: geometric mean, t-interval of the
    logs.

    Pairs without two finite positive numbers are left out. None when none is left.
    """
    logs = [
        math.log(value) - math.log(base)
        for value, base in pairs
        if 0 < value < math.inf and 0 < base < math.inf
    ]
    interval = mean_interval(logs)
    if interval is None:
        return None
    low, high = (None if bound is None else finite_exp(bound) for bound in (interval.low, interval.high))
    return Interval(finite_exp(interval.mean), low, high, interval.n)


def resolution(twins: Interval) -> float | None:
    """What a rig can tell apart, as a ratio less 1: how far from 1 the ratio of an A/A pair reaches, with its
    interval. None below two blocks.
    """
    if twins.low is None or twins.high is None:
        return None
    return max(_from_one(edge) for edge in (twins.low, twins.mean, twins.high) if edge > 0)


NO_CONCLUSION = 1.0  # a resolution beyond which twins may differ by more than 2x, and nothing is told apart


def differs(ratio: Interval, finest: float | None) -> bool | None:
    """Whether a ratio is a difference: its interval excludes 1, and it is further from 1 than `finest`, the
    rig's `resolution`. None where either is not known.
    """
    if ratio.low is None or ratio.high is None or finest is None:
        return None
    return not ratio.low <= 1 <= ratio.high and _from_one(ratio.mean) > finest


def _from_one(ratio: float) -> float:
    return max(ratio, 1 / ratio) - 1 if ratio > 0 else math.inf


@dataclass(frozen=True)
class PairedDifference:
    """How much more often one of two variants is right on the same `items`: a difference of shares."""

    items: int
    difference: float
    low: float
    high: float  # 95 %, two-sided
    p: float  # McNemar's exact test of no difference


def paired_difference(both: int, only_own: int, only_base: int, neither: int) -> PairedDifference:
    """The difference of two accuracies on the same items, counted by who was right on each.

    The interval is Newcombe's method 10 (Statistics in Medicine 17 (1998) 2635-2650): Wilson's limits of
    each share, joined by the correlation of the pairs.
    """
    items = both + only_own + only_base + neither
    if min(both, only_own, only_base, neither) < 0 or items == 0:
        raise ValueError(f"{(both, only_own, only_base, neither)} are not the counts of a comparison")
    own, base = (both + only_own) / items, (both + only_base) / items
    own_low, own_high = wilson_interval(both + only_own, items)
    base_low, base_high = wilson_interval(both + only_base, items)
    phi = _phi(both, only_own, only_base, neither)
    difference = (only_own - only_base) / items
    below = _joined(own - own_low, base_high - base, phi)
    above = _joined(own_high - own, base - base_low, phi)
    return PairedDifference(
        items, difference, difference - below, difference + above, mcnemar_p(only_own, only_base)
    )


def mcnemar_p(only_own: int, only_base: int) -> float:
    """McNemar's exact two-sided p: items that both or neither got right say nothing of the difference."""
    if only_own < 0 or only_base < 0:
        raise ValueError(f"{only_own} and {only_base} are not counts")
    return min(1.0, 2 * binomial_tail(only_own + only_base, min(only_own, only_base), 0.5))


def _phi(both: int, only_own: int, only_base: int, neither: int) -> float:
    """Correlation of the pairs, brought towards 0 where positive (Newcombe's continuity correction)."""
    margins = (both + only_own) * (only_base + neither) * (both + only_base) * (only_own + neither)
    if margins == 0:
        return 0.0
    excess = both * neither - only_own * only_base
    if excess > 0:
        items = both + only_own + only_base + neither
        return max(0.0, excess - items / 2) / math.sqrt(margins)
    return excess / math.sqrt(margins)


def _joined(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


def finite_exp(exponent: float) -> float:
    """exp, held within the finite numbers: JSON knows no others."""
    return math.exp(exponent) if exponent < _LARGEST_EXPONENT else sys.float_info.max


def t_quantile(probability: float, df: int) -> float:
    """Student's t quantile of `df` degrees of freedom."""
    if not 0 < probability < 1 or df < 1:
        raise ValueError("t_quantile needs 0 < probability < 1 and df >= 1")
    return float(special.stdtrit(df, probability))


def binomial_tail(trials: int, most: int, chance: float) -> float:
    """P(X <= most) for X binomial."""
    if trials < 0 or not 0 < chance < 1:
        raise ValueError(f"no binomial of {trials} trials with a chance of {chance}")
    if most < 0:
        return 0.0
    return 1.0 if most >= trials else float(special.betainc(trials - most, most + 1, 1 - chance))


def effective_samples(values: Numbers) -> float | None:
    """n (1 - rho) / (1 + rho) with rho the lag-1 autocorrelation: answers of one batch are not independent.

    `values` in the order of sending, finite. Never above n. None below three values; n when all are equal.
    """
    n = len(values)
    if n < 3:
        return None
    if np.min(values) == np.max(values):
        return float(n)
    centred = np.asarray(values - values[0], dtype=np.float64)
    centred -= np.mean(centred)
    power = float(centred @ centred)
    rho = max(0.0, float(centred[:-1] @ centred[1:]) / power)
    return n * (1 - rho) / (1 + rho)
