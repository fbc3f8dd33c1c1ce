"""The binomial tail against exact sums of integers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattserve_common.stats import binomial_tail


def exact_tail(trials: int, most: int, percent: int) -> float:
    total = sum(math.comb(trials, k) * percent**k * (100 - percent) ** (trials - k) for k in range(most + 1))
    return float(Fraction(total, 100**trials))


@given(
    st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))), st.integers(1, 99)
)
def test_a_tail_is_the_sum_of_its_terms(sizes: tuple[int, int], percent: int) -> None:
    trials, most = sizes
    found = binomial_tail(trials, most, percent / 100)
    assert found == pytest.approx(exact_tail(trials, most, percent), rel=1e-9, abs=1e-12)


def test_a_tail_of_ten_thousand_trials_is_exact_to_nine_digits() -> None:
    assert binomial_tail(10_000, 77, 0.01) == pytest.approx(exact_tail(10_000, 77, 1), rel=1e-9)
    assert binomial_tail(10_000, 78, 0.01) == pytest.approx(exact_tail(10_000, 78, 1), rel=1e-9)


def test_the_median_of_five_million_fair_trials_splits_them() -> None:
    middle = binomial_tail(5_000_001, 2_500_000, 0.5)
    assert middle == pytest.approx(0.5, abs=1e-7)


def test_a_tail_ends_at_nothing_and_at_certainty() -> None:
    assert binomial_tail(10, -1, 0.3) == 0
    assert binomial_tail(10, 10, 0.3) == 1
    assert binomial_tail(0, 0, 0.3) == 1


@pytest.mark.parametrize(("trials", "chance"), [(-1, 0.5), (5, 0.0), (5, 1.0), (5, math.nan)])
def test_what_is_no_binomial_is_refused(trials: int, chance: float) -> None:
    with pytest.raises(ValueError, match="no binomial"):
        binomial_tail(trials, 1, chance)
