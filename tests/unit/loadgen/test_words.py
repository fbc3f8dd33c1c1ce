"""Figures as people read them, and labels that do not overlap."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattserve_common.stats import Interval
from wattserve_loadgen import words
from wattserve_loadgen.report import ink


@given(st.lists(st.floats(-500, 500), max_size=12), st.floats(0.1, 40))
def test_spread_labels_keep_their_gap_and_their_order(wanted: list[float], gap: float) -> None:
    placed = ink.spread(wanted, gap)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    ordered = [placed[index] for index in order]
    assert all(upper - lower >= gap * 0.999 for lower, upper in pairwise(ordered))
    assert sum(placed) == pytest.approx(sum(wanted), abs=1e-6 * (1 + sum(map(abs, wanted))))


def test_labels_that_do_not_touch_stay_where_they_are() -> None:
    assert ink.spread([30.0, 0.0, 10.0], gap=5) == [30.0, 0.0, 10.0]
    assert ink.spread([0.0, 1.0], gap=5) == [-2.0, 3.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.05, "0.0500"),
        (1.0, "1.00"),
        (12.345, "12.3"),
        (999.6, "1,000"),
        (1234.5, "1,230"),
        (-0.5, "-0.500"),
        (1.7976931348623157e308, "1.80e+308"),
        (1e-300, "1.00e-300"),
    ],
)
def test_figures_have_three_significant_digits(value: float, text: str) -> None:
    assert words.significant(value) == text


@pytest.mark.parametrize(
    ("microjoules", "text"),
    [
        (None, "–"),
        (0, "0 µJ"),
        (12, "12.0 µJ"),
        (8_930, "8.93 mJ"),
        (2_500_000, "2.50 J"),
        (3.6e9, "3.60 kJ"),
    ],
)
def test_energies_choose_a_unit_that_fits(microjoules: float | None, text: str) -> None:
    assert words.energy(microjoules) == text


def test_an_interval_of_a_positive_figure_does_not_go_below_zero() -> None:
    assert words.bounds(Interval(1.0, -3.0, 5.0, 2)) == "0–5.00"
    assert words.bounds(Interval(1.0, None, None, 1)) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (125, "2 min 5 s"), (120, "2 min"), (3600, "1 h"), (15_120, "4 h 12 min")],
)
def test_durations_are_in_words(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0.0124, "+1.2 %"), (-0.003, "−0.3 %"), (0.0, "0.0 %"), (-0.0001, "0.0 %")],
)
def test_a_change_has_its_sign_unless_it_is_none(share: float | None, text: str) -> None:
    assert words.change(share) == text


def test_a_bound_that_is_not_known_is_not_written() -> None:
    assert words.at_most(12_300_000) == "≤ 12.3 ms"
    assert words.at_most(None) == ""


def test_the_interval_of_an_energy_is_in_the_unit_of_its_mean() -> None:
    assert words.energy_bounds(Interval(1_100.0, 900.0, 1_300.0, 3)) == "0.900–1.30"
    assert words.energy_bounds(Interval(1_100.0, None, None, 1)) == ""
    assert words.energy_bounds(None) == ""
