"""Percentiles with floors and 99 % bounds."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest

from wattserve_common import stats
from wattserve_loadgen.figures import percentiles
from wattserve_loadgen.figures.percentiles import percentiles_of, quantile_of, spared_values

NAMES = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99", 99.9: "p999"}


def exact_spared(trials: int, above: Fraction) -> int:
    """t by the rule's own words, in exact fractions."""
    tail, t = Fraction(0), -1
    while True:
        t += 1
        tail += math.comb(trials, t) * above**t * (1 - above) ** (trials - t)
        if tail >= Fraction(1, 100):
            return max(0, t - 1)


@pytest.mark.parametrize(("trials", "spared"), [(661, 0), (662, 1), (1_000, 2), (10_000, 77)])
def test_the_99th_percentile_spares_what_mlperf_does(trials: int, spared: int) -> None:
    assert spared_values(trials, 0.01) == spared


@pytest.mark.parametrize("trials", [1, 5, 11, 64, 129, 130, 500, 701])
@pytest.mark.parametrize("percent", [50, 90, 95, 99])
def test_spared_values_are_those_of_exact_arithmetic(trials: int, percent: int) -> None:
    above = Fraction(100 - percent, 100)
    assert spared_values(trials, float(above)) == exact_spared(trials, above)
    assert spared_values(trials, float(1 - above)) == exact_spared(trials, 1 - above)


@pytest.mark.parametrize(("percent", "floor"), stats.SAMPLE_FLOORS.items())
def test_the_floor_is_the_first_sample_with_an_upper_bound(percent: float, floor: int) -> None:
    assert percentiles.upper_rank(floor - 1, floor - 1, percent) is None
    assert percentiles.upper_rank(floor, floor, percent) == floor


def test_five_million_samples_have_bounds() -> None:
    assert spared_values(5_000_000, 0.01) == 49_482
    assert spared_values(5_000_000, 0.99) == 4_949_481


def test_the_bound_of_ten_thousand_is_the_77th_highest() -> None:
    found = percentiles_of(np.arange(1, 10_001), 10_000.0)
    assert (found.p99_ns, found.p99_bound_ns) == (9_900, 9_924)
    assert (found.samples, found.mean_ns, found.max_ns) == (10_000, 5_000.5, 10_000)


def test_bounds_enclose_the_percentile() -> None:
    found = quantile_of(np.arange(1, 10_001), 10_000.0, 99.0)
    assert (found.low_ns, found.value_ns, found.high_ns) == (9_875, 9_900, 9_924)


@pytest.mark.parametrize(("percent", "floor"), stats.SAMPLE_FLOORS.items())
def test_below_its_effective_floor_a_percentile_and_its_bound_are_absent(percent: float, floor: int) -> None:
    values = np.arange(20_000)
    below = dataclasses.asdict(percentiles_of(values, floor - 0.5))
    reached = dataclasses.asdict(percentiles_of(values, float(floor)))
    name = NAMES[percent]
    assert (below[f"{name}_ns"], below[f"{name}_bound_ns"]) == (None, None)
    assert reached[f"{name}_bound_ns"] == 20_000 - 20_000 // floor


def test_a_look_holds_values_against_the_plain_count_and_bounds_against_the_effective_one() -> None:
    found = percentiles_of(np.arange(1_000), 20.0, floors_by_effective=False)
    assert found.p99_ns == 989
    assert found.p99_bound_ns is None
    assert found.p50_bound_ns is not None
    assert found.p999_ns is None


def test_answers_of_one_batch_count_once() -> None:
    """662 batches of 10 equal latencies are worth 662: the bound is the slowest batch, as it is of 662."""
    assert percentiles.upper_rank(6_620, 662.0, 99.0) == 6_611
    assert percentiles_of(np.repeat(np.arange(662), 10), 662.0).p99_bound_ns == 661


def test_an_effective_size_between_two_whole_numbers_is_rounded_down() -> None:
    assert percentiles.upper_rank(2_000, 661.9, 99.0) is None
    assert percentiles.upper_rank(2_000, 662.9, 99.0) == 2_001 - 3


def test_an_unknown_effective_size_bounds_nothing() -> None:
    found = percentiles_of(np.arange(5_000), None)
    assert (found.p50_ns, found.p50_bound_ns, found.effective_samples) == (None, None, None)
    assert found.max_ns == 4_999


def test_an_effective_size_above_the_count_is_held_to_the_count() -> None:
    assert percentiles_of(np.arange(600), 1e6).p99_ns is None


def test_no_samples_have_no_figures() -> None:
    assert set(dataclasses.asdict(percentiles_of(np.array([], dtype=np.int64), None)).values()) == {0, None}


def test_every_figure_can_be_written_as_json() -> None:
    found = percentiles_of(np.arange(10_000, dtype=np.int64), 10_000.0)
    assert json.loads(json.dumps(dataclasses.asdict(found)))["p99_ns"] == 9_899


def coverage(draw: str, size: int, percent: float, truth: float) -> tuple[float, float]:
    """How often, of 400 samples, the truth is below the upper and above the lower bound."""
    source = np.random.default_rng(20_261_121)
    below = above = 0
    for _ in range(400):
        values = source.lognormal(13, 0.5, size)
        if draw == "batches":
            values = np.repeat(values, 8)
        sample = values.astype(np.int64)
        found = quantile_of(sample, stats.effective_samples(sample), percent)
        below += found.high_ns is None or truth <= found.high_ns
        above += found.low_ns is None or truth >= found.low_ns
    return below / 400, above / 400


@pytest.mark.parametrize("draw", ["alone", "batches"])
@pytest.mark.parametrize(("percent", "z"), [(50.0, 0.0), (95.0, 1.6448536), (99.0, 2.3263479)])
def test_each_bound_holds_in_99_of_100_samples(draw: str, percent: float, z: float) -> None:
    below, above = coverage(draw, 1_500, percent, math.exp(13 + 0.5 * z))
    assert min(below, above) >= 0.98  # 400 samples: 0.99 less two standard deviations
