"""loadgen against a server whose law is known, over a socket and in real time: what holds on any machine.

The server is never early, and keeps no state that a late timer could move. How late client, wire and server
are, `tests.bench.known_answers` measures; what loadgen makes of it is tried in virtual time.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.fixtures.fake_server.child import ChildServer
from tests.fixtures.fake_server.law import Law
from tests.fixtures.law_runs import Run, arrivals_ns, drive
from wattserve_loadgen.plan.load import POISSON, Load, closed

LINE = Law(floor_seconds=0.03, mean_seconds=0.06)
SLOTS, SECONDS = 4, 0.5


@pytest.fixture(scope="module")
def in_the_open() -> Run:
    with ChildServer(LINE) as server:
        return drive(server.address, LINE, Load(POISSON, rate=200), SECONDS)


@pytest.fixture(scope="module")
def in_slots() -> Run:
    with ChildServer(LINE) as server:
        return drive(server.address, LINE, closed(SLOTS), SECONDS)


def test_the_stamps_of_client_and_server_are_in_the_order_of_events(in_the_open: Run, in_slots: Run) -> None:
    for run in (in_the_open, in_slots):
        stamps = [run.sent_ns, *map(run.server_ns, ("arrived_ns", "due_ns", "answered_ns")), run.done_ns]
        for before, after in pairwise(stamps):
            assert (before <= after).all()
    assert (in_the_open.scheduled_ns <= in_the_open.sent_ns).all()


def test_every_request_takes_at_least_what_the_law_says(in_the_open: Run, in_slots: Run) -> None:
    assert (in_the_open.done_ns - in_the_open.scheduled_ns >= in_the_open.ideal_ns).all()
    own_ns = in_slots.server_ns("due_ns") - in_slots.server_ns("arrived_ns")
    assert (in_slots.done_ns - in_slots.sent_ns >= own_ns).all()


def test_every_request_that_is_due_is_sent_and_answered(in_the_open: Run) -> None:
    due = arrivals_ns(in_the_open.plan, in_the_open.cell)
    assert len(in_the_open.loop.sent_ns) == len(due)
    in_window = np.count_nonzero(due >= in_the_open.cell.warmup_seconds * 1e9)
    assert in_the_open.result.sent == in_the_open.result.answered == in_window > 0


def test_no_slot_sends_before_its_answer_is_in(in_slots: Run) -> None:
    for sent in in_slots.sent_ns.tolist():
        in_flight = (in_slots.loop.sent_ns <= sent) & (in_slots.loop.done_ns > sent)
        assert np.count_nonzero(in_flight) <= SLOTS
