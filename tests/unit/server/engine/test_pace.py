"""What a queue will take, as the batches before tell, and who is refused for it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tests.fixtures.queued import request
from wattserve_server.engine.batcher import HEADROOM, Batcher
from wattserve_server.engine.pace import FRESH_NS
from wattserve_server.engine.policy import (
    FIRST_PRIORITY,
    LAST_PRIORITY,
    NORMAL_PRIORITY,
    BatchCost,
    BatchLimits,
)
from wattserve_server.errors import HopelessError, OverloadedError

TOKEN_NS = 1_000_000
LIMITS = BatchLimits(max_sequences=4, max_tokens=400)
LENGTH = 100
BATCH_NS = (4 * LENGTH + 100) * TOKEN_NS
ALONE_NS = (LENGTH + 100) * TOKEN_NS


class Device:
    """Runs batches at an even pace, by a clock of its own."""

    def __init__(self, max_queue_ns: float = float("inf"), max_queue: int = 1000) -> None:
        self.now_ns = 0
        self.queue = Batcher(LIMITS, max_queue, lambda request, count: None, max_queue_ns)
        self.queue.set_cost("fp32", BatchCost(overhead_tokens=100.0, packs=True))
        for _ in range(3):
            self.put(4)
            self.run()

    def put(self, count: int, left_ns: float | None = None, priority: int = NORMAL_PRIORITY) -> None:
        deadline_ns = None if left_ns is None else self.now_ns + round(left_ns)
        made = request([LENGTH] * count, at_ns=self.now_ns, deadline_ns=deadline_ns, priority=priority)
        self.queue.put(made, self.now_ns)

    def begin(self) -> int:
        batch = self.queue.take(self.now_ns)
        assert isinstance(batch, list)
        self.queue.began(batch, self.now_ns)
        return (sum(sequence.length for sequence in batch) + 100) * TOKEN_NS

    def run(self) -> None:
        self.now_ns += self.begin()
        self.queue.ended(self.now_ns)

    def refusal(
        self, count: int, left_ns: float | None = None, priority: int = NORMAL_PRIORITY
    ) -> OverloadedError:
        with pytest.raises(OverloadedError) as caught:
            self.put(count, left_ns, priority)
        return caught.value


def test_what_waits_and_what_runs_is_foreseen() -> None:
    device = Device()
    assert device.queue.wait_ns(device.now_ns) == 0
    for _ in range(10):
        device.put(4)
    assert device.queue.wait_ns(device.now_ns) == pytest.approx(10 * BATCH_NS)
    device.begin()
    device.now_ns += BATCH_NS // 2
    assert device.queue.wait_ns(device.now_ns) == pytest.approx(9.5 * BATCH_NS)


def test_a_request_whose_deadline_cannot_be_met_is_refused_and_one_that_can_is_not() -> None:
    device = Device()
    for _ in range(10):
        device.put(4)
    done_ns = 11 * BATCH_NS  # others will come, and run beside it
    error = device.refusal(1, 0.99 * HEADROOM * done_ns)
    assert error.limit == "deadline"
    device.put(1, 1.01 * HEADROOM * done_ns)


def test_until_a_batch_has_ended_a_wait_is_foreseen_from_the_warm_up() -> None:
    queue = Batcher(LIMITS, 1024, lambda *gone: None)
    cost = BatchCost(overhead_tokens=100.0, packs=True)
    queue.set_cost("fp32", cost, 4 * LENGTH, 10 * BATCH_NS)
    queue.set_cost("int8", cost)
    for variant in ("fp32", "int8"):
        for _ in range(2):
            queue.put(request([LENGTH] * 4, variant))
    assert queue.wait_ns(0) == pytest.approx(20 * BATCH_NS)
    with pytest.raises(OverloadedError, match="the deadline cannot be met"):
        queue.put(request([LENGTH], at_ns=1, deadline_ns=20 * BATCH_NS), 1)


def test_where_only_the_batch_that_runs_is_known_its_end_is_told() -> None:
    device = Device()
    device.put(4)
    device.begin()
    device.queue.put(request([LENGTH], "never seen", at_ns=device.now_ns, caller="other"), device.now_ns)
    error = device.refusal(1, ALONE_NS * HEADROOM + 1)
    assert error.limit == "deadline"
    assert error.retry_after_s is not None
    assert BATCH_NS / 1e9 <= error.retry_after_s < 2 * BATCH_NS / 1e9


@pytest.mark.parametrize("limit", ["deadline", "time", "sequences"])
def test_who_comes_back_when_he_was_told_is_taken_and_who_comes_at_half_of_it_is_not(limit: str) -> None:
    limits = {"time": {"max_queue_ns": 6 * BATCH_NS}, "sequences": {"max_queue": 40}}
    device = Device(**limits.get(limit, {}))
    left_ns = 8.0 * BATCH_NS if limit == "deadline" else None
    for _ in range(7 if limit == "time" else 10):
        device.put(4)
    error = device.refusal(16, left_ns)
    assert error.limit == limit
    assert error.retry_after_s is not None
    begun_ns, retry_ns = device.now_ns, error.retry_after_s * 1e9
    while device.now_ns + BATCH_NS <= begun_ns + retry_ns / 2:
        device.run()
    device.refusal(16, left_ns)
    while device.now_ns < begun_ns + retry_ns:
        device.run()
    device.put(16, left_ns)


def test_the_queue_is_bounded_in_time_for_requests_without_a_deadline_too() -> None:
    device = Device(max_queue_ns=3 * BATCH_NS)
    for _ in range(3):
        device.put(4)
    device.put(1)
    assert device.refusal(1).limit == "time"


def test_where_nothing_waits_nobodys_pace_is_believed() -> None:
    device = Device(max_queue_ns=1)
    device.put(4)
    device.begin()
    device.put(1, left_ns=0.3 * ALONE_NS)
    assert device.refusal(1).limit == "time"


def test_a_deadline_that_is_hopeless_even_alone_is_refused_while_the_pace_is_fresh() -> None:
    device = Device()
    with pytest.raises(HopelessError, match=r"takes 0.2 s by itself, and has 0.04 s; give it more time"):
        device.put(1, left_ns=0.2 * ALONE_NS)
    device.now_ns += FRESH_NS
    device.put(1, left_ns=0.2 * ALONE_NS)
    device.run()  # and is too late, or shows that the pace has become another
    with pytest.raises(HopelessError):
        device.put(1, left_ns=0.2 * ALONE_NS)


def test_who_is_asked_before_anything_is_done_gets_the_answer_of_the_queue() -> None:
    device = Device(max_queue_ns=1)
    device.queue.check_room("fp32", NORMAL_PRIORITY, None)
    device.put(4)
    with pytest.raises(OverloadedError, match="no more than 1e-09 s may wait"):
        device.queue.check_room("fp32", NORMAL_PRIORITY, None)


def test_only_what_goes_before_a_request_counts() -> None:
    device = Device(max_queue_ns=2 * BATCH_NS)
    for _ in range(3):
        device.put(4, priority=LAST_PRIORITY)
    device.put(1, priority=FIRST_PRIORITY)
    assert device.refusal(1, priority=LAST_PRIORITY).limit == "time"


def test_who_leaves_makes_room() -> None:
    device = Device(max_queue_ns=2 * BATCH_NS)
    waiting = [request([LENGTH] * 4, at_ns=device.now_ns) for _ in range(3)]
    for each in waiting:
        device.queue.put(each, device.now_ns)
    device.refusal(1)
    device.queue.withdraw(waiting[0])
    device.put(1)


def test_a_pace_that_changes_is_learned_again() -> None:
    device = Device()
    for _ in range(40):
        device.put(4)
        device.begin()
        device.now_ns += 3 * BATCH_NS
        device.queue.ended(device.now_ns)
    device.put(4)
    assert device.queue.wait_ns(device.now_ns) == pytest.approx(3 * BATCH_NS, rel=0.05)


def test_who_cannot_be_in_time_any_more_is_not_computed() -> None:
    gone: list[int] = []
    device = Device()
    device.queue._on_expired = lambda request, count: gone.append(count)
    late = request([LENGTH] * 2, at_ns=device.now_ns, deadline_ns=device.now_ns + BATCH_NS // 2)
    device.queue.put(late, device.now_ns)
    device.put(2)
    assert device.begin() == (2 * LENGTH + 100) * TOKEN_NS
    assert (gone, len(device.queue)) == ([2], 0)


def test_of_a_request_that_cannot_end_in_time_any_more_nothing_is_begun() -> None:
    gone: list[int] = []
    device = Device()
    device.queue._on_expired = lambda request, count: gone.append(count)
    until_ns = device.now_ns + 3 * BATCH_NS // 2
    late = request([LENGTH] * 8, at_ns=device.now_ns, deadline_ns=until_ns, caller="late")
    device.queue.put(late, device.now_ns)  # it would take two batches
    device.put(2)
    assert device.begin() == (2 * LENGTH + 100) * TOKEN_NS
    assert (gone, len(device.queue)) == ([8], 0)


def test_where_nobody_would_be_in_time_the_batch_runs_all_the_same() -> None:
    device = Device()
    device.put(4, left_ns=BATCH_NS // 2)
    assert device.begin() == BATCH_NS


@dataclass
class Offered:
    """What became of requests of one sequence that came at an even pace, each with the same deadline."""

    in_time: int = 0
    late: int = 0  # computed for callers who had left
    refused: int = 0
    ran: int = 0


def offered(times: float, noise: float, deadline_ns: int = 5 * BATCH_NS, batches: int = 400) -> Offered:
    """times: of what the device can do in full batches. noise: how far batches are from the law, as a part of
    it: their slowest and fastest."""
    device, told, draws = Device(), Offered(), random.Random(1)
    device.queue._on_expired = lambda request, count: None
    begun_ns, end_ns, sent = device.now_ns, device.now_ns + batches * BATCH_NS, 0
    gap_ns = BATCH_NS / LIMITS.max_sequences / times
    while device.now_ns < end_ns:
        while begun_ns + sent * gap_ns <= device.now_ns:  # they came while the last batch ran
            came_ns = begun_ns + round(sent * gap_ns)
            made = request([LENGTH], at_ns=came_ns, deadline_ns=came_ns + deadline_ns)
            sent += 1
            try:
                device.queue.put(made, came_ns)
            except OverloadedError:
                told.refused += 1
        batch = device.queue.take(device.now_ns)
        if not isinstance(batch, list):
            device.now_ns = begun_ns + round(sent * gap_ns)
            continue
        device.queue.began(batch, device.now_ns)
        took_ns = (sum(each.length for each in batch) + 100) * TOKEN_NS
        device.now_ns += round(took_ns * (1 + noise * draws.uniform(-1, 1)))
        device.queue.ended(device.now_ns)
        on_time = [each for each in batch if (each.deadline_ns or 0) >= device.now_ns]
        told.ran += len(batch)
        told.in_time += len(on_time)
        told.late += len(batch) - len(on_time)
    return told


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("times", [4, 10])
def test_under_overload_what_can_be_done_in_time_is_done_and_hardly_anything_else(
    times: float, noise: float
) -> None:
    peak, found = offered(1, noise), offered(times, noise)
    assert found.in_time >= 0.9 * peak.in_time
    assert found.late <= 0.03 * found.ran
    assert found.refused >= 0.7 * (1 - 1 / times) * (found.refused + found.ran)


def test_who_may_only_wait_for_so_long_is_taken_and_may_run_for_longer() -> None:
    device = Device()
    made = request([LENGTH] * 2, at_ns=device.now_ns)
    made.waits_until_ns = device.now_ns + 1
    device.queue.put(made, device.now_ns)
    device.put(2)
    assert device.begin() == BATCH_NS


def test_a_process_that_was_stopped_tells_no_pace() -> None:
    device = Device()
    device.put(4)
    device.now_ns += device.begin() + 3_600_000_000_000  # in the middle of a batch
    device.queue.ended(device.now_ns)
    device.put(4)
    assert BATCH_NS <= device.queue.wait_ns(device.now_ns) < 5 * BATCH_NS
    for _ in range(10):
        device.run()
        device.put(4)
    assert device.queue.wait_ns(device.now_ns) == pytest.approx(BATCH_NS, rel=0.2)


def test_batches_that_all_take_a_thousand_times_as_long_are_soon_believed() -> None:
    device = Device()
    for _ in range(8):
        device.put(4)
        device.now_ns += 1000 * device.begin()
        device.queue.ended(device.now_ns)
    device.put(4)
    assert device.queue.wait_ns(device.now_ns) == pytest.approx(1000 * BATCH_NS, rel=0.2)
