"""A sensor's gain: figures are corrected, and the sensor's own stay visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.meter_fakes import Clock, FakeBoard, FakeNvml, PowercapTree
from wattserve_server.config import ServerConfig
from wattserve_server.energy.reading import Energy, Quality
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.meters.choose import ChosenMeter, open_meter
from wattserve_server.meters.gain import GainMeter, raw_energy
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.port import NoMeter
from wattserve_server.meters.probe import probe_with_parts
from wattserve_server.meters.rapl import RaplMeter


class World:
    """A package whose counter the test writes, in microjoules."""

    def __init__(self, folder: Path, gain: float, error: float = 0.0) -> None:
        self.clock, self.tree = Clock(), PowercapTree(folder)
        self.tree.add("intel-rapl:0", "package-0", range_uj=10_000_000)
        self.meter = GainMeter(RaplMeter(folder, clock_ns=self.clock), gain, error)
        self.uj = 0

    def count(self, uj: int) -> Energy:
        self.clock.advance_s(0.1)
        self.uj += uj
        self.tree.set("intel-rapl:0", self.uj)
        return self.meter.read().energy


def test_what_is_read_is_corrected_and_what_the_sensor_said_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path, gain=1.05)
    assert [world.count(uj).uj for uj in (0, 2_000_000, 1_000_000)] == [0, 2_100_000, 3_150_000]
    assert world.meter.raw_energy == raw_energy(world.meter) == Energy(3_000_000)


def test_many_small_steps_lose_nothing_to_rounding(tmp_path: Path) -> None:
    world = World(tmp_path, gain=1.1)
    for _ in range(1000):
        last = world.count(7)
    assert last.uj == 7700


def test_the_sensors_own_count_goes_on_through_a_reset() -> None:
    board = FakeBoard(energy_mj=5_000)
    meter = GainMeter(open_nvml(load=lambda: FakeNvml([board]), clock_ns=Clock(), environ={}), 2.0, 0.0)
    shown = []
    for board.energy_mj in (5_000, 6_000, 100, 400):
        shown.append(meter.read().energy.joules)
    assert shown == [10.0, 12.0, 0.2, 0.8]  # the step back is there for its reader to see
    assert meter.raw_energy == Energy.from_joules(1.3)
    assert meter.most_watts == 2 * 700.0


@pytest.mark.parametrize(
    ("gain", "error", "words"),
    [
        (1.05, 0.02, "times a sensor gain of 1.05, known to ±2 %"),
        (1.05, 0.0, "times a sensor gain of 1.05, whose error was not given"),
        (1.0, 0.05, "times a sensor gain of 1, known to ±5 %"),
    ],
)
def test_gain_and_error_are_told_with_the_source(
    tmp_path: Path, gain: float, error: float, words: str
) -> None:
    source = World(tmp_path, gain, error).meter.source
    assert source.note.endswith(f"; {words}")
    assert source.quality is Quality.MEASURED


def test_the_probe_is_of_the_sensor_itself() -> None:
    clock, board = Clock(), FakeBoard(energy_mj=0, instant_power=(1, 100_000))
    nvml = FakeNvml([board])

    def sleep(seconds: float) -> None:
        clock.advance_s(seconds)
        board.energy_mj = (
            clock.now_ns - 5_000_000_000
        ) // 10_000_000  # 100 W, of which it counts 1 mJ each 10 ms
        board.energy_mj *= 1000

    meter = GainMeter(open_nvml(load=lambda: nvml, clock_ns=clock, environ={}), 1.5, 0.0)
    probed = probe_with_parts(meter, load=lambda: nvml, clock_ns=clock, sleep=sleep).probe
    assert probed.cross_checks[0].difference_ratio == pytest.approx(0.0, abs=0.05)
    assert probed.resolution_uj == 1_000_000


def chosen(folder: Path, choice: str, device_type: str = "cuda", is_main: bool = True) -> ChosenMeter:
    config = ServerConfig(meter=choice, powercap_root=str(folder), sensor_gain=1.05, sensor_gain_error=0.02)
    return open_meter(
        config,
        device_type=device_type,
        device_uuid=None,
        busy_ns=lambda: 0,
        is_main=is_main,
        load=FakeNvml,
    )


@pytest.mark.parametrize(
    ("choice", "device_type", "name"),
    [("nvml", "cuda", "nvml:"), ("auto", "cuda", "nvml:"), ("rapl", "cpu", "rapl"), ("auto", "cpu", "rapl")],
)
def test_the_gain_of_the_settings_is_that_of_the_one_sensor(
    tmp_path: Path, choice: str, device_type: str, name: str
) -> None:
    PowercapTree(tmp_path).add("intel-rapl:0", "package-0")
    got = chosen(tmp_path, choice, device_type)
    assert isinstance(got.meter, GainMeter)
    assert got.meter.source.name.startswith(name)
    assert "+rapl" not in got.meter.source.name
    assert "times a sensor gain of 1.05, known to ±2 %" in got.notice


@pytest.mark.parametrize("choice", ["nvml+rapl", "estimate", "simulated", "none"])
def test_a_gain_for_what_is_no_single_sensor_is_refused(tmp_path: Path, choice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(tmp_path, choice)
    assert str(caught.value) == (
        f"--sensor-gain is of one sensor, and --meter {choice} is not: use --meter nvml or --meter rapl"
    )


def test_another_devices_meter_is_not_corrected(tmp_path: Path) -> None:
    got = chosen(tmp_path, "auto", is_main=False)
    assert not isinstance(got.meter, GainMeter)


def test_where_there_is_no_sensor_auto_says_that_the_gain_is_not_used(tmp_path: Path) -> None:
    assert chosen(tmp_path, "auto", "cpu").notice.endswith("; --sensor-gain is not used")


def test_a_meter_without_a_gain_has_no_raw_figure() -> None:
    assert raw_energy(NoMeter()) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sensor_gain": 0.0}, "--sensor-gain 0: must be more than 0"),
        ({"sensor_gain": -1.0}, "--sensor-gain -1.0: must be a number, 0 or more"),
        ({"sensor_gain_error": 5.0}, "--sensor-gain-error 5.0: is relative; 0.05 means 5 %"),
    ],
)
def test_gains_that_cannot_be_are_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**given)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_corrected_sensor_that_fails_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, gain=1.05)
    world.meter.close()
    with pytest.raises(MeterError, match="closed"):
        world.meter.read()
