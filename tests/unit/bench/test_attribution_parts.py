"""A board and its host in the attribution's bench: one set of batches, two devices, and their sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.bench.attribution.drive import Outcome, drive
from tests.bench.attribution.hard_worlds import hard_worlds
from tests.bench.attribution.parts import added, host_of, sum_of
from tests.bench.attribution.realise import Realisation, realise
from tests.bench.attribution.scenarios import DEVICE
from tests.bench.attribution.world import Poisson, Workload, World

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
