"""What every meter promises, whatever it reads. A new meter joins by a case in `SENSORS` or `LAWS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from tests.fixtures.meter_fakes import Clock, FakeBoard, FakeNvml, PowercapTree
from tests.fixtures.simulated_board import simulated_boards
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.errors import MeterError
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.laws import EstimateMeter, SimulatedMeter
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.port import Meter, NoMeter
from wattserve_server.meters.rapl import RaplMeter
from wattserve_server.meters.recording import Header, RecordedReading, end_line, header_line, reading_line
from wattserve_server.meters.replay import ReplayMeter


@dataclass
class Case:
    """A meter over a world in which 100 W flow. `run` lets time pass; `broken` makes a sensor fail."""

    meter: Meter
    run: Callable[[float], None]
    broken: Callable[[bool], None] = lambda yes: None
    end: Callable[[], None] = lambda: None


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


def board_case(folder: Path, counter_return: int, instant_return: int) -> Case:
    """The real binding, over a board that has the figures whose return codes are 0."""
    with ExitStack() as undo:
        boards = undo.enter_context(simulated_boards(folder))
        board, clock = boards.first, Clock()
        board.counter_return, board.instant_return = counter_return, instant_return
        board.counter_mj, board.instant_mw, board.average_mw = 1_000_000, 100_000, 100_000
        meter = open_nvml(clock_ns=clock, environ={})
        end = undo.pop_all().close

    def run(seconds: float) -> None:
        clock.advance_s(seconds)
        board.counter_mj += round(seconds * 100_000)

    def broken(yes: bool) -> None:
        board.fall_off_the_bus() if yes else board.come_back()

    return Case(meter, run, broken, end)


def board_counter(folder: Path) -> Case:
    return board_case(folder, 0, 0)


def board_instant_power(folder: Path) -> Case:
    return board_case(folder, pynvml.NVML_ERROR_NOT_SUPPORTED, 0)


def board_average_power(folder: Path) -> Case:
    return board_case(folder, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_SUPPORTED)


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


def replay(folder: Path) -> Case:
    clock = Clock()
    header = Header(Source("a", "b", Quality.MEASURED, "c", "d"), None, 10.0, 0.01, "then", {})
    lines = [reading_line(RecordedReading(ms * 1_000_000, Energy(ms * 100_000))) for ms in range(3001)]
    (folder / "recorded").write_text(header_line(header) + "".join(lines) + end_line(3 * 10**9, len(lines)))
    return Case(ReplayMeter(folder / "recorded", clock_ns=clock), clock.advance_s)


def composite(folder: Path) -> Case:
    """60 W of a board and 40 W of a package."""
    clock, tree, board = Clock(), PowercapTree(folder), FakeBoard()
    tree.add("intel-rapl:0", "package-0")
    package = RaplMeter(folder, clock_ns=clock)
    meter = CompositeMeter([open_nvml(load=lambda: FakeNvml([board]), clock_ns=clock, environ={}), package])
    package_uj = 0

    def run(seconds: float) -> None:
        nonlocal package_uj
        clock.advance_s(seconds)
        board.energy_mj = (board.energy_mj or 0) + round(seconds * 60_000)
        tree.set("intel-rapl:0", package_uj := package_uj + round(seconds * 40e6))

    def broken(yes: bool) -> None:
        board.fault = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST) if yes else None

    return Case(meter, run, broken)


SENSORS = [
    nvml_counter,
    nvml_instant_power,
    nvml_average_power,
    board_counter,
    board_instant_power,
    board_average_power,
    rapl,
    composite,
]
LAWS = [estimate, simulated, replay]


@pytest.fixture(params=[*SENSORS, *LAWS], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    made = request.param(tmp_path)
    yield made
    made.end()


@pytest.fixture(params=SENSORS, ids=lambda make: make.__name__)
def sensor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    made = request.param(tmp_path)
    yield made
    made.end()


@pytest.fixture(params=[*SENSORS, *LAWS, NoMeter], ids=lambda make: make.__name__)
def meter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meter]:
    if request.param is NoMeter:
        yield NoMeter()
        return
    made = request.param(tmp_path)
    yield made.meter
    made.end()


def test_a_reading_is_an_energy_at_an_instant_of_the_monotonic_clock(case: Case) -> None:
    reading = case.meter.read()
    assert type(reading) is Reading
    assert type(reading.energy) is Energy
    assert type(reading.energy.uj) is int
    assert reading.at_ns == 5_000_000_000


def test_energy_and_time_never_step_back(case: Case) -> None:
    readings = []
    for seconds in (0.0, 0.013, 0.02, 0.0, 0.1, 0.087, 0.25, 0.02):
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


def test_neighbours_are_counted_or_not_known_and_asking_never_fails(meter: Meter) -> None:
    at_work = meter.neighbours()
    meter.close()
    for neighbours in (at_work, meter.neighbours()):
        assert neighbours is None or neighbours >= 0


def test_a_broken_sensor_does_not_know_its_neighbours(sensor: Case) -> None:
    sensor.broken(True)
    assert sensor.meter.neighbours() is None


def test_what_others_used_is_told_or_not_known_and_asking_never_fails(meter: Meter) -> None:
    told = [meter.others_at_work(), meter.others_at_work()]
    meter.close()
    for at_work in (*told, meter.others_at_work()):
        assert at_work is None or at_work >= 0


def test_closing_twice_is_closing_once(meter: Meter) -> None:
    meter.close()
    meter.close()


def test_a_closed_meter_cannot_be_read(meter: Meter) -> None:
    meter.close()
    with pytest.raises(MeterError):
        meter.read()
