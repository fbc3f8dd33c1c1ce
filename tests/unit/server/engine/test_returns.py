"""A device rests until the callers whom it has answered are back, where they come back at once."""

from __future__ import annotations

import pytest

from tests.fixtures.queued import NOBODY, request
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.pace import MOST_REST_NS
from wattserve_server.engine.policy import BatchCost, BatchLimits

START_TOKENS = 2_000
LENGTH = 500


class Device:
    """Of requests of one sequence, in virtual time. Two callers take turns on it, six times: who has been
    answered is back after back_ns, and finds it busy with the other. At last one waits, and nothing runs."""

    def __init__(self, token_ns: int = 1_000, back_ns: int = 1) -> None:
        self.now_ns = 1
        self.start_ns = START_TOKENS * token_ns
        self._batch_ns = self.start_ns + LENGTH * token_ns
        self.queue = Batcher(BatchLimits(4, 100_000), 1000, lambda request, count: None)
        self.queue.set_cost("fp32", BatchCost(START_TOKENS, packs=True))
        self.put()
        for _ in range(6):
            self.run_one(back_ns)

    def put(self, count: int = 1, variant: str = "fp32") -> None:
        for _ in range(count):
            self.queue.put(request([LENGTH], variant, at_ns=self.now_ns), self.now_ns)

    def take(self) -> int:
        """How many sequences begin to run; 0: the device rests."""
        batch = self.queue.take(self.now_ns)
        if not isinstance(batch, list):
            return 0
        self.queue.began(batch, self.now_ns)
        return len(batch)

    def run_one(self, back_ns: int) -> None:
        begun_ns = self.now_ns
        assert self.take() == 1
        self.now_ns = begun_ns + back_ns
        self.put()
        self.now_ns = begun_ns + self._batch_ns
        self.queue.ended(self.now_ns)


def test_who_has_been_answered_comes_back_into_the_next_batch() -> None:
    device = Device()
    assert device.take() == 0
    device.now_ns += device.start_ns // 2
    device.put()
    assert device.take() == 2  # at once: nobody else is away


def test_a_rest_takes_no_longer_than_a_start() -> None:
    device = Device()
    assert device.queue.take(device.now_ns) == device.now_ns + device.start_ns
    device.now_ns += device.start_ns
    assert device.take() == 1


def test_nor_longer_than_it_takes_to_come_back_at_once() -> None:
    device = Device(token_ns=100_000)
    assert device.queue.take(device.now_ns) == device.now_ns + MOST_REST_NS


def test_there_is_none_where_callers_do_not_come_back_in_time() -> None:
    device = Device(back_ns=2_100_000)
    assert device.take() == 1


def test_nor_once_they_no_longer_do() -> None:
    device = Device()
    device.now_ns += device.start_ns
    device.run_one(back_ns=2_100_000)
    device.now_ns += device.start_ns
    device.run_one(back_ns=2_100_000)
    assert device.take() == 1


def test_a_full_batch_waits_for_nobody() -> None:
    device = Device()
    device.now_ns += device.start_ns
    assert device.take() == 1
    device.put(4)
    device.now_ns += device.start_ns
    device.queue.ended(device.now_ns)
    assert device.take() == 4


def test_another_variants_batch_waits_for_nobody() -> None:
    device = Device()
    device.now_ns += device.start_ns
    assert device.take() == 1
    device.put(variant="bf16")
    device.now_ns += device.start_ns
    device.queue.ended(device.now_ns)
    assert device.take() == 1


@pytest.mark.parametrize("who", ["chore", "lane"])
def test_a_chore_and_another_lane_are_not_kept_waiting(who: str) -> None:
    device = Device()
    if who == "chore":
        device.queue.add_chore(lambda: None)
    else:
        Batcher(BatchLimits(4, 100_000), 1000, lambda request, count: None, beside=device.queue)
        device.queue.lane = NOBODY
    assert device.take() == 1
