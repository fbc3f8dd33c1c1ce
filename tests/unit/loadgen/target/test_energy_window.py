"""Energy at the edges of a window, and how steady the power was within."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from tests.fixtures.loadgen_results import make_meter_window
from wattserve_loadgen.target.energy_window import (
    NoEnergy,
    added_up,
    delta_between,
    power_deviation,
)

TICKS = np.arange(0.0, 10.5, 0.5)


def test_a_window_between_readings_is_interpolated_at_both_edges() -> None:
    joules = np.where(TICKS <= 5, 10 * TICKS, 50 + 20 * (TICKS - 5))
    assert delta_between(TICKS, joules, 1.2, 8.7, 1.0) == pytest.approx(38 + 74)


def test_an_edge_on_a_reading_takes_that_reading() -> None:
    assert delta_between(np.array([0.0, 1, 2, 3]), np.array([0.0, 5, 7, 100]), 1.0, 2.0, 1.0) == 2.0


def test_a_window_within_one_interval_takes_its_share() -> None:
    assert delta_between(np.array([0.0, 10]), np.array([100.0, 200]), 2.0, 3.0, 10.0) == pytest.approx(10)


def test_windows_side_by_side_add_up_to_the_whole() -> None:
    joules = np.cumsum(np.random.default_rng(3).uniform(0, 9, len(TICKS)))
    cuts = [0.3, 2.21, 2.4, 7.77, 9.9]
    parts = [delta_between(TICKS, joules, a, b, 1.0) for a, b in pairwise(cuts)]
    assert sum(part for part in parts if isinstance(part, float)) == pytest.approx(
        delta_between(TICKS, joules, 0.3, 9.9, 1.0)
    )


@pytest.mark.parametrize(
    ("seconds", "joules", "reason"),
    [
        ([], [], "no_readings"),
        ([math.nan], [1.0], "no_readings"),
        ([1.5, 2, 3, 4], [0, 1, 2, 3], "no_reading_before"),
        ([0, 1, 2, 2.9], [0, 1, 2, 3], "no_reading_after"),
        ([0, 1.6, 2, 3], [0, 1, 2, 3], "gap_at_start"),
        ([0, 1, 2, 3.6], [0, 1, 2, 3], "gap_at_end"),
        ([0, 1, 1.3, 2.8, 3], [0, 1, 2, 3, 4], "gap_inside"),
        ([0, 1, 2, 3], [0, 5, 4, 8], "counter_went_back"),
        ([0, 1, 2, 3], [0, math.nan, 4, 8], "gap_at_start"),
    ],
)
def test_a_window_without_readings_close_around_it_has_a_reason_and_no_joules(
    seconds: list[float], joules: list[float], reason: str
) -> None:
    found = delta_between(np.array(seconds, float), np.array(joules, float), 1.1, 3.0, 1.2)
    assert found == NoEnergy(reason)
    assert json.dumps(found) == f'"{reason}"'


def test_gaps_and_steps_back_outside_the_window_do_not_matter() -> None:
    seconds = np.array([0.0, 50, 51, 52, 53, 99])
    joules = np.array([900.0, 10, 20, 30, 40, 0])
    assert delta_between(seconds, joules, 50.5, 52.5, 1.0) == pytest.approx(20)


@pytest.mark.parametrize("window", [(2.0, 2.0), (3.0, 2.0), (math.nan, 2.0)])
def test_an_empty_window_is_refused(window: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="is empty"):
        delta_between(TICKS, TICKS, *window, 1.0)


def test_readings_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="must not decrease"):
        delta_between(np.array([0.0, 2, 1]), np.array([0.0, 1, 2]), 0.1, 0.9, 5)
    with pytest.raises(ValueError, match="do not fit"):
        delta_between(np.array([0.0, 2]), np.array([0.0, 1, 2]), 0.1, 0.9, 5)


def test_steady_power_does_not_deviate() -> None:
    assert power_deviation(TICKS, 25 * TICKS) == 0.0


def test_powers_weigh_as_much_as_their_intervals_are_long() -> None:
    found = power_deviation(np.array([0.0, 1, 4]), np.array([0.0, 80, 200]))  # 80 W for 1 s, 40 W for 3 s
    assert found == pytest.approx(math.sqrt((30**2 * 1 + 10**2 * 3) / 4))


def test_too_few_readings_and_a_counter_that_went_back_have_no_deviation() -> None:
    assert power_deviation(np.array([1.0]), np.array([5.0])) is None
    assert power_deviation(np.array([0.0, 1, 2]), np.array([9.0, 10, 2])) is None


def test_windows_of_two_meters_add_up_and_one_without_a_figure_leaves_none() -> None:
    board = make_meter_window(measured_uj=8_000, watts=0.4, watts_deviation=0.3, readings=20)
    host = make_meter_window(
        measured_uj=500, watts=0.1, watts_deviation=0.4, readings=9, longest_gap_seconds=0.5
    )
    both = added_up([board, host])
    assert (both.measured_uj, both.watts, both.readings) == (8_500, 0.5, 9)
    assert (both.longest_gap_seconds, both.watts_deviation) == (0.5, 0.5)
    assert added_up([board]) is board
    silent = make_meter_window(measured_uj=None, watts=None, reason="gap_inside: 2 s")
    lost = added_up([board, silent])
    assert (lost.measured_uj, lost.watts, lost.reason) == (None, None, "gap_inside: 2 s")
