"""Boards and their host in the attribution's bench: one set of batches, several devices, and their sum."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.bench.attribution.device import Batch
from tests.bench.attribution.drive import Outcome, drive
from tests.bench.attribution.hard_worlds import ANOTHER, HOST, hard_worlds
from tests.bench.attribution.parts import added, host_of, steps_of, sum_of, together, told_together
from tests.bench.attribution.realise import Realisation, realise, realise_several
from tests.bench.attribution.scenarios import DEVICE
from tests.bench.attribution.world import ClosedLoop, Lengths, Poisson, Workload, World

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def parts() -> tuple[Realisation, Realisation, Realisation]:
    """The board, the host, their sum."""
    board = realise("parts", DEVICE, Workload(Poisson(40), 3), 1)
    host = host_of(board, _host(), 1)
    return board, host, sum_of(board, host)


def _host() -> World:
    world = next(
        s.host for s in hard_worlds() if s.name == "board and host beside a stranger, counters added"
    )
    assert world is not None
    return world


def test_the_host_draws_its_part_while_the_boards_batches_run(
    parts: tuple[Realisation, Realisation, Realisation],
) -> None:
    board, host, _ = parts
    assert [(b.start_s, b.end_s) for b in host.batches] == [(b.start_s, b.end_s) for b in board.batches]
    watts = [batch.joules / (batch.end_s - batch.start_s) for batch in host.batches]
    assert np.mean(watts) == pytest.approx(25, rel=0.03)
    drawn = sum(batch.joules for batch in host.history.batches)
    assert host.trace.work(np.array([host.history.end_s]))[0] == pytest.approx(drawn)


def test_the_sum_is_what_both_draw_and_what_both_are_asked_for(
    parts: tuple[Realisation, Realisation, Realisation],
) -> None:
    board, host, whole = parts
    grid = np.linspace(0, board.history.end_s, 50)
    assert whole.trace.total(grid) == pytest.approx(board.trace.total(grid) + host.trace.total(grid))
    assert whole.requests.true_uj == pytest.approx(board.requests.true_uj + host.requests.true_uj)
    counted_j = np.ptp(whole.published.millijoules) / 1e3
    drawn_j = float(whole.trace.total(whole.published.as_of_s[-1:])[0])
    assert counted_j == pytest.approx(drawn_j, rel=0.01)
    assert np.all(np.diff(whole.published.millijoules) >= 0)


def test_the_figures_of_two_accountants_are_added_and_what_one_withholds_is_withheld(
    parts: tuple[Realisation, Realisation, Realisation],
) -> None:
    board, host, whole = parts
    one, other = drive(board), drive(host)
    one.got_uj[0], one.deviation_uj[1], other.deviation_uj[1] = np.nan, 3.0, 4.0
    both = added(whole, one, other)
    assert np.isnan(both.got_uj[0])
    assert np.array_equal(both.got_uj[1:], one.got_uj[1:] + other.got_uj[1:])
    assert both.deviation_uj[1] == 5.0
    assert both.measured_uj == one.measured_uj + other.measured_uj
    assert _counted(both) == pytest.approx(_counted(drive(whole)), rel=0.01)


def _counted(outcome: Outcome) -> int:
    return outcome.poll_uj[-1] - outcome.poll_uj[0]


def test_two_accountants_share_nothing(parts: tuple[Realisation, Realisation, Realisation]) -> None:
    board, host, _ = parts
    windows = {id(line) for case in (board, host) for window in case.windows for line in window.lines}
    assert len(windows) == len(board.requests.true_uj) + len(host.requests.true_uj)
    alone = drive(replace(board, poll_rng=np.random.default_rng(1)))
    drive(replace(host, poll_rng=np.random.default_rng(1)))
    again = drive(replace(board, poll_rng=np.random.default_rng(1)))
    assert np.array_equal(alone.got_uj, again.got_uj)


@pytest.fixture(scope="module")
def boards() -> tuple[Realisation, ...]:
    """Two that share a queue."""
    load = Workload(ClosedLoop(4), 1, Lengths(sigma=0.0), max_batch=4)
    return realise_several("boards", [DEVICE, ANOTHER], load, 1)


def test_two_boards_run_each_batch_of_a_queue_once_and_one_at_a_time(boards: tuple[Realisation, ...]) -> None:
    whole = together(boards)
    assert len(whole.batches) == sum(len(board.batches) for board in boards)
    assert len(whole.requests.true_uj) == sum(len(board.requests.true_uj) for board in boards)
    for board in boards:
        assert len(board.batches) > 50
        in_a_row = sorted(board.history.batches, key=lambda batch: batch.start_s)
        assert all(a.end_s < b.start_s for a, b in pairwise(in_a_row))
        assert {batch.variant for batch in in_a_row if batch.is_calibration} == {"fp32", "bf16", "int8"}
    run = sorted(whole.batches, key=lambda batch: batch.start_s)
    assert any(b.start_s < a.end_s for a, b in pairwise(run))
    grid = np.linspace(0, whole.history.end_s, 50)
    assert whole.trace.total(grid) == pytest.approx(sum(board.trace.total(grid) for board in boards))


def test_requests_of_two_boards_are_in_the_order_in_which_they_end(boards: tuple[Realisation, ...]) -> None:
    whole = together(boards)
    sizes = np.bincount(whole.requests.batch)
    told = np.bincount(whole.requests.batch, whole.requests.true_uj) / 1e6
    assert told == pytest.approx([batch.joules for batch in whole.batches])
    assert sizes.tolist() == [len(batch.lengths) for batch in whole.batches]


def test_a_host_of_two_boards_draws_for_both_and_bills_nobody_twice(boards: tuple[Realisation, ...]) -> None:
    whole = together(boards)
    host = host_of(whole, HOST, 1)
    assert {window.lane for window in host.windows} == {0, 1}
    drawn_j = sum(batch.joules for batch in host.history.batches)
    assert host.trace.work(np.array([host.history.end_s]))[0] == pytest.approx(drawn_j)
    outcome = drive(host)
    assert outcome.is_charged.all()
    assert not outcome.checks.violations
    assert outcome.got_uj.sum() == pytest.approx(host.requests.true_uj.sum(), rel=0.1)


def test_what_two_boards_accountants_say_is_told_of_the_requests_that_each_ran(
    boards: tuple[Realisation, ...],
) -> None:
    whole, each = together(boards), [drive(board) for board in boards]
    for board, outcome in zip(boards, each, strict=True):
        outcome.got_uj = board.requests.true_uj.copy()
    told = told_together(whole, boards, each)
    assert told.got_uj == pytest.approx(whole.requests.true_uj)
    assert told.measured_uj == sum(outcome.measured_uj for outcome in each)


def test_batches_that_overlap_draw_together_and_nothing_is_drawn_between_them() -> None:
    one, other, last = (
        Batch("fp32", (1,), start_s, False, False, 1.0, watts, 0.0, end_s)
        for start_s, end_s, watts in ((1.0, 3.0, 0.1), (2.0, 4.0, 0.2), (6.0, 7.0, 0.3))
    )
    steps = steps_of([one, other, last])
    assert [at_s for at_s, _ in steps] == [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0]
    assert [watts for _, watts in steps] == pytest.approx([0.0, 0.1, 0.3, 0.2, 0.0, 0.3, 0.0])
    assert steps[4][1] == 0.0
