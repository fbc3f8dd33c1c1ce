"""The steady-state test: honest about chance, and able to see a drift."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from wattserve_loadgen.figures import steady
from wattserve_loadgen.figures.steady import Floats, drift_of


def series(values: npt.NDArray[np.float64] | list[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)


def points(
    blocks: int, slices: int, *, rho: float, noise: float, drift: float, count: int, seed: int
) -> list[list[Floats]]:
    """`count` simulated points with first-order autocorrelation, each block at its own level."""
    source = np.random.default_rng(seed)
    shocks = source.normal(size=(count, blocks, slices + 30)) * math.sqrt(1 - rho * rho)
    walk = shocks.copy()
    for at in range(1, slices + 30):
        walk[..., at] = rho * walk[..., at - 1] + shocks[..., at]
    line = drift * ((np.arange(slices) + 0.5) / slices - 0.5)
    levels = source.uniform(20, 30, size=(count, blocks, 1))
    values = levels * (1 + noise * walk[..., 30:] + line)
    return [[series(block) for block in point] for point in values]


def flagged(simulated: list[list[Floats]]) -> float:
    found = [drift_of(point) for point in simulated]
    return sum(one is not None and one.significant for one in found) / len(found)


@pytest.mark.long
@pytest.mark.parametrize(("rho", "most"), [(0.0, 0.01), (0.3, 0.015), (0.5, 0.02)])
@pytest.mark.parametrize(("blocks", "slices"), [(3, 20), (5, 12)])
def test_a_steady_figure_is_seldom_flagged(blocks: int, slices: int, rho: float, most: float) -> None:
    simulated = points(blocks, slices, rho=rho, noise=0.10, drift=0.0, count=600, seed=11)
    assert flagged(simulated) <= most


@pytest.mark.long
@pytest.mark.parametrize(("blocks", "slices"), [(3, 20), (5, 12), (5, 20)])
@pytest.mark.parametrize("drift", [0.10, -0.10])
def test_a_drift_of_a_tenth_is_found_under_noise_of_three_percent(
    blocks: int, slices: int, drift: float
) -> None:
    simulated = points(blocks, slices, rho=0.0, noise=0.03, drift=drift, count=200, seed=12)
    assert flagged(simulated) >= 0.95


def test_a_drift_below_the_floor_is_certain_and_not_flagged() -> None:
    simulated = points(5, 20, rho=0.0, noise=0.003, drift=0.03, count=50, seed=13)
    assert flagged(simulated) == 0
    found = drift_of(simulated[0])
    assert found is not None
    assert found.p < 1e-6


def test_a_straight_line_has_the_share_that_it_climbs() -> None:
    found = drift_of([series(100 + 12 * (np.arange(12) + 0.5) / 12) for _ in range(3)])
    assert found is not None
    assert found.share_of_level_over_window == pytest.approx(12 / 106)
    assert (found.blocks, found.slices, found.significant) == (3, 36, True)


def test_s_counts_pairs_that_rise_less_pairs_that_fall() -> None:
    """Hirsch, Slack and Smith (1982): S, and its variance, which ties narrow."""
    values = np.array([10.0, 15, 14, 20])
    assert steady._score(values) == 4
    assert steady._variance(values) == pytest.approx(8.6667, abs=1e-4)
    assert steady._variance(np.array([1.0, 1, 2, 2])) == pytest.approx((4 * 3 * 13 - 2 * 2 * 1 * 9) / 18)


def test_levels_that_differ_between_blocks_are_no_drift() -> None:
    source = np.random.default_rng(14)
    blocks = [series(level * (1 + 0.01 * source.normal(size=20))) for level in (1.0, 2.0, 4.0)]
    found = drift_of(blocks)
    assert found is not None
    assert not found.significant


def test_a_constant_figure_does_not_drift() -> None:
    assert drift_of([series([5.0] * 20)] * 3) == steady.Drift(0.0, 1.0, 3, 60, False)


def test_slices_without_a_figure_are_left_out() -> None:
    values = 100 + np.arange(20.0)
    values[3] = values[11] = math.nan
    found = drift_of([series(values)] * 3)
    assert found is not None
    assert (found.slices, found.significant) == (54, True)
    assert found.share_of_level_over_window == pytest.approx(20 / 109.5, rel=0.01)


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([], "no block has run"),
        ([series([1.0] * 7)], "at most 7 slices of a block have a figure; it takes 8"),
        ([series([math.nan] * 20)], "at most 0 slices of a block have a figure; it takes 8"),
        ([series([0.0] * 20)], "its level is 0"),
    ],
)
def test_too_little_has_a_reason_and_no_drift(blocks: list[Floats], reason: str) -> None:
    assert drift_of(blocks) is None
    assert steady.no_drift_reason(blocks) == reason


def test_throughput_counts_what_was_done_in_each_slice() -> None:
    done = np.array([-1, 0, 1, 499, 500, 999, 1_000, 5_000], dtype=np.int64) * 1_000_000
    found = steady.slice_throughput(done, 0, 1_000_000_000, 2)
    assert found.tolist() == [6.0, 4.0]


def test_a_slice_with_too_few_latencies_has_no_median() -> None:
    sent = np.concatenate([np.full(11, 5), np.full(10, 15)]).astype(np.int64)
    found = steady.slice_medians(sent, np.arange(21, dtype=np.int64), 0, 20, 2)
    assert found[0] == 5.0
    assert math.isnan(found[1])


def test_unknown_energies_are_left_out_of_a_mean() -> None:
    at = np.array([1, 2, 3, 11, 99], dtype=np.int64)
    found = steady.slice_means(at, np.array([2.0, math.nan, 4.0, math.nan, 9.0]), 0, 20, 2)
    assert found[0] == 3.0
    assert math.isnan(found[1])


def test_slices_are_equally_wide_and_cover_the_window() -> None:
    found = steady.slice_throughput(np.arange(0, 60_000, dtype=np.int64), 0, 60_000, 20)
    assert (found * 3e-6).tolist() == pytest.approx([3_000] * 20)


def test_a_window_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="slices from"):
        steady.slice_throughput(np.array([1], dtype=np.int64), 5, 5)
