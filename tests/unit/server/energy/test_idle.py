"""How long a span was in each class of rest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattserve_server.energy.costlaw import CLASSES, REST_S, rest_class
from wattserve_server.energy.device import rest_times


@pytest.mark.parametrize(
    ("rested_s", "expected"),
    [(0.0, 0), (0.25, 0), (0.26, 1), (1.0, 1), (1.1, 2), (4.1, 3), (16.0, 3), (16.1, 4), (1e9, 4)],
)
def test_a_rest_belongs_to_a_class_by_its_length(rested_s: float, expected: int) -> None:
    assert rest_class(rested_s) == expected


def test_there_is_a_class_for_work_and_one_beyond_each_bound() -> None:
    assert len(REST_S) + 1 == CLASSES == 5


def test_a_long_rest_passes_through_all_classes() -> None:
    times = rest_times(10.0, 40.0, [], last_end_s=10.0)
    assert times == pytest.approx([0.25, 0.75, 3.0, 12.0, 14.0])


def test_a_span_in_the_middle_of_a_rest_counts_from_the_last_work() -> None:
    assert rest_times(10.5, 11.5, [], last_end_s=10.0) == pytest.approx([0.0, 0.5, 0.5, 0.0, 0.0])


def test_without_any_work_before_it_a_span_is_long_rest() -> None:
    assert rest_times(3.0, 5.0, [], -math.inf) == pytest.approx([0.0, 0.0, 0.0, 0.0, 2.0])


def test_work_is_in_the_first_class_and_rest_begins_anew_after_it() -> None:
    times = rest_times(0.0, 10.0, [(4.0, 6.0)], last_end_s=-100.0)
    assert times == pytest.approx([2.25, 0.75, 3.0, 0.0, 4.0])


def test_work_that_goes_beyond_the_span_counts_only_in_it() -> None:
    assert rest_times(1.0, 2.0, [(0.0, 5.0)], -math.inf) == pytest.approx([1.0, 0, 0, 0, 0])
    assert rest_times(1.0, 2.0, [(0.0, 0.5)], -math.inf) == pytest.approx([0, 0.5, 0.5, 0, 0])


def test_batches_side_by_side_are_counted_once() -> None:
    times = rest_times(0.0, 4.0, [(0.5, 3.0), (1.0, 2.0), (1.5, 3.5)], last_end_s=0.0)
    assert times == pytest.approx([0.25 + 3.0 + 0.25, 0.5, 0.0, 0.0, 0.0])


instants = st.floats(0.0, 60.0)
spans = st.tuples(instants, instants).map(sorted)


@given(spans, st.lists(spans, max_size=8).map(sorted), st.one_of(st.just(-math.inf), st.floats(-60.0, 0.0)))
def test_every_instant_is_in_one_class(span: list[float], busy: list[list[float]], last_end_s: float) -> None:
    since, until = span
    touching = [(start, end) for start, end in busy if end > since and start < until]
    times = rest_times(since, until, touching, last_end_s)
    assert times.min() >= 0
    assert times.sum() == pytest.approx(until - since, abs=1e-9)
    worked = sum(1 for step in range(200) if _in_any(since + (until - since) * (step + 0.5) / 200, touching))
    assert times[0] >= (until - since) * (worked - len(touching) * 2) / 200 - 1e-9


def _in_any(at: float, busy: list[tuple[float, float]]) -> bool:
    return any(start <= at < end for start, end in busy)
