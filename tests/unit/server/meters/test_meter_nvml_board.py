"""The NVML meters through the real binding, down to a C library with NVML's ABI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pynvml
import pytest

from tests.fixtures.meter_fakes import H200_UUID, SECOND_UUID, SLICE_UUID, Clock
from tests.fixtures.simulated_board import SimulatedBoards, shown_at, simulated_boards
from wattserve_server.energy.reading import Energy
from wattserve_server.errors import MeterError
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.port import Meter

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
OWN = os.getpid()


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[SimulatedBoards]:
    """They say what the test writes."""
    with simulated_boards(tmp_path) as made:
        yield made


def opened(
    device: str | None = None,
    clock: Callable[[], int] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Meter:
    return open_nvml(device, clock_ns=clock or Clock(7), environ=environ or {})


# What is there to read


def test_a_machine_without_the_drivers_library_says_what_is_missing(
    boards: SimulatedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_file(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(pynvml, "CDLL", no_such_file)
    with pytest.raises(MeterError) as caught:
        opened()
    assert str(caught.value) == (
        "NVML: it cannot be started: the driver's library libnvidia-ml.so.1 is not on this machine: "
        "install the NVIDIA driver, or give the container its GPUs (docker run --gpus all)"
    )


def test_a_driver_that_is_not_loaded_is_an_error_that_says_so(boards: SimulatedBoards) -> None:
    boards.control.init_return = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(MeterError, match="the NVIDIA driver is not loaded: load it"):
        opened()


def test_the_counter_of_the_board_is_read(boards: SimulatedBoards) -> None:
    boards.first.counter_mj = 123_456_789
    meter = opened()
    assert meter.source.method == "apportioned counter"
    assert meter.read().energy == Energy(123_456_789_000)
    assert [read.counter_mj for read in boards.reads()] == [123_456_789] * 2  # one when it was opened


def test_without_a_counter_the_instant_power_is_integrated(boards: SimulatedBoards) -> None:
    boards.first.counter_return = NOT_SUPPORTED
    meter = opened()
    assert meter.source.method == "apportioned integrated power"
    assert meter.source.note.startswith("instant power, integrated between readings")


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND], ids=["board", "driver"]
)
def test_without_both_the_one_second_average_is_integrated_and_called_an_average(
    boards: SimulatedBoards, code: int
) -> None:
    board, clock = boards.first, Clock()
    board.counter_return, board.instant_return, board.average_mw = NOT_SUPPORTED, code, 50_000
    meter = opened(clock=clock)
    assert meter.source.note.startswith("1 s trailing average power, integrated between readings")
    assert meter.source.averages_s == 1.0
    clock.advance_s(0.5)
    assert meter.read().energy == Energy.from_joules(25)


def test_a_field_that_may_not_be_read_is_an_error_and_no_reason_to_take_the_average(
    boards: SimulatedBoards,
) -> None:
    boards.first.counter_return = NOT_SUPPORTED
    boards.first.instant_return = pynvml.NVML_ERROR_NO_PERMISSION
    with pytest.raises(MeterError, match=r"the instant power of .* this user may not ask for it"):
        opened()


@pytest.mark.parametrize("value_type", range(7))
def test_the_instant_power_is_read_by_the_type_that_the_driver_says(
    boards: SimulatedBoards, value_type: int
) -> None:
    board, clock = boards.first, Clock()
    board.counter_return, board.instant_mw, board.instant_type = NOT_SUPPORTED, 60_000, value_type
    meter = opened(clock=clock)
    clock.advance_s(0.1)
    assert meter.read().energy == Energy.from_joules(6)


@pytest.mark.parametrize(
    ("value_type", "power_mw", "words"),
    [
        (7, 60_000, "has the unknown value type 7"),
        (pynvml.NVML_VALUE_TYPE_DOUBLE, float("nan"), "is said to be nan mW"),
        (pynvml.NVML_VALUE_TYPE_SIGNED_INT, -1, "is said to be -1 mW"),
    ],
)
def test_a_power_that_cannot_be_is_an_error(
    boards: SimulatedBoards, value_type: int, power_mw: float, words: str
) -> None:
    board = boards.first
    board.counter_return, board.instant_mw, board.instant_type = NOT_SUPPORTED, power_mw, value_type
    with pytest.raises(MeterError, match=words):
        opened()


# Faults


def test_a_lost_board_is_an_error_until_it_is_back_and_looked_up_again(boards: SimulatedBoards) -> None:
    meter = opened()
    boards.first.fall_off_the_bus()
    for _ in range(2):
        with pytest.raises(MeterError, match="the GPU has fallen off the bus"):
            meter.read()
    boards.first.counter_mj = 42
    boards.first.come_back()
    assert meter.read().energy == Energy(42_000)


def test_a_board_that_was_away_between_two_readings_costs_one_reading(boards: SimulatedBoards) -> None:
    meter = opened()
    boards.first.fall_off_the_bus()
    boards.first.come_back()
    with pytest.raises(MeterError, match="the GPU has fallen off the bus"):
        meter.read()
    boards.first.counter_mj = 42
    assert meter.read().energy == Energy(42_000)


# Two boards, slices


@pytest.mark.parametrize(
    ("device", "environ", "uuid"),
    [
        (SECOND_UUID, {}, SECOND_UUID),
        (H200_UUID.removeprefix("GPU-"), {}, H200_UUID),
        ("86:00.0", {}, SECOND_UUID),
        ("1", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, SECOND_UUID),
    ],
)
def test_of_two_boards_the_named_one_is_metered(
    boards: SimulatedBoards, device: str, environ: dict[str, str], uuid: str
) -> None:
    boards.control.board_count = 2
    boards.first.counter_mj, boards.second.counter_mj = 1, 2
    meter = opened(device, environ=environ)
    assert meter.source.name == f"nvml:{uuid}"
    assert meter.read().energy == Energy(1_000 if uuid == H200_UUID else 2_000)


def test_of_two_boards_none_is_metered_by_an_index_that_cuda_may_count_otherwise(
    boards: SimulatedBoards,
) -> None:
    boards.control.board_count = 2
    with pytest.raises(MeterError, match="there are 2 GPUs here, and CUDA may number them otherwise"):
        opened("0")


def test_a_device_that_is_not_there_is_refused(boards: SimulatedBoards) -> None:
    with pytest.raises(MeterError, match=r"GPU ffffffff-.* cannot be opened: there is no such GPU here"):
        opened("ffffffff-ffff-ffff-ffff-ffffffffffff")


@pytest.mark.parametrize("device", [H200_UUID, SLICE_UUID, SLICE_UUID.removeprefix("MIG-")])
def test_a_board_in_slices_is_metered_whole_where_that_is_allowed(
    boards: SimulatedBoards, device: str
) -> None:
    boards.cut_into_slices()
    boards.first.counter_mj = 5
    with pytest.raises(MeterError, match="is cut into MIG slices"):
        opened(device)
    meter = open_nvml(device, allow_mig=True, environ={})
    assert meter.source.name == f"nvml:{H200_UUID}"
    assert meter.source.boundary == (
        "GPU board (Simulated board) with all of its MIG slices, as metered by its driver; "
        "board only: the host is not metered"
    )
    assert meter.read().energy == Energy(5_000)


def test_a_modules_power_is_asked_for_by_its_own_scope(boards: SimulatedBoards) -> None:
    board, clock = boards.first, Clock()
    board.name, board.counter_return, board.instant_mw = b"NVIDIA GH200 480GB", NOT_SUPPORTED, 60_000
    with pytest.raises(MeterError, match="the instant power of"):
        opened()
    board.instant_scope = 1
    meter = opened(clock=clock)
    clock.advance_s(0.1)
    assert meter.read().energy == Energy.from_joules(6)


def test_the_driver_tells_whether_its_power_is_a_mean(boards: SimulatedBoards) -> None:
    board = boards.first
    board.counter_return = board.instant_return = NOT_SUPPORTED
    assert opened().source.note.startswith("1 s trailing average power")
    board.capability_major = 8
    assert opened().source.note.startswith("instant power")


def test_the_driver_tells_the_highest_power_limit(boards: SimulatedBoards) -> None:
    assert opened().most_watts is None
    boards.first.most_mw = 700_000
    assert opened().most_watts == 700.0


# Other processes on the board


@pytest.mark.parametrize(
    ("pids", "neighbours"),
    [
        ((OWN,), 0),
        ((OWN, OWN + 1), 1),
        ((OWN + 1, OWN, OWN + 2), 2),
        ((OWN, OWN), 0),  # once for each slice that it uses
        ((), None),  # not even this process is shown: the list is blind
        ((OWN + 1,), 0),  # this process by the host's id, for all it knows
        ((OWN + 1, OWN + 2), 1),
    ],
)
def test_one_of_the_processes_on_the_board_is_this_one_and_the_others_are_neighbours(
    boards: SimulatedBoards, pids: tuple[int, ...], neighbours: int | None
) -> None:
    meter = opened()
    boards.first.show_processes(*pids)
    assert meter.neighbours() == neighbours


def test_a_power_meter_knows_its_neighbours_too(boards: SimulatedBoards) -> None:
    boards.first.counter_return = NOT_SUPPORTED
    boards.first.show_processes(OWN, OWN + 1)
    assert opened().neighbours() == 1


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_UNKNOWN,
    ],
)
def test_where_the_driver_does_not_show_processes_neighbours_are_not_known_and_reading_goes_on(
    boards: SimulatedBoards, code: int
) -> None:
    meter = opened()
    boards.first.processes_return, boards.first.counter_mj = code, 9
    assert meter.neighbours() is None
    assert meter.read().energy == Energy(9_000)


# The board itself: what the tests of faults and of conservation stand on


def test_a_board_publishes_in_steps_and_every_read_gives_what_was_published_last(tmp_path: Path) -> None:
    with simulated_boards(tmp_path, held=False) as boards:
        boards.control.period_ns, boards.control.lag_ns = 10_000_000, 2_000_000
        meter = open_nvml(environ={})
        while boards.first.publications < 20:
            meter.read()
        meter.close()
        published, reads = boards.published(), boards.reads()
    assert len(published) >= 20
    assert all(later.counter_mj >= earlier.counter_mj for earlier, later in pairwise(published))
    assert published[-1].counter_mj > 0
    after_the_first = [read for read in reads if read.at_ns > published[0].at_ns]
    assert [read.counter_mj for read in after_the_first] == [
        shown_at(published, read.at_ns) for read in after_the_first
    ]


def test_a_step_back_and_a_freeze_take_effect_at_publications(tmp_path: Path) -> None:
    def published(more: int) -> int:
        seen = board.publications
        while board.publications < seen + more:
            os.sched_yield()
        counter_mj: int = board.counter_mj
        return counter_mj

    with simulated_boards(tmp_path, held=False) as boards:
        boards.control.period_ns, boards.control.lag_ns = 10_000_000, 2_000_000
        board = boards.first
        board.offset_mj = 1_000_000
        meter = open_nvml(environ={})
        assert published(2) >= 1_000_000
        board.offset_mj = 0
        assert published(2) < 1_000_000
        board.frozen = 1
        frozen_mj = [meter.read().energy.uj for _ in range(3)]
        assert len(set(frozen_mj[1:])) == 1
        board.frozen = 0
        assert published(2) * 1000 > frozen_mj[-1]
        meter.close()
