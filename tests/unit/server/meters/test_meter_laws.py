"""The meters that follow a stated law: estimate and simulated; and the one without any."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.meter_fakes import Clock
from wattserve_server.energy.reading import Energy, Quality, Reading
from wattserve_server.errors import MeterError
from wattserve_server.meters.laws import EstimateMeter, SimulatedMeter
from wattserve_server.meters.port import NoMeter


def test_the_estimate_is_cpu_time_times_watts_per_core_plus_wall_time_times_idle_watts() -> None:
    clock, cpu = Clock(), Clock()
    meter = EstimateMeter(watts_per_core=7.5, idle_watts=5.0, clock_ns=clock, cpu_ns=cpu)
    clock.advance_s(2)
    cpu.advance_s(3)
    assert meter.read() == Reading(7_000_000_000, Energy.from_joules(3 * 7.5 + 2 * 5.0))


def test_cpu_time_used_before_the_meter_opened_is_not_counted() -> None:
    meter = EstimateMeter(clock_ns=Clock(), cpu_ns=Clock(9_000_000_000))
    assert meter.read().energy == Energy(0)


def test_the_estimate_says_that_it_is_one_and_from_which_watts() -> None:
    meter = EstimateMeter()
    assert meter.source.name == "estimate"
    assert meter.source.quality is Quality.ESTIMATED
    assert meter.source.note == "7.5 W per busy core + 5 W idle, configured, not measured"
    assert meter.source.boundary == (
        "only the CPU time of this process on this host; no other process and no accelerator"
    )
    assert meter.idle_watts == 5.0


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**9)), max_size=30))
def test_the_estimate_loses_no_fraction_however_often_it_is_read(steps: list[tuple[int, int]]) -> None:
    clock, cpu = Clock(), Clock()
    often = EstimateMeter(watts_per_core=3.3, idle_watts=0.7, clock_ns=clock, cpu_ns=cpu)
    once = EstimateMeter(watts_per_core=3.3, idle_watts=0.7, clock_ns=clock, cpu_ns=cpu)
    last = often.read()
    for wall_ns, cpu_ns in steps:
        clock.now_ns += wall_ns
        cpu.now_ns += cpu_ns
        reading = often.read()
        assert reading.energy >= last.energy
        last = reading
    assert once.read() == last


def test_the_simulated_counter_steps_at_multiples_of_its_period() -> None:
    clock, busy = Clock(), Clock(0)
    meter = SimulatedMeter(busy, clock_ns=clock)
    joules = []
    for _ in range(6):
        joules.append(meter.read().energy.joules)
        clock.advance_s(0.05)
    assert joules == [0.0, 0.0, 4.0, 4.0, 8.0, 8.0]


def test_a_running_batch_draws_its_watts_on_top_of_idle() -> None:
    clock, busy = Clock(), Clock(0)
    meter = SimulatedMeter(busy, idle_watts=40, busy_watts=110, clock_ns=clock)
    clock.advance_s(0.1)
    busy.advance_s(0.1)
    assert meter.read().energy == Energy.from_joules(15)
    clock.advance_s(0.1)
    assert meter.read().energy == Energy.from_joules(19)


def test_a_late_reading_shows_the_energy_as_of_the_last_step() -> None:
    clock, busy = Clock(), Clock(0)
    meter = SimulatedMeter(busy, idle_watts=40, busy_watts=110, clock_ns=clock)
    clock.advance_s(0.125)
    busy.advance_s(0.125)
    reading = meter.read()
    assert reading.at_ns == 5_125_000_000
    assert reading.energy == Energy.from_joules(0.1 * 150)


def test_the_simulated_counter_shows_whole_millijoules() -> None:
    clock, busy = Clock(), Clock(0)
    meter = SimulatedMeter(busy, idle_watts=0.0199, busy_watts=0, clock_ns=clock)
    clock.advance_s(0.1)
    assert meter.read().energy == Energy(1_000)


def test_batches_that_ran_before_the_meter_opened_are_not_counted() -> None:
    clock, busy = Clock(), Clock(8_000_000_000)
    meter = SimulatedMeter(busy, idle_watts=0, busy_watts=110, clock_ns=clock)
    clock.advance_s(0.1)
    assert meter.read().energy == Energy(0)


def test_the_simulated_meter_says_that_it_is_one_and_which_law_it_follows() -> None:
    meter = SimulatedMeter(Clock(), idle_watts=40, busy_watts=110)
    assert meter.source.name == "simulated"
    assert meter.source.quality is Quality.SIMULATED
    assert meter.source.note == (
        "40 W idle + 110 W while a batch runs, declared, not measured; "
        "published every 0.1 s in whole millijoules"
    )
    assert meter.idle_watts == 40


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 3 * 10**8), st.floats(0, 1)), max_size=30))
def test_the_simulated_counter_never_steps_back_nor_runs_ahead_of_its_law(
    steps: list[tuple[int, float]],
) -> None:
    clock, busy = Clock(0), Clock(0)
    meter = SimulatedMeter(busy, idle_watts=40, busy_watts=110, clock_ns=clock)
    last = meter.read()
    for wall_ns, busy_fraction in steps:
        clock.now_ns += wall_ns
        busy.now_ns += round(wall_ns * busy_fraction)
        reading = meter.read()
        assert reading.energy >= last.energy
        assert reading.energy.uj * 1000 <= 40 * clock.now_ns + 110 * busy.now_ns
        last = reading


def test_without_a_meter_the_energy_is_unknown_and_not_zero() -> None:
    meter = NoMeter()
    assert meter.source.quality is Quality.NONE
    assert meter.source.method == "none"
    with pytest.raises(MeterError) as caught:
        meter.read()
    assert str(caught.value) == "no meter was asked for (--meter none)"


def test_the_reason_for_having_no_meter_is_what_every_reading_says() -> None:
    with pytest.raises(MeterError) as caught:
        NoMeter("no GPU energy meter: the driver is gone").read()
    assert str(caught.value) == "no GPU energy meter: the driver is gone"
