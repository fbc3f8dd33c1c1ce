"""The sentence and the picture with which a report begins: what was saved, if anything was shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fixtures.loadgen_pages import default_html, default_page, make_sheet
from tests.fixtures.loadgen_results import ARMS, FP32, make_results
from wattserve_common.stats import Interval
from wattserve_loadgen.model.ratios import Ratios
from wattserve_loadgen.model.results import Results
from wattserve_loadgen.plan.load import Arm
from wattserve_loadgen.report.charts import opening
from wattserve_loadgen.report.text import headline

TITLE = "What a request costs at concurrency 4"
BF16 = Arm("bf16", "bf16", FP32.target)


def with_ratio(results: Results, arm: str, ratio: Interval) -> Results:
    points = [
        replace(one, figures=replace(one.shown, ratios=Ratios(active_energy=ratio)))
        if one.arm == arm
        else one
        for one in results.points
    ]
    return replace(results, points=points)


def test_the_picture_stands_before_everything_but_the_headline() -> None:
    html = default_html()
    assert html.index('class="lede"') < html.index(TITLE) < html.index('class="banner')


def test_a_saving_that_is_shown_stands_behind_its_bar() -> None:
    figure = default_page().figure(TITLE)
    assert "fp32" in figure
    assert "10.0 mJ, −50 %" in figure
    assert "The grey band is how far fp32 differs from itself" in figure
    assert "Energy source" in figure


def test_a_difference_that_is_not_shown_is_not_drawn_as_one() -> None:
    results = with_ratio(make_results(), "int8", Interval(0.9, 0.7, 1.1, 3))
    picture = opening(make_sheet(results))
    assert picture is not None
    assert picture.svg is not None
    assert "10.0 mJ, no difference shown" in picture.svg
    assert "mJ, −" not in picture.svg


def test_where_there_is_nothing_to_compare_there_is_no_picture() -> None:
    assert opening(make_sheet(make_results(arms=[FP32]))) is None
    assert opening(make_sheet(make_results(points=[]))) is None
    assert opening(make_sheet(no_joules())) is None


def no_joules() -> Results:
    results = make_results()
    points = [replace(one, figures=replace(one.shown, active_uj=None)) for one in results.points]
    return replace(results, points=points)


@pytest.mark.parametrize(
    ("bf16", "said"),
    [
        (Interval(0.45, 0.2, 1.1, 3), "int8 saves 50 %"),  # the lower mean is not shown to be lower
        (Interval(0.45, 0.4, 0.5, 3), "bf16 saves 55 %"),
        (Interval(1.4, 1.3, 1.5, 3), "int8 saves 50 %"),
    ],
)
def test_the_headline_names_a_saving_that_is_shown_before_a_lower_mean_that_is_not(
    bf16: Interval, said: str
) -> None:
    results = with_ratio(make_results(arms=[*ARMS[:2], BF16, *ARMS[2:]]), "bf16", bf16)
    assert said in headline(results)


def test_where_nothing_saves_the_headline_says_what_the_best_costs_more() -> None:
    results = with_ratio(make_results(), "int8", Interval(1.4, 1.3, 1.5, 3))
    assert "int8 needs 40 % more active energy per request than fp32" in headline(results)
