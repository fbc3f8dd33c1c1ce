"""Statistics of a sweep: order statistics with floors, intervals over blocks, proportions.

Pure: numbers in, numbers out. A figure whose sample cannot carry it is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

# The least sample that bounds a percentile from above with 99 % confidence (MLPerf's early stopping,
# recomputed with an exact binomial; shared/facts/measuring.md, rule 3).
SAMPLE_FLOORS: dict[float, int] = {50.0: 11, 90.0: 64, 95.0: 130, 99.0: 662, 99.9: 6636}


@dataclass(frozen=True)
class Interval:
    """A mean over `n` blocks with its two-sided 95 % interval; the bounds are None below two blocks."""

    mean: float
    low: float | None
    high: float | None
    n: int


def percentile(values: Numbers, percent: float) -> int | None:
    """The nearest-rank percentile (a value that was really seen), in the values' unit.

    None when there are fewer values than `SAMPLE_FLOORS` asks for.
    """
    if len(values) < SAMPLE_FLOORS[percent]:
        return None
    rank = math.ceil(round(percent * len(values) / 100, 9))
    return int(np.partition(values, rank - 1)[rank - 1])


def wilson_interval(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion, within [0, 1]."""
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} of {trials} is not a proportion")
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
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = t_quantile(0.975, n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, n)


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """The ratio value/baseline from (value, baseline) pairs, one per block: geometric mean, t-interval of the
    logs.

    Pairs without two positive numbers are left out. None when none is left.
    """
    logs = [math.log(value / base) for value, base in pairs if value > 0 and base > 0]
    found = mean_interval(logs)
    if found is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return Interval(math.exp(found.mean), low, high, found.n)


def t_quantile(probability: float, df: int) -> float:
    """Student's t quantile for integer degrees of freedom, by bisection of the exact distribution."""
    if not 0 < probability < 1 or df < 1:
        raise ValueError("t_quantile needs 0 < probability < 1 and df >= 1")
    if probability < 0.5:
        return -t_quantile(1 - probability, df)
    low, high = 0.0, 1.0
    while _t_probability(high, df) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if _t_probability(middle, df) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _t_probability(t: float, df: int) -> float:
    """P(T <= t) for t >= 0: Abramowitz and Stegun 26.7.3 (odd) and 26.7.4 (even)."""
    angle = math.atan2(t, math.sqrt(df))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = df % 2 == 1
    term = cos if odd else 1.0
    series = term if df > 1 else 0.0
    for step in range(3 if odd else 2, df - 1, 2):
        term *= cos * cos * (step - 1) / step
        series += term
    within = (2 / math.pi) * (angle + sin * series) if odd else sin * series
    return 0.5 + within / 2


def effective_samples(values: Numbers) -> float | None:
    """n (1 - rho) / (1 + rho) with rho the lag-1 autocorrelation: answers of one batch are not independent.

    Never above n. None below three values; n when all are equal.
    """
    n = len(values)
    if n < 3:
        return None
    centred = np.asarray(values, dtype=np.float64) - float(np.mean(values))
    power = float(centred @ centred)
    if power == 0:
        return float(n)
    rho = max(0.0, float(centred[:-1] @ centred[1:]) / power)
    return n * (1 - rho) / (1 + rho)
