"""The figure: every series can be told from every other, and nothing that was compared is missing from it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_tools.inspect.figures import EXACT, NOT_FINITE, LayerChart, look, picture

pytest.importorskip("matplotlib")

LAYERS = ["first", "second", "third"]


def drawn(**series: list[float | None]) -> tuple[Any, list[str]]:
    """The axes, and the words of the legend."""
    made = picture(LayerChart("errors", "relative error", LAYERS, series, is_logarithmic=True))
    words = [text.get_text() for legend in made.legends for text in legend.get_texts()]
    return made.axes[0], words


def at_the_edge(axes: Any, is_left: bool) -> list[tuple[str, list[int]]]:
    """Marker and layers of each series in that strip."""
    strips = [
        line
        for line in axes.get_lines()
        if line.get_transform() != axes.transData and line.get_label() == "_edge"
    ]
    return [
        (line.get_marker(), list(line.get_ydata()))
        for line in strips
        if (max(line.get_xdata()) < 0.5) == is_left
    ]


def test_as_many_series_as_there_are_kinds_all_look_different() -> None:
    looks = [look(index) for index in range(max(11, len(KINDS)))]
    assert len(set(looks)) == len(looks)
    assert len({marker for _, marker in looks}) == len(looks)  # in print, without any colour
    everywhere: list[float | None] = [0.1, 0.2, 0.3]
    axes, words = drawn(**{f"kind-{index}": everywhere for index in range(11)})
    assert len({(line.get_color(), line.get_marker()) for line in axes.get_lines()}) == 11
    assert len(words) == 11


def test_looks_do_not_repeat_before_the_84th_series() -> None:
    assert len({look(index) for index in range(84)}) == 84


def test_an_exact_layer_is_at_the_left_edge_in_its_series_shape_and_the_legend_says_so() -> None:
    axes, words = drawn(int8=[0.1, 0.0, 0.2], bf16=[0.0, 0.0, 0.1])
    assert at_the_edge(axes, is_left=True) == [(look(0)[1], [1]), (look(1)[1], [0, 1])]
    assert at_the_edge(axes, is_left=False) == []
    assert EXACT in words
    assert NOT_FINITE not in words


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_layer_that_is_not_finite_is_at_the_right_edge_and_the_legend_says_so(value: float) -> None:
    axes, words = drawn(int8=[0.1, value, 0.2])
    assert at_the_edge(axes, is_left=False) == [(look(0)[1], [1])]
    assert NOT_FINITE in words


def test_exact_and_not_finite_layers_of_one_series_look_different() -> None:
    axes, _ = drawn(int8=[0.0, math.nan, 0.2])
    left, right = (line for line in axes.get_lines() if line.get_label() == "_edge")
    assert left.get_markerfacecolor() == "none"
    assert right.get_markerfacecolor() == look(0)[0]
    assert right.get_markeredgecolor() == "#000000"


def test_ordinary_points_stay_clear_of_the_edges() -> None:
    axes, _ = drawn(int8=[1e-4, 0.0, 1e-1], bf16=[1e-3, math.nan, 1e-2])
    to_share = axes.transData + axes.transAxes.inverted()
    places = [to_share.transform((value, 0))[0] for value in (1e-4, 1e-1)]
    assert 0.14 < places[0] < places[1] < 0.86


def test_equal_values_of_two_series_do_not_hide_each_other() -> None:
    axes, _ = drawn(int8=[0.1, 0.1, 0.1], llm_int8=[0.1, 0.1, 0.1])
    upper, lower = (line.get_ydata()[0] for line in axes.get_lines())
    assert -0.5 < upper < lower < 0.5


def test_a_layer_that_was_not_compared_is_not_drawn() -> None:
    axes, words = drawn(int8=[0.1, None, 0.2], bf16=[0.1, 0.1, 0.1])
    assert [round(row) for row in axes.get_lines()[0].get_ydata()] == [0, 2]
    assert words == ["int8", "bf16"]


def test_a_figure_of_nothing_but_edges_can_be_drawn() -> None:
    axes, words = drawn(int8=[0.0, math.nan, math.nan])
    assert at_the_edge(axes, is_left=True) == [(look(0)[1], [0])]
    assert at_the_edge(axes, is_left=False) == [(look(0)[1], [1, 2])]
    assert words == ["int8", EXACT, NOT_FINITE]
