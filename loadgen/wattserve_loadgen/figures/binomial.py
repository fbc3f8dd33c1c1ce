"""The binomial distribution's lower tail, exact to rounding for millions of trials. Pure."""

from __future__ import annotations

import math

_TINY = 1e-300
_PRECISION = 1e-15
_MOST_STEPS = 1_000_000


def binomial_tail(trials: int, most: int, chance: float) -> float:
    """P(X <= most) for X binomial: I_{1-chance}(trials - most, most + 1), DLMF 8.17.5."""
    if trials < 0 or not 0 < chance < 1:
        raise ValueError(f"no binomial of {trials} trials with a chance of {chance}")
    if most < 0:
        return 0.0
    if most >= trials:
        return 1.0
    return _regularised_beta(1 - chance, chance, trials - most, most + 1)


def _regularised_beta(x: float, rest: float, a: int, b: int) -> float:
    """I_x(a, b), with rest = 1 - x; from the side on which its continued fraction converges in
    O(sqrt(max(a, b))) steps."""
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    if x < (a + 1) / (a + b + 2):
        return min(1.0, math.exp(front) * _fraction(x, a, b) / a)
    return max(0.0, 1.0 - math.exp(front) * _fraction(rest, b, a) / b)


def _fraction(x: float, a: int, b: int) -> float:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    upper, lower = 1.0, _not_zero(1 - (a + b) * x / (a + 1))
    lower = 1 / lower
    found = lower
    for step in range(1, _MOST_STEPS):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            lower = 1 / _not_zero(1 + term * lower)
            upper = _not_zero(1 + term / upper)
            found *= lower * upper
        if abs(lower * upper - 1) < _PRECISION:
            break
    return found


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
