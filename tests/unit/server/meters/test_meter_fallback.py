"""A counter that is offered but wrong, on a simulated board through the real binding."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.fixtures.meter_fakes import Clock
from tests.fixtures.simulated_board import SimulatedBoards, simulated_boards
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.reading import Quality, Reading
from wattserve_server.errors import MeterError
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.laws import EstimateMeter
from wattserve_server.meters.nvml import open_nvml

WATTS, STEP_S = 80, 0.05
COUNTER, POWER = "apportioned counter", "apportioned integrated power"


class World:
    """A board that draws 80 W by its power, and whose counter counts `factor` times as much."""

    def __init__(self, boards: SimulatedBoards, counter_mj: int = 1_000_000) -> None:
        self.board, self.clock, self.factor, self.mj = boards.first, Clock(), 1.0, float(counter_mj)
        self.board.instant_mw = self.board.average_mw = WATTS * 1000
        self.board.counter_mj = counter_mj
        self.meter = open_nvml(clock_ns=self.clock, environ={})

    def pass_s(self, seconds: float) -> list[Reading]:
        """Read every 50 ms; the counter publishes as often."""
        readings = []
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance_s(STEP_S)
            self.mj += WATTS * 1000 * STEP_S * self.factor
            self.board.counter_mj = round(self.mj)
            readings.append(self.meter.read())
        return readings

    @property
    def method(self) -> str:
        return self.meter.source.method


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[SimulatedBoards]:
    with simulated_boards(tmp_path) as made:
        yield made


@pytest.fixture
def world(boards: SimulatedBoards) -> World:
    return World(boards)


@pytest.mark.parametrize("factor", [1.0, 0.75, 1.25])
def test_a_counter_that_its_boards_power_bears_out_is_kept(world: World, factor: float) -> None:
    world.factor = factor
    readings = world.pass_s(600)
    assert world.method == COUNTER
    assert (readings[-1].energy - readings[0].energy).joules == pytest.approx(
        599.95 * WATTS * factor, rel=1e-6
    )


@pytest.mark.parametrize("counter_mj", [1_000_000, 0], ids=["stuck", "zero"])
def test_a_counter_that_stands_still_while_the_board_draws_is_left_after_ten_seconds(
    boards: SimulatedBoards, counter_mj: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(boards, counter_mj)
    world.factor = 0.0
    world.pass_s(9.9)
    assert (world.method, caplog.records) == (COUNTER, [])
    with caplog.at_level(logging.ERROR):
        readings = world.pass_s(10)
    source = world.meter.source
    assert (source.method, source.quality) == (POWER, Quality.MEASURED)
    assert source.note.startswith(
        "the board's energy counter was left, because it stood still for 10 s in which the board drew 80"
    )
    assert "receipts from before are of the counter; instant power, integrated" in source.note
    (record,) = caplog.records
    assert "was left, because it stood still" in record.getMessage()
    assert (readings[-1].energy - readings[100].energy).joules == pytest.approx(
        99 * STEP_S * WATTS, abs=2 * WATTS * 0.1
    )


@pytest.mark.parametrize("factor", [1.75, 0.57])
def test_a_counter_that_is_at_odds_with_the_power_for_three_minutes_is_left(
    world: World, factor: float
) -> None:
    world.factor = factor
    world.pass_s(179)
    assert world.method == COUNTER
    world.pass_s(3)
    assert world.method == POWER
    assert f"at last {60 * WATTS * factor:.0f} J against {60 * WATTS} J in 60 s" in world.meter.source.note


def test_one_minute_at_odds_is_forgiven(world: World) -> None:
    for _ in range(3):
        world.factor = 1.75
        world.pass_s(110)
        world.factor = 1.0
        world.pass_s(70)
    assert world.method == COUNTER


def test_a_counter_that_was_left_is_left_for_good_even_when_it_counts_again(world: World) -> None:
    world.factor = 0.0
    world.pass_s(11)
    world.factor = 1.0
    world.pass_s(600)
    assert world.method == POWER


def test_after_the_switch_the_count_begins_again_so_that_its_reader_sees_a_gap(world: World) -> None:
    accountant, shown = Accountant(), []
    world.pass_s(5)
    for factor, seconds in ((1.75, 190), (1.0, 10)):
        world.factor = factor
        for reading in world.pass_s(seconds):
            accountant.observe(reading)
            accountant.advance([], reading.at_ns)
            shown.append(reading.energy)
    ledger = accountant.ledger
    assert min(shown).uj == 0
    assert (ledger.gap_count, ledger.open_gap) == (1, None)
    assert ledger.recent_gaps[-1].reason.startswith("the meter's counter stepped back by")
    counted_s = 200 - 2 * STEP_S
    assert WATTS * counted_s < ledger.measured_uj / 1e6 < 1.75 * WATTS * counted_s


def test_from_then_on_the_power_is_shown_ten_times_a_second_however_often_it_is_read(world: World) -> None:
    world.factor = 0.0
    world.pass_s(11)
    shown = [reading.energy for reading in world.pass_s(10)]
    assert len(set(shown)) == pytest.approx(100, abs=1)


def test_without_any_power_nothing_contradicts_the_counter(boards: SimulatedBoards) -> None:
    boards.first.instant_return = boards.first.average_return = pynvml.NVML_ERROR_NOT_SUPPORTED
    world = World(boards)
    world.factor = 0.0
    world.pass_s(30)
    assert world.method == COUNTER


def test_a_power_that_says_nothing_is_no_witness(world: World) -> None:
    world.board.instant_mw = 0
    world.pass_s(300)
    assert world.method == COUNTER


def test_a_power_that_fails_costs_no_reading_and_begins_the_comparison_again(world: World) -> None:
    world.factor = 1.75
    world.pass_s(170)
    world.board.instant_return = pynvml.NVML_ERROR_UNKNOWN
    assert len(world.pass_s(1)) == 20
    world.board.instant_return = 0
    world.pass_s(179)
    assert world.method == COUNTER
    world.pass_s(3)
    assert world.method == POWER


def test_a_counter_that_was_reset_begins_the_comparison_again(world: World) -> None:
    world.factor = 1.75
    world.pass_s(170)
    world.mj = 0.0
    world.pass_s(179)
    assert world.method == COUNTER


def test_a_power_that_fails_after_the_switch_cannot_be_read_and_comes_back_from_0(world: World) -> None:
    world.factor = 0.0
    world.pass_s(20)
    world.board.instant_return = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(MeterError, match="the instant power of"):
        world.pass_s(0.05)
    world.board.instant_return = 0
    world.clock.advance_s(2.0)
    readings = world.pass_s(1)
    assert readings[0].energy.uj < 1_000_000
    assert readings[-1].energy.joules == pytest.approx(WATTS, rel=0.2)


def test_where_there_is_only_a_mean_of_power_what_follows_is_an_estimate(boards: SimulatedBoards) -> None:
    boards.first.instant_return = pynvml.NVML_ERROR_NOT_SUPPORTED
    world = World(boards)
    world.factor = 0.0
    world.pass_s(11)
    assert (world.method, world.meter.source.quality) == (POWER, Quality.ESTIMATED)


def test_a_sum_says_what_its_part_has_become(world: World) -> None:
    both = CompositeMeter([world.meter, EstimateMeter(clock_ns=world.clock, cpu_ns=lambda: 0)])
    world.factor = 0.0
    world.pass_s(11)
    assert "the board's energy counter was left" in both.source.note
    assert both.source.method == "sum of: apportioned integrated power, apportioned estimate"
