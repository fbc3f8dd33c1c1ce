"""The counter and the integrated power of a board, reading by reading."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.meter_fakes import H200_UUID, Clock, FakeBoard, FakeNvml
from wattserve_server.energy.reading import Energy, Reading
from wattserve_server.errors import MeterError
from wattserve_server.meters.nvml import NvmlCounterMeter, open_nvml
from wattserve_server.meters.nvml_board import open_board
from wattserve_server.meters.port import Meter

MILLIWATTS = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT


def over(board: FakeBoard, clock: Callable[[], int]) -> Meter:
    return open_nvml(load=lambda: FakeNvml([board]), clock_ns=clock, environ={})


def power_board(power_mw: float, value_type: int = MILLIWATTS) -> FakeBoard:
    return FakeBoard(energy_mj=None, instant_power=(value_type, power_mw))


def test_the_counters_millijoules_are_read_as_microjoules() -> None:
    meter = over(FakeBoard(energy_mj=123_456_789), Clock(7))
    assert meter.read() == Reading(7, Energy(123_456_789_000))


def test_a_reading_is_dated_to_the_middle_of_the_call() -> None:
    instants = iter([1_000, 3_400])
    board = open_board(load=FakeNvml, environ={})
    meter = NvmlCounterMeter(board, clock_ns=lambda: next(instants))
    assert meter.read().at_ns == 2_200


def test_a_counter_that_steps_back_is_passed_on_for_its_reader_to_see() -> None:
    board = FakeBoard(energy_mj=500)
    meter = over(board, Clock())
    board.energy_mj = 20
    assert meter.read().energy == Energy(20_000)


def test_a_lost_board_is_an_error_and_is_looked_up_afresh_when_it_is_back() -> None:
    nvml = FakeNvml()
    meter = open_nvml(load=lambda: nvml, clock_ns=Clock(), environ={})
    nvml.boards[0].fault = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(MeterError) as caught:
        meter.read()
    assert str(caught.value) == (
        f"NVML: the energy counter of {H200_UUID} cannot be read: "
        "the GPU has fallen off the bus: see `dmesg`, then reset it or reboot"
    )
    nvml.boards[0] = FakeBoard(energy_mj=3)
    assert meter.read().energy == Energy(3_000)
    assert nvml.lookups == 2


def test_a_working_board_is_looked_up_once() -> None:
    nvml = FakeNvml()
    meter = open_nvml(load=lambda: nvml, clock_ns=Clock(), environ={})
    meter.read()
    meter.read()
    assert nvml.lookups == 1


@pytest.mark.parametrize(
    ("value_type", "power_mw"),
    [
        (pynvml.NVML_VALUE_TYPE_DOUBLE, 60_000.0),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 60_000),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, 60_000),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 60_000),
        (pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG, 60_000),
        (pynvml.NVML_VALUE_TYPE_SIGNED_INT, 60_000),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT, 60_000),
    ],
)
def test_the_instant_power_is_read_by_the_type_that_the_driver_says(value_type: int, power_mw: float) -> None:
    clock = Clock()
    meter = over(power_board(power_mw, value_type), clock)
    clock.advance_s(0.1)
    assert meter.read().energy == Energy(6_000_000)


def test_a_value_of_an_unknown_type_is_an_error_and_not_a_number() -> None:
    with pytest.raises(MeterError, match="has the unknown value type 7"):
        over(power_board(90_000, value_type=7), Clock())


@pytest.mark.parametrize(
    ("value_type", "power_mw"),
    [(pynvml.NVML_VALUE_TYPE_SIGNED_INT, -1), (pynvml.NVML_VALUE_TYPE_DOUBLE, float("nan"))],
)
def test_a_power_that_cannot_be_is_an_error(value_type: int, power_mw: float) -> None:
    with pytest.raises(MeterError, match=r"is said to be (-1|nan) mW"):
        over(power_board(power_mw, value_type), Clock())


def test_power_is_integrated_by_trapezoids() -> None:
    clock, board = Clock(), power_board(100_000)
    meter = over(board, clock)
    board.instant_power = (MILLIWATTS, 300_000)
    clock.advance_s(0.1)
    assert meter.read().energy == Energy.from_joules(20)
    clock.advance_s(0.1)
    assert meter.read().energy == Energy.from_joules(50)


def test_fractions_of_a_microjoule_are_carried_from_reading_to_reading() -> None:
    clock = Clock()
    meter = over(power_board(1), clock)
    energies_uj = []
    for _ in range(5):
        clock.now_ns += 400_000
        energies_uj.append(meter.read().energy.uj)
    assert energies_uj == [0, 0, 1, 1, 2]


def test_a_failed_reading_leaves_the_integral_where_it_was() -> None:
    clock, board = Clock(), power_board(100_000)
    meter = over(board, clock)
    clock.advance_s(0.1)
    meter.read()
    board.fault = pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
    clock.advance_s(0.02)
    with pytest.raises(MeterError, match="it is asked again at the next reading"):
        meter.read()
    board.fault = None
    clock.advance_s(0.02)
    assert meter.read().energy == Energy.from_joules(14)


@pytest.mark.parametrize(
    ("instant_power", "longest_s"), [((MILLIWATTS, 100_000), 0.25), (None, 1.0)], ids=["instant", "average"]
)
def test_after_a_pause_that_nobody_sampled_the_count_starts_again_instead_of_making_energy_up(
    instant_power: tuple[int, float] | None, longest_s: float
) -> None:
    clock = Clock()
    meter = over(
        FakeBoard(energy_mj=None, instant_power=instant_power, average_power_mw=100_000),
        clock,
    )
    clock.advance_s(longest_s)
    assert meter.read().energy == Energy.from_joules(100 * longest_s)
    clock.advance_s(longest_s + 1e-9)
    assert meter.read().energy == Energy(0)
    clock.advance_s(0.2)
    assert meter.read().energy == Energy.from_joules(20)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 250 * 10**6), st.integers(0, 1_000_000)), min_size=1, max_size=20))
def test_integrated_power_is_the_exact_area_rounded_down(steps: list[tuple[int, int]]) -> None:
    clock, board = Clock(0), power_board(0)
    meter = over(board, clock)
    instants, powers_mw = [0], [0]
    for step_ns, power_mw in steps:
        clock.now_ns += step_ns
        board.instant_power = (MILLIWATTS, power_mw)
        energy = meter.read().energy
        instants.append(clock.now_ns)
        powers_mw.append(power_mw)
    area = sum(
        (a_mw + b_mw) * (b_ns - a_ns)
        for (a_ns, b_ns), (a_mw, b_mw) in zip(pairwise(instants), pairwise(powers_mw), strict=True)
    )
    assert energy.uj == area // 2 // 10**6
