"""Order statistics with floors, intervals over blocks, proportions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattserve_common import stats


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
    none, all_of_them = stats.wilson_interval(0, 20), stats.wilson_interval(20, 20)
    assert (none[0], all_of_them[1]) == (0.0, 1.0)
    assert (none[1], all_of_them[0]) == pytest.approx((0.1611252, 0.8388748))


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


def test_a_mean_of_blocks_whose_squares_are_no_numbers_has_its_interval() -> None:
    found = stats.mean_interval([1e200, 0.0])
    assert found is not None
    assert found.high == pytest.approx(0.5e200 * (1 + 12.7062), rel=1e-4)


def test_a_ratio_is_the_geometric_mean_of_the_pairs() -> None:
    found = stats.ratio_interval([(2.0, 1.0), (8.0, 1.0), (4.0, 1.0)])
    assert found is not None
    assert found.mean == pytest.approx(4.0)
    assert found.low == pytest.approx(4 / 2 ** (4.30265 / math.sqrt(3)), rel=1e-4)
    assert found.high == pytest.approx(4 * 2 ** (4.30265 / math.sqrt(3)), rel=1e-4)


def test_a_ratio_of_a_variant_to_itself_is_exactly_one() -> None:
    assert stats.ratio_interval([(3.0, 3.0), (5.0, 5.0)]) == stats.Interval(1.0, 1.0, 1.0, 2)


def test_pairs_without_a_logarithm_are_left_out_of_a_ratio() -> None:
    check_ratio_of_one_pair([(0.0, 1.0), (2.0, 1.0)], 2.0)
    assert stats.ratio_interval([(0.0, 1.0)]) is None


def test_pairs_that_are_not_finite_are_left_out_of_a_ratio() -> None:
    pairs = [(math.inf, 1.0), (math.nan, 1.0), (1.0, math.inf), (2.0, 1.0)]
    check_ratio_of_one_pair(pairs, 2.0)


def check_ratio_of_one_pair(pairs: list[tuple[float, float]], ratio: float) -> None:
    interval = stats.ratio_interval(pairs)
    assert interval is not None
    assert interval.mean == pytest.approx(ratio)
    assert (interval.low, interval.high, interval.n) == (None, None, 1)


@pytest.mark.parametrize("pairs", [[(1e300, 1e-300)], [(1e300, 1e-300), (1e-300, 1e300)]])
def test_ratios_of_any_size_stay_finite(pairs: list[tuple[float, float]]) -> None:
    found = stats.ratio_interval(pairs)
    assert found is not None
    assert all(bound is None or math.isfinite(bound) for bound in (found.mean, found.low, found.high))
    reach = stats.resolution(found)
    assert reach is None or math.isfinite(reach)


@pytest.mark.parametrize(
    ("ratio", "reach"),
    [
        ((1.01, 0.99, 1.03), 0.03),
        ((0.99, 0.96, 1.02), 1 / 0.96 - 1),
        ((1.10, 1.09, 1.11), 0.11),  # one that does not hold 1 tells apart no less than its own error
        ((1.01, None, None), None),
    ],
)
def test_a_rig_tells_apart_what_an_aa_pair_never_reaches(
    ratio: tuple[float, float | None, float | None], reach: float | None
) -> None:
    assert stats.resolution(stats.Interval(*ratio, 3)) == (reach and pytest.approx(reach))


@pytest.mark.parametrize(
    ("ratio", "finest", "verdict"),
    [
        ((1.05, 1.02, 1.08), 0.03, True),
        ((1.05, 1.02, 1.08), 0.06, False),  # less than two equal arms differ by
        ((0.95, 0.92, 0.98), 0.05, True),
        ((1.05, 0.99, 1.11), 0.01, False),  # holds 1
        ((1.05, 1.02, 1.08), None, None),
        ((1.05, None, None), 0.01, None),
    ],
)
def test_a_difference_is_beyond_its_own_interval_and_beyond_the_rigs_resolution(
    ratio: tuple[float, float | None, float | None], finest: float | None, verdict: bool | None
) -> None:
    assert stats.differs(stats.Interval(*ratio, 3), finest) is verdict


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ((14, 5, 0, 22), 0.0115, 0.2265),  # Altman et al., Statistics with Confidence (2000), p. 52
        ((1, 1, 7, 12), -0.5069, -0.0256),  # Fagerland, Lydersen, Laake, Statistical Analysis (2017), ch. 8
        ((36, 12, 2, 0), 0.0569, 0.3404),  # Newcombe (1998), method 10
    ],
)
def test_paired_differences_match_published_intervals(
    counts: tuple[int, int, int, int], low: float, high: float
) -> None:
    found = stats.paired_difference(*counts)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("counts", "p"),
    [((1, 7), 0.0703125), ((5, 0), 0.0625), ((0, 0), 1.0), ((4, 4), 1.0), ((2, 12), 0.012939453125)],
)
def test_mcnemars_exact_p_is_twice_the_binomial_tail(counts: tuple[int, int], p: float) -> None:
    assert stats.mcnemar_p(*counts) == pytest.approx(p)
    assert stats.mcnemar_p(*reversed(counts)) == pytest.approx(p)


def test_variants_that_agree_on_every_item_do_not_differ() -> None:
    found = stats.paired_difference(900, 0, 0, 100)
    assert (found.difference, found.p) == (0.0, 1.0)
    assert found.low < 0 < found.high < 0.005


def test_pairing_narrows_the_interval_of_two_accuracies() -> None:
    paired = stats.paired_difference(880, 20, 10, 90)
    unpaired = stats.paired_difference(801, 99, 89, 11)  # the same accuracies, right on other items
    assert paired.difference == pytest.approx(0.01)
    assert unpaired.difference == pytest.approx(0.01)
    assert paired.high - paired.low < (unpaired.high - unpaired.low) / 2


@given(st.tuples(*[st.integers(0, 400)] * 4).filter(any))
def test_a_paired_interval_holds_the_difference_and_mirrors(counts: tuple[int, int, int, int]) -> None:
    both, own, base, neither = counts
    found = stats.paired_difference(both, own, base, neither)
    other = stats.paired_difference(both, base, own, neither)
    assert -1 - 1e-9 <= found.low <= found.difference <= found.high <= 1 + 1e-9
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low))
    assert 0 < found.p <= 1


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (1, -1, 0, 0)])
def test_what_is_no_comparison_is_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="are not the counts of a comparison"):
        stats.paired_difference(*counts)


def test_equal_values_whose_mean_rounds_are_worth_all_of_themselves() -> None:
    assert stats.effective_samples(np.full(1_000_001, 10**16 + 1)) == 1_000_001
    assert stats.effective_samples(np.full(7, 0.1)) == 7


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
