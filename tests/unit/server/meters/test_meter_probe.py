"""What the probe of a sensor finds, over sensors whose nature is known. The clock moves only when told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from tests.fixtures.meter_fakes import Clock, FakeBoard, FakeNvml
from wattserve_server.energy.probe import SensorProbe
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.errors import MeterError
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.port import NoMeter
from wattserve_server.meters.probe import probe_meter, probe_with_parts

MS = 1_000_000


@dataclass
class Sensor:
    """100 W behind a counter with this period, resolution and cost of a read; period 0: continuous."""

    clock: Clock
    period_ms: float = 100
    step_uj: int = 1000
    cost_ms: float = 0.01
    wraps_at: Energy | None = None
    most_watts: float | None = None
    fails_from_s: float | None = None
    frozen: bool = False
    idle_watts: float | None = None
    poll_period_s: float = 0.02
    source: Source = field(default=Source("a sensor", "counter", Quality.MEASURED, "note", "a box"))
    begun_ns: int = field(init=False)
    reads: int = 0

    def __post_init__(self) -> None:
        self.begun_ns = self.clock()

    def read(self) -> Reading:
        self.reads += 1
        at_ns = self.clock()
        self.clock.advance_s(self.cost_ms / 1000)
        since_ns = at_ns - self.begun_ns
        if self.fails_from_s is not None and since_ns >= self.fails_from_s * 1e9:
            raise MeterError("the sensor is gone")
        if self.period_ms:
            since_ns -= since_ns % round(self.period_ms * MS)
        uj = 0 if self.frozen else since_ns // 10 // self.step_uj * self.step_uj
        return Reading(at_ns, Energy(uj % self.wraps_at.uj if self.wraps_at else uj))

    def neighbours(self) -> int | None:
        return None

    def others_at_work(self) -> float | None:
        return None

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


def probed(**nature: Any) -> SensorProbe:
    clock = Clock()
    return probe_meter(Sensor(clock, **nature), clock_ns=clock, sleep=clock.advance_s)


def test_a_counter_that_steps_every_100_ms_is_found_in_one_and_a_third_seconds() -> None:
    found = probed()
    assert found.stepped
    assert found.update_period_s == pytest.approx(0.1, abs=0.0005)
    assert found.edge_jitter_s is not None
    assert found.edge_jitter_s < 0.001
    assert found.watts == pytest.approx(100, rel=0.01)
    assert found.resolution_uj == 10_000_000
    assert 1.3 <= found.duration_s < 1.35
    assert found.unsupported == {}


def test_a_counter_that_steps_every_20_ms_takes_a_quarter_of_a_second() -> None:
    found = probed(period_ms=20)
    assert found.update_period_s == pytest.approx(0.02, abs=0.0005)
    assert found.duration_s < 0.27


def test_a_continuous_value_is_done_with_in_a_tenth_of_a_second_and_has_no_period() -> None:
    found = probed(period_ms=0)
    assert not found.stepped
    assert found.update_period_s is None
    assert found.unsupported == {
        "update period": "the value changes with every poll: it is continuous, or faster than the probe"
    }
    assert found.watts == pytest.approx(100, rel=0.01)
    assert found.reads == 64
    assert found.duration_s < 0.1


def test_what_a_read_costs_is_what_a_read_took() -> None:
    found = probed(cost_ms=2.4)
    assert (found.read_cost_p50_s, found.read_cost_p99_s) == (0.0024, 0.0024)
    assert found.update_period_s == pytest.approx(0.1, abs=0.01)


def test_the_resolution_is_the_greatest_common_divisor_of_all_changes() -> None:
    # 37 ms at 100 W are 3.7 J: of a counter in whole joules, steps of 3 and of 4.
    assert probed(period_ms=37, step_uj=1_000_000).resolution_uj == 1_000_000


def test_a_frozen_counter_is_given_up_after_two_seconds_with_the_reason() -> None:
    found = probed(frozen=True)
    assert (found.stepped, found.update_period_s, found.watts, found.resolution_uj) == (
        False,
        None,
        None,
        None,
    )
    assert found.unsupported == {"update period": "the value stood still for 2 s"}
    assert 2.0 <= found.duration_s < 2.02


def test_a_counter_slower_than_the_probe_has_no_period_and_says_so() -> None:
    found = probed(period_ms=1500)
    assert found.update_period_s is None
    assert found.unsupported == {"update period": "the value changed only once in 2 s"}


def test_a_counter_that_wraps_while_probed_draws_no_less() -> None:
    assert probed(wraps_at=Energy(55_000_000)).watts == pytest.approx(100, rel=0.01)


def test_a_counter_that_steps_back_has_no_watts_and_the_step_is_told() -> None:
    class Reset(Sensor):
        def read(self) -> Reading:
            reading = super().read()
            return reading if self.reads < 300 else Reading(reading.at_ns, Energy(reading.energy.uj // 3))

    clock = Clock()
    found = probe_meter(Reset(clock), clock_ns=clock, sleep=clock.advance_s)
    assert found.watts is None
    assert found.unsupported == {"steady growth": "the value stepped back once"}


def test_a_meter_that_cannot_be_read_is_asked_five_times_and_its_reason_is_kept() -> None:
    clock = Clock()
    found = probe_meter(NoMeter("no driver"), clock_ns=clock, sleep=clock.advance_s)
    assert found.reads == 5
    assert found.unsupported == {"reading": "no driver"}
    assert (found.read_cost_p50_s, found.update_period_s) == (None, None)


def test_a_meter_that_dies_while_probed_keeps_what_was_found() -> None:
    found = probed(fails_from_s=0.55)
    assert found.update_period_s == pytest.approx(0.1, abs=0.0005)
    assert found.unsupported["reading"].endswith("reads failed: the sensor is gone")


def test_a_probe_never_raises_not_even_for_a_bug_in_a_meter() -> None:
    class Broken(Sensor):
        def read(self) -> Reading:
            raise UnicodeError("boom")

    clock = Clock()
    found = probe_meter(Broken(clock), clock_ns=clock, sleep=clock.advance_s)
    assert found.unsupported == {"reading": "UnicodeError: boom"}


class Board(FakeBoard):
    """100 W, and a counter that says 110 W in steps of 100 ms."""

    def at(self, clock: Clock) -> FakeBoard:
        self.energy_mj = (clock() // (100 * MS)) * 11_000
        return self


def nvml_of(board: Board, clock: Clock) -> FakeNvml:
    class Moving(FakeNvml):
        def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeBoard) -> int:
            if board.energy_mj is not None:
                board.at(clock)
            return super().nvmlDeviceGetTotalEnergyConsumption(handle)

    return Moving([board])


def test_a_boards_counter_is_held_against_its_own_power_over_three_windows() -> None:
    clock = Clock()
    nvml = nvml_of(Board(instant_power=(pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 100_000)), clock)
    meter = open_nvml(load=lambda: nvml, clock_ns=clock, environ={})
    found = probe_with_parts(
        meter, in_full=True, load=lambda: nvml, clock_ns=clock, sleep=clock.advance_s
    ).probe
    assert [round(check.window_s, 1) for check in found.cross_checks] == [0.5, 1.0, 2.0]
    for check in found.cross_checks:
        assert check.counter_joules == pytest.approx(110 * check.window_s, rel=0.01)
        assert check.power_joules == pytest.approx(100 * check.window_s, rel=0.01)
        assert check.difference_ratio == pytest.approx(0.1, abs=0.01)
    meter.close()
    assert nvml.users == 0


def test_a_frozen_counter_cannot_be_held_against_power_and_says_so() -> None:
    clock = Clock()
    nvml = FakeNvml([FakeBoard()])
    meter = open_nvml(load=lambda: nvml, clock_ns=clock, environ={})
    found = probe_with_parts(meter, load=lambda: nvml, clock_ns=clock, sleep=clock.advance_s).probe
    assert found.unsupported == {
        "counter against power": "the counter was not seen to change often enough",
        "update period": "the value stood still for 2 s",
    }


def test_a_board_that_is_lost_while_its_power_is_read_keeps_its_counters_probe() -> None:
    clock = Clock()
    board = Board()
    nvml = nvml_of(board, clock)
    meter = open_nvml(load=lambda: nvml, clock_ns=clock, environ={})

    def sleep(seconds: float) -> None:
        clock.advance_s(seconds)
        if clock() > 5_500_000_000:
            board.instant_power = None

    found = probe_with_parts(meter, load=lambda: nvml, clock_ns=clock, sleep=sleep).probe
    assert found.cross_checks == ()
    assert "instant power" in found.unsupported["counter against power"]
    assert found.update_period_s == pytest.approx(0.1, abs=0.001)


def test_at_start_up_the_cross_check_takes_no_longer_than_the_probe() -> None:
    clock = Clock()
    nvml = nvml_of(Board(instant_power=(pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 100_000)), clock)
    meter = open_nvml(load=lambda: nvml, clock_ns=clock, environ={})
    found = probe_with_parts(meter, load=lambda: nvml, clock_ns=clock, sleep=clock.advance_s).probe
    assert found.duration_s < 1.35
    assert [round(check.window_s, 1) for check in found.cross_checks] == [1.2]


def test_a_board_without_instant_power_says_why_nothing_was_checked() -> None:
    clock = Clock()
    nvml = nvml_of(Board(instant_power=None), clock)
    meter = open_nvml(load=lambda: nvml, clock_ns=clock, environ={})
    found = probe_with_parts(meter, load=lambda: nvml, clock_ns=clock, sleep=clock.advance_s).probe
    assert found.cross_checks == ()
    assert "this GPU or its driver does not offer it" in found.unsupported["instant power"]
    assert found.unsupported["counter against power"] == "this board gives no instant power"


def test_a_board_without_counter_says_so_although_its_power_is_metered() -> None:
    clock = Clock()
    nvml = nvml_of(Board(energy_mj=None), clock)
    meter = open_nvml(load=lambda: nvml, clock_ns=clock, environ={})
    found = probe_with_parts(meter, load=lambda: nvml, clock_ns=clock, sleep=clock.advance_s).probe
    assert "this GPU or its driver does not offer it" in found.unsupported["energy counter"]
    assert found.unsupported["counter against power"] == "this board gives no energy counter"
    assert found.reads == 64


def test_a_meter_with_one_figure_has_nothing_to_be_held_against() -> None:
    clock = Clock()
    found = probe_with_parts(Sensor(clock), clock_ns=clock, sleep=clock.advance_s)
    assert found.parts == ()
    assert found.probe.unsupported == {
        "counter against power": "cannot cross-check (needs a GPU, whose board gives both)"
    }


def test_each_part_of_a_composite_is_probed_by_itself() -> None:
    clock = Clock()
    meter = CompositeMeter([Sensor(clock), Sensor(clock, period_ms=0)])
    found = probe_with_parts(meter, clock_ns=clock, sleep=clock.advance_s)
    assert found.probe.update_period_s == pytest.approx(0.1, abs=0.001)
    assert [part.stepped for part in found.parts] == [True, False]
