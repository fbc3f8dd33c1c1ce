"""Idle draw, the counter's beat, what the sampler disturbs; readings; device time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fixtures.verify_rig import NS, VirtualRig, played
from tests.fixtures.windows import window
from wattserve_server.energy.receipt import Window
from wattserve_server.verify.beside import device_time, measure_perturbation
from wattserve_server.verify.idle import PACES_S, measure_idle
from wattserve_server.verify.readings import Readings
from wattserve_server.verify.sensor import measure_sensor


def test_idle_draw_is_told_by_state_and_by_pace() -> None:
    found = played(measure_idle(VirtualRig(), 60.0))
    assert found.at_rest_w == pytest.approx(50.0, rel=0.01)
    assert list(found.by_rest_w) == ["0.5 to 1 s", "1 to 4 s", "4 to 16 s", "16 to 18 s"]
    assert all(watts == pytest.approx(50.0, rel=0.02) for watts in found.by_rest_w.values())
    assert list(found.by_pace_w) == list(PACES_S)
    adds = found.reading_adds_w
    assert adds is not None
    assert adds[0] == pytest.approx(0.0, abs=1.0)


def test_the_counters_beat_and_what_a_read_takes() -> None:
    found = played(measure_sensor(VirtualRig(), 6.0))
    assert found.period_s == pytest.approx(0.1, abs=0.002)
    assert found.idle.read_cost_p50_s == pytest.approx(20e-6)
    assert found.busy.watts == pytest.approx(298.0, rel=0.03)


def test_a_sampler_that_disturbs_nothing_is_told_so() -> None:
    rig = VirtualRig()
    found = played(measure_perturbation(rig, 10.0))
    assert found.p50_ratio is not None
    assert found.p50_ratio.mean == pytest.approx(1.0, abs=0.02)


def test_a_counter_that_wraps_goes_on_and_a_step_back_counts_as_nothing() -> None:
    readings = Readings(wraps_at_uj=1000)
    for at_ms, uj in enumerate((900, 990, 40, 50)):
        readings.add(at_ms * 1_000_000, uj, 0)
    assert list(readings.spell(0, NS).joules * 1e6) == pytest.approx([0, 90, 140, 150])
    readings = Readings(None)
    for at_ms, uj in enumerate((500, 100, 150)):
        readings.add(at_ms * 1_000_000, uj, 0)
    assert list(readings.spell(0, NS).joules * 1e6) == pytest.approx([0, 0, 50])
    assert readings.steps_back == 1


def test_a_stepped_counter_shows_its_new_value_at_an_edge_a_continuous_one_is_interpolated() -> None:
    stepped, smooth = Readings(None), Readings(None)
    for at_ms in range(400):
        stepped.add(at_ms * 1_000_000, at_ms // 100 * 1_000_000, 0)
        smooth.add(at_ms * 1_000_000, at_ms * 1_000_000, 0)
    assert stepped.shown_j(199_500_000) == 2.0
    assert smooth.shown_j(199_500_000) == pytest.approx(199.5)
    assert stepped.shown_j(500_000_000) is None


def test_the_hosts_stamps_are_held_against_the_devices() -> None:
    def timed(start_ms: float, end_ms: float) -> Window:
        batch = window(start_ms, end_ms)
        return replace(batch, host_ns=(batch.start_ns - 2_000_000, batch.end_ns + 1_000_000))

    found = device_time([window(0, 5), timed(10, 17), timed(30, 37), window(50, 60, warmup=True)])
    assert found is not None
    assert (found.windows, found.lead_s, found.tail_s) == (2, 0.002, 0.001)
    assert found.busy_share == pytest.approx(0.7)
    by_the_host = window(0, 5)
    assert device_time([replace(by_the_host, host_ns=(by_the_host.start_ns, by_the_host.end_ns))]) is None
