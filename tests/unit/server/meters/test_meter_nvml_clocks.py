"""How fast a board works, as the driver tells."""

from __future__ import annotations

import pynvml
import pytest

from tests.fixtures.meter_fakes import FakeBoard, FakeNvml
from wattserve_server.meters.nvml_board import open_board


def told(board: FakeBoard) -> int | None:
    return open_board(load=lambda: FakeNvml([board]), environ={}).clock_mhz()


def test_the_clock_is_that_of_the_multiprocessors() -> None:
    power_cap = 4
    assert told(FakeBoard(clock_mhz=1410, throttle_reasons=power_cap)) == 1410


def test_of_a_board_that_idles_it_says_nothing() -> None:
    assert told(FakeBoard(clock_mhz=210, throttle_reasons=pynvml.nvmlClocksThrottleReasonGpuIdle)) is None


@pytest.mark.parametrize("board", [FakeBoard(clock_mhz=None), FakeBoard(throttle_reasons=None)])
def test_a_board_that_does_not_tell_is_no_error(board: FakeBoard) -> None:
    assert told(board) is None


def test_a_closed_board_tells_nothing() -> None:
    board = open_board(load=lambda: FakeNvml([FakeBoard()]), environ={})
    board.close()
    assert board.clock_mhz() is None
