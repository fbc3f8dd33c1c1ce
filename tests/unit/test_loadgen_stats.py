"""Order statistics with floors, intervals over blocks, proportions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattserve_loadgen.figures import stats


@pytest.mark.parametrize(
    ("percent", "floor"), [(50.0, 11), (90.0, 64), (95.0, 130), (99.0, 662), (99.9, 6636)]
)
def test_a_percentile_is_absent_below_its_floor_and_there_at_it(percent: float, floor: int) -> None:
    assert stats.percentile(np.arange(floor - 1), percent) is None
    assert stats.percentile(np.arange(floor), percent) is not None


@pytest.mark.parametrize(("percent", "floor"), stats.SAMPLE_FLOORS.items())
def test_a_floor_is_the_first_sample_with_two_values_above_in_99_of_100_cases(
    percent: float, floor: int
) -> None:
    above = 1 - percent / 100

    def one_or_none_above(n: int) -> float:
        return (1 - above) ** n + n * above * (1 - above) ** (n - 1)

    assert one_or_none_above(floor) < 0.01 <= one_or_none_above(floor - 1)


def test_percentiles_are_values_that_were_seen() -> None:
    thousand = np.arange(1, 1001)
    assert stats.percentile(thousand, 50.0) == 500
    assert stats.percentile(thousand, 90.0) == 900
    assert stats.percentile(thousand, 95.0) == 950
    assert stats.percentile(thousand, 99.0) == 990
    assert stats.percentile(np.array([7] * 10 + [9]), 50.0) == 7


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10**12), min_size=130, max_size=200))
def test_a_percentile_leaves_its_share_at_or_below_it(values: list[int]) -> None:
    found = stats.percentile(np.array(values), 95.0)
    assert found in values
    assert sum(value <= found for value in values) >= 0.95 * len(values)
    assert sum(value < found for value in values) < 0.95 * len(values)


def test_wilson_intervals_match_published_values() -> None:
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert stats.wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert stats.wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert stats.wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_wilson_intervals_touch_the_ends_only_when_the_count_does() -> None:
    assert stats.wilson_interval(0, 20) == (0.0, pytest.approx(0.1611252))
    assert stats.wilson_interval(20, 20) == (pytest.approx(0.8388748), 1.0)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_wilson_interval_holds_the_share_and_stays_within_0_and_1(counts: tuple[int, int]) -> None:
    successes, trials = counts
    low, high = stats.wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1


@pytest.mark.parametrize("counts", [(3, 2), (-1, 2), (0, 0)])
def test_what_is_no_proportion_is_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="is not a proportion"):
        stats.wilson_interval(*counts)


@pytest.mark.parametrize(
    ("df", "quantile"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (5, 2.5706),
        (9, 2.2622),
        (30, 2.0423),
        (200, 1.9719),
    ],
)
def test_student_t_quantiles_match_the_printed_table(df: int, quantile: float) -> None:
    assert stats.t_quantile(0.975, df) == pytest.approx(quantile, abs=5e-5)
    assert stats.t_quantile(0.025, df) == pytest.approx(-quantile, abs=5e-5)


def test_the_median_of_student_t_is_zero() -> None:
    assert stats.t_quantile(0.5, 7) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("probability", "df"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_a_t_quantile_outside_its_range_is_refused(probability: float, df: int) -> None:
    with pytest.raises(ValueError, match="needs 0 < probability < 1"):
        stats.t_quantile(probability, df)


def test_a_mean_over_three_blocks_has_the_t_interval_of_two_degrees_of_freedom() -> None:
    found = stats.mean_interval([10.0, 12.0, 14.0])
    assert found is not None
    assert (found.mean, found.n) == (12.0, 3)
    assert found.high == pytest.approx(12 + 4.30265 * 2 / math.sqrt(3), abs=1e-4)
    assert found.low == pytest.approx(12 - 4.30265 * 2 / math.sqrt(3), abs=1e-4)


def test_one_block_has_a_mean_and_no_interval_and_no_block_has_neither() -> None:
    assert stats.mean_interval([5.0]) == stats.Interval(5.0, None, None, 1)
    assert stats.mean_interval([]) is None


def test_a_ratio_is_the_geometric_mean_of_the_pairs() -> None:
    found = stats.ratio_interval([(2.0, 1.0), (8.0, 1.0), (4.0, 1.0)])
    assert found is not None
    assert found.mean == pytest.approx(4.0)
    assert found.low == pytest.approx(4 / 2 ** (4.30265 / math.sqrt(3)), rel=1e-4)
    assert found.high == pytest.approx(4 * 2 ** (4.30265 / math.sqrt(3)), rel=1e-4)


def test_a_ratio_of_a_variant_to_itself_is_exactly_one() -> None:
    assert stats.ratio_interval([(3.0, 3.0), (5.0, 5.0)]) == stats.Interval(1.0, 1.0, 1.0, 2)


def test_pairs_without_a_logarithm_are_left_out_of_a_ratio() -> None:
    assert stats.ratio_interval([(0.0, 1.0), (2.0, 1.0)]) == stats.Interval(pytest.approx(2.0), None, None, 1)
    assert stats.ratio_interval([(0.0, 1.0)]) is None


def test_alternating_values_do_not_count_as_more_than_they_are() -> None:
    assert stats.effective_samples(np.array([1, 2] * 50)) == 100


def test_repeated_values_count_as_fewer() -> None:
    runs = np.repeat(np.array([3, 9, 4, 8, 1, 7, 2, 6, 5, 0]), 10)
    found = stats.effective_samples(runs)
    assert found is not None
    assert found < 15


def test_equal_values_and_short_samples_have_a_defined_effective_size() -> None:
    assert stats.effective_samples(np.array([4, 4, 4, 4])) == 4
    assert stats.effective_samples(np.array([4, 5])) is None
