"""What is noted about the machine between cells: clocks, temperature, the wall clock."""

from __future__ import annotations

from pathlib import Path

from wattserve_loadgen.sweeping.environment import ClockWatch, conditions_now
from wattserve_loadgen.sweeping.readings import Readings

SECOND = 1_000_000_000


def test_a_wall_clock_that_is_set_is_noticed_once_and_a_slow_drift_is_not() -> None:
    wall, monotonic = [1_000 * SECOND], [5 * SECOND]
    watch = ClockWatch(lambda: wall[0], lambda: monotonic[0])
    wall[0], monotonic[0] = 1_010 * SECOND + SECOND // 10, 15 * SECOND
    assert watch.step() == ""
    wall[0] -= 3_600 * SECOND
    assert watch.step() == (
        "The client's wall clock was set back by 3600.0 s; latencies and energies are on monotonic clocks and"
        " do not suffer."
    )
    assert watch.step() == ""
    wall[0] += 2 * SECOND
    assert watch.step().startswith("The client's wall clock was set forward by 2.0 s;")


def test_conditions_are_the_mean_clock_and_the_hottest_zone(tmp_path: Path) -> None:
    cpus, zones = tmp_path / "cpu", tmp_path / "thermal"
    for cpu, kilohertz in (("cpu0", "2000000\n"), ("cpu1", "3000000\n")):
        (cpus / cpu / "cpufreq").mkdir(parents=True)
        (cpus / cpu / "cpufreq" / "scaling_cur_freq").write_text(kilohertz)
    for zone, millidegrees in (("thermal_zone0", "41000"), ("thermal_zone1", "55500"), ("thermal_zone2", "")):
        (zones / zone).mkdir(parents=True)
        (zones / zone / "temp").write_text(millidegrees)
    found = conditions_now(cpus, zones)
    assert (found.cpu_mhz, found.temperature_celsius) == (2500.0, 55.5)
    nothing = conditions_now(tmp_path / "none", tmp_path / "none")
    assert (nothing.cpu_mhz, nothing.temperature_celsius) == (None, None)


def test_a_reading_that_is_seen_again_is_not_another_one() -> None:
    readings = Readings("server", "cpu")
    for seconds, joules in ((1.0, 10.0), (1.0, 10.0), (2.0, 10.0), (3.0, 40.0), (2.5, 50.0)):
        readings.add(seconds, joules)
    assert (readings.seconds, readings.joules) == ([1.0, 3.0], [10.0, 40.0])
    assert readings.watts(1.0) == 15.0


def test_a_counter_that_was_set_back_has_no_power() -> None:
    readings = Readings("server", "cpu")
    readings.add(1.0, 1000.0)
    readings.add(2.0, 3.0)
    assert readings.watts(1.0) is None


def test_readings_are_handed_out_once() -> None:
    readings = Readings("server", "cpu")
    readings.add(1.0, 10.0, 5.0)
    assert [line["seconds"] for line in readings.unsaved()] == [1.0]
    assert readings.unsaved() == []
