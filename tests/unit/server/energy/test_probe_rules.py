"""What follows from a probe: how often the sampler reads, and how a counter is held against power."""

from __future__ import annotations

import pytest

from wattserve_server.energy.probe import (
    CrossCheck,
    SensorProbe,
    changes,
    check_against_power,
    describe,
    poll_period_s,
)
from wattserve_server.energy.reading import Energy, Reading

MS = 1_000_000


def at(ms: int, uj: int) -> Reading:
    return Reading(ms * MS, Energy(uj))


@pytest.mark.parametrize(
    ("update_s", "cost_s", "poll_s"),
    [
        (0.1, 1e-5, 0.01),  # a tenth of the period
        (0.02, 1e-5, 0.005),  # but not below 5 ms
        (2.0, 1e-5, 0.05),  # nor above 50 ms
        (0.1, 0.0024, 0.024),  # nor below ten reads
        (0.1, 0.01, 0.05),  # of which a very slow one still leaves 50 ms
    ],
)
def test_a_stepped_sensor_is_read_ten_times_per_update_within_limits(
    update_s: float, cost_s: float, poll_s: float
) -> None:
    probe = SensorProbe(1.3, 900, stepped=True, update_period_s=update_s, read_cost_p50_s=cost_s)
    assert poll_period_s(probe, 0.02) == poll_s


@pytest.mark.parametrize(("usual_s", "poll_s"), [(0.02, 0.1), (0.25, 0.25)])
def test_a_continuous_sensor_is_read_every_100_ms_unless_its_meter_proposes_more(
    usual_s: float, poll_s: float
) -> None:
    assert poll_period_s(SensorProbe(0.1, 64, read_cost_p50_s=1e-5), usual_s) == poll_s


def test_a_sensor_that_could_not_be_read_is_read_as_its_meter_proposes() -> None:
    assert poll_period_s(SensorProbe(0.0, 5), 0.05) == 0.05


def test_a_wrap_is_a_change_and_a_step_back_is_not() -> None:
    readings = [at(0, 90), at(1, 95), at(2, 3), at(3, 3), at(4, 8)]
    wrapping, stepping_back = changes(readings, Energy(100)), changes(readings, None)
    assert (wrapping.gains_uj, wrapping.steps_back) == ([5, 8, 5], 0)
    assert (stepping_back.gains_uj, stepping_back.steps_back) == ([5, 5], 1)


def test_edge_jitter_is_the_deviation_of_the_time_between_edges() -> None:
    edges_ms = (0, 90, 200, 290, 400)
    readings = [at(ms, 1000 * sum(edge <= ms for edge in edges_ms)) for ms in range(-10, 500, 10)]
    found = describe(readings, [1] * len(readings), 500 * MS)
    assert found.update_period_s == 0.1
    assert found.edge_jitter_s == 0.01


def test_nothing_read_is_nothing_known() -> None:
    found = describe([], [5, 5], 100, unsupported={"reading": "gone"})
    assert found == SensorProbe(1e-7, 2, unsupported={"reading": "gone"})


def test_a_counter_is_held_against_power_from_edge_to_edge() -> None:
    counter = [at(ms, 5_000_000 * (ms // 100)) for ms in range(0, 1000, 10)]
    power = [at(ms, 40_000 * ms) for ms in range(0, 1000, 7)]
    found = check_against_power(counter, power, (0.5, 2.0))
    (check,) = found
    assert (check.window_s, check.counter_joules) == (0.5, 25.0)
    assert check.power_joules == pytest.approx(20.0)
    assert check.difference_ratio == pytest.approx(0.25)
    assert check_against_power(counter, power)[0].window_s == 0.8


def test_without_power_or_edges_there_is_nothing_to_check() -> None:
    counter = [at(ms, 5_000_000 * (ms // 100)) for ms in range(0, 1000, 10)]
    assert check_against_power(counter, []) == ()
    assert check_against_power([at(0, 7), at(500, 7)], [at(0, 0), at(500, 9)]) == ()


def test_a_difference_from_no_power_is_unknown() -> None:
    assert CrossCheck(1.0, 5.0, 0.0).difference_ratio is None
