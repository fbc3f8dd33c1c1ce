"""One queue on which two lanes draw: who runs what, how long it takes, and what happens when one fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures.queued import request
from wattserve_server.energy.attribution import BY_TIME
from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Request
from wattserve_server.errors import OverloadedError

MS = 1_000_000


class Two:
    """A queue of two lanes, `a` and `b`, whose batches hold two sequences."""

    def __init__(self) -> None:
        self.gone: list[tuple[Request, int]] = []
        self.came: list[tuple[str, Receipt]] = []
        made = BatchLimits(2, 1000), 4, lambda *request: self.gone.append(request)
        self.a = Batcher(*made)
        self.b = Batcher(*made, beside=self.a)
        for name, batcher in (("a", self.a), ("b", self.b)):
            run_log = SimpleNamespace(came=lambda receipt, name=name: self.came.append((name, receipt)))
            lane: Any = SimpleNamespace(device=name, run_log=run_log)
            batcher.lane = lane

    def ask(self, *lengths: int, **asked: Any) -> Request:
        """As the engine asks: whoever is free may run it."""
        made = request(lengths, **asked)
        made.is_bound = False
        self.a.put(made)
        return made


@pytest.fixture
def two() -> Two:
    return Two()


def run(batcher: Batcher) -> list[Request]:
    """Of whom the lane takes sequences now."""
    return [sequence.request for sequence in batcher.next_work()]


def test_each_lane_takes_what_waits_and_the_receipt_names_it(two: Two) -> None:
    first, second = two.ask(3, 3), two.ask(4, 4)
    assert run(two.b) == [first, first]
    assert run(two.a) == [second, second]
    assert (first.receipt.device, second.receipt.device) == ("b", "a")
    assert (first.lane, second.lane) == (two.b.lane, two.a.lane)


def test_a_request_stays_with_the_lane_that_began_it(two: Two) -> None:
    long, short = two.ask(3, 3, 3), two.ask(4)
    assert run(two.a) == [long, long]
    assert run(two.b) == [short]
    assert len(two.b) == 1
    assert two.b.take(0) is None
    assert run(two.a) == [long]


def test_who_waits_for_several_lanes_is_in_flight_from_where_it_runs(two: Two) -> None:
    asked = two.ask(3)
    asked.receipt.idle_policy = BY_TIME
    assert not two.came
    run(two.b)
    assert two.came == [("b", asked.receipt)]


def test_there_is_room_for_as_many_as_both_may_have(two: Two) -> None:
    two.ask(3, 3, 3, 3)
    two.ask(3, 3, 3, 3)
    with pytest.raises(OverloadedError, match="8 of 8 sequences wait"):
        two.ask(3)


def test_a_queue_is_done_when_the_lanes_that_are_free_first_have_shared_it(two: Two) -> None:
    """The pace is learned from a batch of ten tokens that took ten milliseconds."""
    two.ask(5, 5)
    batch = two.a.take(0)
    assert isinstance(batch, list)
    two.a.began(batch, 0)
    two.a.ended(10 * MS)
    for batcher, lengths in ((two.a, (10, 10)), (two.b, (5, 5))):
        two.ask(*lengths)
        batch = batcher.take(0)
        assert isinstance(batch, list)
        batcher.began(batch, 0)  # 20 ms and 10 ms
    assert two.a.wait_ns(0) == two.b.wait_ns(0) == 10 * MS
    two.ask(30)
    assert two.a.wait_ns(0) == 30 * MS  # (20 + 10 + 30) / 2
    assert two.a.wait_ns(20 * MS) == 15 * MS


def test_a_lane_that_fails_takes_along_what_it_had_begun_and_no_more(two: Two) -> None:
    begun, waiting = two.ask(3, 3, 3), two.ask(4)
    run(two.a)
    assert two.a.give_up() == {begun: 1}
    assert two.a.next_work() is None
    assert run(two.b) == [waiting]
    two.ask(5)  # by the batcher of the lane that failed, as any
    assert len(run(two.b)) == 1


def test_the_last_lane_does_not_leave_alone(two: Two) -> None:
    assert two.a.give_up() == {}
    assert two.b.give_up() is None


def test_a_deadline_is_kept_by_whichever_lane_looks(two: Two) -> None:
    late = two.ask(3, deadline_ns=1)
    assert two.b.take(2) is None
    assert two.gone == [(late, 1)]


def test_chores_are_those_of_one_lane(two: Two) -> None:
    done = list[str]()
    two.b.add_chore(lambda: done.append("b"))
    assert two.a.take(0) is None
    two.b.next_work()()
    assert done == ["b"]
