"""When a batch's energy shows in the counter."""

import numpy as np
import pytest

from wattserve_server.energy.device import Response, uneven_j

START, END = np.array([2.0]), np.array([2.5])
RESPONSES = [
    Response(), Response(0.03), Response(0.0, 0.05), Response(0.02, 0.08),
    Response(0.0, 0.0, 0.1), Response(0.15, 0.03, 0.025), Response(0.02, 0.05, 1.0),
]  # fmt: skip


def counted(response: Response, at_s: float) -> float:
    return float(response.counted(at_s, START, END)[0])


def test_a_response_that_ends_at_its_bounds_or_counts_at_random_is_not_resolved() -> None:
    assert Response(0.29, 0.14, 1.0, 0.09).unresolved == ""
    for beyond in (Response(0.3, 0.02), Response(0.02, 0.15)):
        assert beyond.is_at_its_bounds
        assert "longer than any that is looked for (0.3 and 0.15 s)" in beyond.unresolved
    random = Response(0.02, 0.02, at_random=0.25)
    assert not random.is_at_its_bounds
    assert "25% of what the device draws unevenly is counted at random" in random.unresolved


def test_what_is_drawn_evenly_is_seen_whenever_one_looks() -> None:
    assert float(uneven_j(10.0, 1.0)) == 0.0
    assert float(uneven_j(10.0, 0.5)) == pytest.approx(10.0)
    assert float(uneven_j(10.0, 0.1)) == pytest.approx(30.0)


def test_nearly_all_is_counted_a_lag_and_three_and_a_half_time_constants_after_the_end() -> None:
    assert Response(0.02, 0.04).reach_s == pytest.approx(0.02 + 3.5 * 0.04)
    assert Response().reach_s == 0.0
    assert Response(0.02, 0.04, 1.0).reach_s == pytest.approx(1.02 + 3.5 * 0.04)


@pytest.mark.parametrize("response", RESPONSES)
def test_nothing_is_counted_before_the_lag_and_everything_long_after(response: Response) -> None:
    assert counted(response, 0.0) == 0.0
    assert counted(response, 2.0 + response.lag_s) == 0.0
    assert counted(response, 2.0 + response.lag_s + 0.01) > 0.0
    assert counted(response, 2.5 + response.reach_s) > 0.99
    assert counted(response, 1e6) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("response", RESPONSES)
def test_what_is_counted_only_grows(response: Response) -> None:
    at_s = np.linspace(1.5, 4.0, 2001)
    parts = response.counted(at_s, START, END)
    assert np.diff(parts).min() >= -1e-12
    assert parts.min() >= 0
    assert parts.max() <= 1


def test_without_a_ramp_the_energy_comes_evenly() -> None:
    parts = Response(0.1).counted(np.array([2.1, 2.2, 2.35, 2.6, 2.7]), START, END)
    assert parts == pytest.approx([0.0, 0.2, 0.5, 1.0, 1.0])


@pytest.mark.parametrize("ramp_s", [0.01, 0.08, 0.4])
def test_with_a_ramp_it_comes_as_a_first_order_answer_to_a_box(ramp_s: float) -> None:
    step_s, at_s = 1e-4, np.arange(0.0, 6.0, 1e-4)
    power = np.zeros_like(at_s)
    box = ((at_s >= 2.0) & (at_s < 2.5)) / 0.5
    for index in range(1, len(at_s)):  # dP/dt = (box - P) / ramp
        power[index] = power[index - 1] + step_s / ramp_s * (box[index - 1] - power[index - 1])
    energy = np.cumsum(power) * step_s
    closed = Response(0.0, ramp_s).counted(at_s, START, END)
    assert np.abs(closed - energy).max() < 2e-3


@pytest.mark.parametrize(("ramp_s", "average_s"), [(0.0, 0.1), (0.03, 0.1), (0.05, 1.0)])
def test_a_trailing_average_counts_the_mean_of_what_was_drawn_lately(ramp_s: float, average_s: float) -> None:
    step_s, at_s = 1e-3, np.arange(0.0, 6.0, 1e-3)
    drawn = Response(0.0, ramp_s).counted(at_s, START, END)
    over = round(average_s / step_s)
    padded = np.concatenate([np.zeros(over), drawn])
    mean = np.array([padded[index : index + over + 1].mean() for index in range(len(at_s))])
    assert Response(0.0, ramp_s, average_s).counted(at_s, START, END) == pytest.approx(mean, abs=6e-3)


def test_a_short_batch_is_counted_in_full() -> None:
    instant = np.array([2.0 + 1e-6])
    assert Response(0.0, 0.05).counted(4.0, START, instant) == pytest.approx([1.0], abs=1e-6)
    assert Response().counted(2.1, START, instant) == pytest.approx([1.0])
    assert Response(0.0, 0.05, 1.0).counted(4.0, START, instant) == pytest.approx([1.0], abs=1e-6)


def test_what_intervals_next_to_each_other_counted_sums_to_one() -> None:
    response, edges = Response(0.037, 0.021), np.arange(0.0, 5.0, 0.1)
    assert np.diff(response.counted(edges, START, END)).sum() == pytest.approx(1.0)


def test_times_and_batches_broadcast() -> None:
    at_s, start, end = np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 1.0]), np.array([1.0, 2.0])
    assert Response().counted(at_s, start, end).tolist() == [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
