"""How much other processes use a board, through the real binding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.fixtures.meter_fakes import Clock
from tests.fixtures.simulated_board import SimulatedBoards, simulated_boards
from wattserve_server.meters import nvml_board
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.nvml_board import Board, learn_own_pid, open_board

OWN = os.getpid()
OTHER, THIRD = OWN + 1, OWN + 2


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[SimulatedBoards]:
    with simulated_boards(tmp_path) as made:
        made.first.show_processes(OWN, OTHER)
        yield made


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    live_in(monkeypatch, nvml_board._PID_NAMESPACE.stat().st_ino)


def live_in(monkeypatch: pytest.MonkeyPatch, host: int) -> None:
    """host: the inode by which the host's namespace of process ids is known."""
    monkeypatch.setattr(nvml_board, "_PID_NAMESPACE_OF_THE_HOST", host)


def opened() -> Board:
    """A board that has been asked once."""
    board = open_board(environ={})
    assert board.others_at_work() is None
    return board


def test_what_others_used_is_summed_and_what_this_process_used_is_not(boards: SimulatedBoards) -> None:
    board = opened()
    boards.first.show_samples((OWN, 10, 60), (OTHER, 11, 25), (THIRD, 12, 5))
    assert board.others_at_work() == 0.3


def test_a_sample_is_told_once(boards: SimulatedBoards) -> None:
    board = opened()
    boards.first.show_samples((OTHER, 10, 25))
    assert [board.others_at_work(), board.others_at_work()] == [0.25, 0.0]
    boards.first.show_samples((OTHER, 10, 25), (THIRD, 11, 5))
    assert board.others_at_work() == 0.05


def test_samples_from_before_the_first_question_are_left_out(boards: SimulatedBoards) -> None:
    boards.first.show_samples((OTHER, 10, 25))
    assert opened().others_at_work() == 0.0


def test_more_than_the_whole_board_nobody_uses(boards: SimulatedBoards) -> None:
    board = opened()
    boards.first.show_samples((OTHER, 10, 80), (THIRD, 10, 70))
    assert board.others_at_work() == 1.0


def test_a_percentage_that_cannot_be_is_not_believed(boards: SimulatedBoards) -> None:
    board = opened()
    boards.first.show_samples((OTHER, 10, 4_000_000_000))
    assert board.others_at_work() is None


def test_while_this_process_is_not_told_from_the_others_nothing_is_known(boards: SimulatedBoards) -> None:
    board = opened()
    boards.first.show_samples((OTHER, 10, 25))
    boards.first.show_processes(OTHER)
    assert board.others_at_work() is None


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND],
)
def test_a_driver_that_does_not_tell_is_no_evidence_of_nobody(boards: SimulatedBoards, code: int) -> None:
    board = opened()
    boards.first.samples_return = code
    assert board.others_at_work() is None


def test_of_slices_nothing_is_known(boards: SimulatedBoards) -> None:
    boards.cut_into_slices()
    board = opened()
    assert board.others_at_work() is None


def test_in_a_container_somebody_is_evidence_and_nobody_is_not(
    boards: SimulatedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_in(monkeypatch, host=1)
    board = opened()
    assert board.others_at_work() is None
    boards.first.show_samples((OTHER, 10, 25))
    assert board.others_at_work() == 0.25


def test_a_container_that_is_named_by_the_hosts_id_sees_everybody(
    boards: SimulatedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_in(monkeypatch, host=1)
    pids = {OWN}
    boards.first.show_processes(OTHER)
    learn_own_pid(None, lambda: boards.first.show_processes(OTHER, THIRD), own_pids=pids)
    assert pids == {OWN, THIRD}
    board = open_board(environ={})
    board._own_pids = pids
    assert [board.others_at_work(), board.others_at_work()] == [None, 0.0]
    boards.first.show_samples((THIRD, 10, 90), (OTHER, 10, 7))
    assert board.others_at_work() == 0.07


@pytest.mark.parametrize(
    ("before", "after", "learned"),
    [
        ((), (OTHER,), {OTHER}),
        ((OTHER,), (OTHER,), {OTHER}),  # it was there already, alone
        ((OTHER,), (OTHER, THIRD), {THIRD}),
        ((), (OTHER, THIRD), set()),  # two came at once
        ((OTHER, THIRD), (OTHER, THIRD), set()),
        ((), (), set()),
        ((OTHER,), (OTHER, OWN), set()),  # named by the id that it knows
    ],
)
def test_this_process_is_the_one_that_came_to_the_board_by_its_own_work(
    boards: SimulatedBoards, before: tuple[int, ...], after: tuple[int, ...], learned: set[int]
) -> None:
    pids = {OWN}
    boards.first.show_processes(*before)
    learn_own_pid(None, lambda: boards.first.show_processes(*after), own_pids=pids)
    assert pids == {OWN} | learned


def test_without_a_driver_the_work_is_done_and_nothing_is_learned(boards: SimulatedBoards) -> None:
    boards.control.init_return = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    pids, done = {OWN}, []
    learn_own_pid(None, lambda: done.append(1), own_pids=pids)
    assert (pids, done) == ({OWN}, [1])


def test_meters_of_a_board_pass_it_on(boards: SimulatedBoards) -> None:
    meter = open_nvml(clock_ns=Clock(7), environ={})
    meter.others_at_work()
    boards.first.show_samples((OTHER, 10, 25))
    assert meter.others_at_work() == 0.25
    meter.close()
    assert meter.others_at_work() is None
