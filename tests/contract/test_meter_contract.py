"""What every meter promises, whatever it reads. A new meter joins by a case in `SENSORS` or `LAWS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from tests.fixtures.meter_fakes import Clock, FakeBoard, FakeNvml, PowercapTree
from wattserve_server.energy.reading import Quality, Reading
from wattserve_server.energy.units import Energy
from wattserve_server.errors import MeterError
from wattserve_server.meters.estimate import EstimateMeter
from wattserve_server.meters.none import NoMeter
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.port import Meter
from wattserve_server.meters.rapl import RaplMeter
from wattserve_server.meters.simulated import SimulatedMeter


@dataclass
class Case:
    """A meter over a world in which 100 W flow. `run` lets time pass; `broken` makes a sensor fail."""

    meter: Meter
    run: Callable[[float], None]
    broken: Callable[[bool], None] = lambda yes: None


def nvml_case(board: FakeBoard) -> Case:
    clock = Clock()
    meter = open_nvml(load=lambda: FakeNvml([board]), clock_ns=clock, environ={})

    def run(seconds: float) -> None:
        clock.advance_s(seconds)
        if board.energy_mj is not None:
            board.energy_mj += round(seconds * 100_000)

    def broken(yes: bool) -> None:
        board.fault = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST) if yes else None

    return Case(meter, run, broken)


def nvml_counter(folder: Path) -> Case:
    return nvml_case(FakeBoard())


def nvml_instant_power(folder: Path) -> Case:
    return nvml_case(FakeBoard(energy_mj=None, instant_power=(pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 100_000)))


def nvml_average_power(folder: Path) -> Case:
    return nvml_case(FakeBoard(energy_mj=None, instant_power=None, average_power_mw=100_000))


def rapl(folder: Path) -> Case:
    clock, tree = Clock(), PowercapTree(folder)
    counter = tree.add("intel-rapl:0", "package-0") / "energy_uj"
    aside = counter.with_name("aside")
    meter = RaplMeter(folder, clock_ns=clock)

    def run(seconds: float) -> None:
        clock.advance_s(seconds)
        file = counter if counter.exists() else aside
        file.write_text(str(int(file.read_text()) + round(seconds * 100e6)))

    def broken(yes: bool) -> None:
        counter.rename(aside) if yes else aside.rename(counter)

    return Case(meter, run, broken)


def estimate(folder: Path) -> Case:
    clock, cpu = Clock(), Clock()

    def run(seconds: float) -> None:
        clock.advance_s(seconds)
        cpu.advance_s(seconds)

    return Case(EstimateMeter(watts_per_core=90, idle_watts=10, clock_ns=clock, cpu_ns=cpu), run)


def simulated(folder: Path) -> Case:
    clock, busy = Clock(), Clock()

    def run(seconds: float) -> None:
        clock.advance_s(seconds)
        busy.advance_s(seconds)

    return Case(SimulatedMeter(busy, idle_watts=10, busy_watts=90, clock_ns=clock), run)


SENSORS = [nvml_counter, nvml_instant_power, nvml_average_power, rapl]
LAWS = [estimate, simulated]


@pytest.fixture(params=[*SENSORS, *LAWS], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return request.param(tmp_path)


@pytest.fixture(params=SENSORS, ids=lambda make: make.__name__)
def sensor(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return request.param(tmp_path)


@pytest.fixture(params=[*SENSORS, *LAWS, NoMeter], ids=lambda make: make.__name__)
def meter(request: pytest.FixtureRequest, tmp_path: Path) -> Meter:
    return NoMeter() if request.param is NoMeter else request.param(tmp_path).meter


def test_a_reading_is_an_energy_at_an_instant_of_the_monotonic_clock(case: Case) -> None:
    reading = case.meter.read()
    assert type(reading) is Reading
    assert type(reading.energy) is Energy
    assert type(reading.energy.uj) is int
    assert reading.at_ns == 5_000_000_000


def test_energy_and_time_never_step_back(case: Case) -> None:
    readings = []
    for seconds in (0.0, 0.013, 0.02, 0.0, 0.1, 0.087, 0.5, 0.02):
        case.run(seconds)
        readings.append(case.meter.read())
    assert readings == sorted(readings, key=lambda reading: reading.at_ns)
    assert readings == sorted(readings, key=lambda reading: reading.energy)


def test_a_hundred_watts_for_two_seconds_are_two_hundred_joules(case: Case) -> None:
    start = case.meter.read()
    for _ in range(20):
        case.run(0.1)
        end = case.meter.read()
    assert end.energy - start.energy == Energy.from_joules(200)
    assert end.at_ns - start.at_ns == 2_000_000_000


def test_reading_twice_at_one_instant_says_the_same(case: Case) -> None:
    case.run(0.25)
    assert case.meter.read() == case.meter.read()


def test_a_sensor_that_failed_reads_on_when_it_is_back(sensor: Case) -> None:
    sensor.run(0.1)
    before = sensor.meter.read()
    sensor.broken(True)
    for _ in range(2):
        sensor.run(0.02)
        with pytest.raises(MeterError):
            sensor.meter.read()
    sensor.broken(False)
    sensor.run(0.02)
    after = sensor.meter.read()
    assert after.energy > before.energy
    assert after.at_ns - before.at_ns == 60_000_000


def test_every_field_of_the_source_says_something(meter: Meter) -> None:
    source = meter.source
    assert source.name
    assert source.method
    assert source.note
    assert source.boundary
    assert isinstance(source.quality, Quality)


def test_the_poll_period_and_the_declared_values_are_usable(meter: Meter) -> None:
    assert meter.poll_period_s > 0
    assert meter.idle_watts is None or meter.idle_watts >= 0
    assert meter.wraps_at is None or meter.wraps_at.uj > 0


def test_closing_twice_is_closing_once(meter: Meter) -> None:
    meter.close()
    meter.close()


def test_a_closed_meter_cannot_be_read(meter: Meter) -> None:
    meter.close()
    with pytest.raises(MeterError):
        meter.read()
