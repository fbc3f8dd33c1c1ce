"""The queue of one device, in virtual time."""

from __future__ import annotations

import random

import pytest

from tests.fixtures.queued import request
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.policy import NORMAL_PRIORITY, BatchCost, BatchLimits
from wattserve_server.engine.queued import Request
from wattserve_server.errors import OverloadedError


def asked(
    *lengths: int,
    at_ns: int = 0,
    deadline_ns: int | None = None,
    variant: str = "fp32",
    priority: int = NORMAL_PRIORITY,
) -> Request:
    return request(lengths, variant, deadline_ns, at_ns, priority)


Gone = list[tuple[Request, int]]


def queue_of(*requests: Request, max_wait_ns: int = 0, gone: Gone | None = None) -> Batcher:
    expired = [] if gone is None else gone
    queue = Batcher(BatchLimits(4, 1000, max_wait_ns), 100, lambda *request: expired.append(request))
    for variant in ("fp32", "bf16"):
        queue.set_cost(variant, BatchCost(overhead_tokens=1000.0))
    for each in requests:
        queue.put(each)
    return queue


def lengths_taken(queue: Batcher, now_ns: int = 0) -> list[int]:
    batch = queue.take(now_ns)
    assert isinstance(batch, list)
    return sorted(sequence.length for sequence in batch)


def test_an_empty_queue_has_nothing_to_run_and_nothing_to_wait_for() -> None:
    assert queue_of().take(0) is None


def test_a_queue_says_until_when_company_is_worth_waiting_for() -> None:
    queue = queue_of(asked(5, at_ns=70), max_wait_ns=30)
    assert queue.take(80) == 100
    assert lengths_taken(queue, 100) == [5]


@pytest.mark.parametrize(
    ("now_ns", "who"),
    [(99, ""), (100, "soon"), (199, "soon"), (200, "soon middle"), (300, "soon middle late")],
)
def test_every_request_leaves_at_its_own_deadline_in_whatever_order_they_came(now_ns: int, who: str) -> None:
    gone: Gone = []
    names = {
        asked(1, deadline_ns=300): "late",
        asked(2, 2, deadline_ns=100): "soon",
        asked(3): "never",
        asked(4, deadline_ns=200, variant="bf16", priority=3): "middle",
    }
    queue = queue_of(*names, gone=gone)
    ran = lengths_taken(queue, now_ns)
    assert {(names[request], count) for request, count in gone} == {
        (name, 2 if name == "soon" else 1) for name in who.split()
    }
    assert len(queue) + len(ran) == 5 - sum(count for _, count in gone)


def test_a_deadline_that_comes_after_others_have_left_is_still_kept() -> None:
    gone: Gone = []
    withdrawn = asked(1, deadline_ns=100)
    queue = queue_of(withdrawn, gone=gone)
    assert queue.withdraw(withdrawn) == 1
    assert queue.take(500) is None
    after = asked(2, deadline_ns=600)
    queue.put(after)
    assert queue.take(600) is None
    assert gone == [(after, 1)]


def test_a_deadline_is_kept_after_an_earlier_one_has_passed() -> None:
    gone: Gone = []
    soon, late = asked(1, deadline_ns=100), asked(2, at_ns=1, deadline_ns=300)
    queue = queue_of(soon, asked(*[5] * 4), late, gone=gone)
    assert lengths_taken(queue, 100) == [5] * 4
    assert queue.take(300) is None
    assert gone == [(soon, 1), (late, 1)]


def test_a_request_that_has_partly_run_expires_with_what_still_waits() -> None:
    gone: Gone = []
    large = asked(*[5] * 6, deadline_ns=100)
    queue = queue_of(large, gone=gone)
    assert lengths_taken(queue) == [5] * 4
    assert queue.take(100) is None
    assert gone == [(large, 2)]


def test_a_learned_limit_holds_for_its_variant_from_then_on() -> None:
    queue = queue_of(asked(*[100] * 8), asked(*[100] * 4, at_ns=1, variant="bf16"))
    assert lengths_taken(queue) == [100] * 4
    queue.limit_tokens("fp32", 250)
    assert lengths_taken(queue) == [100] * 2
    assert lengths_taken(queue) == [100] * 2
    assert lengths_taken(queue, 1) == [100] * 4  # the other variant


def test_the_last_learned_limit_holds_and_one_longer_sequence_still_runs() -> None:
    queue = queue_of(asked(300, 300), asked(*[50] * 4, at_ns=1))
    for tokens in (5000, 200, 100):
        queue.limit_tokens("fp32", tokens)
    assert [lengths_taken(queue, 1) for _ in range(4)] == [[300], [300], [50, 50], [50, 50]]


def test_a_learned_limit_counts_the_sum_of_lengths_where_the_variant_packs() -> None:
    queue = queue_of(asked(100, 20, 30, 40))
    queue.set_cost("fp32", BatchCost(1000.0, packs=True, width=768))
    queue.limit_tokens("fp32", 150)
    assert lengths_taken(queue) == [20, 30, 100]


@pytest.mark.parametrize("seed", range(6))
def test_looking_at_all_that_waits_first_lets_nobody_in_or_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is told at once that there is room, also for several that come together, decides as one
    that always reckons exactly."""

    def fates() -> list[str]:
        draws = random.Random(seed)
        queue = Batcher(BatchLimits(4, 100), 40, lambda *request: None, max_queue_ns=4e6)
        queue.set_cost("fp32", BatchCost(overhead_tokens=20.0))
        told, now_ns = [], 0
        for _ in range(300):
            now_ns += draws.randrange(200_000)
            deadline_ns = now_ns + draws.randrange(8_000_000) if draws.random() < 0.7 else None
            together = []
            for _ in range(draws.randrange(1, 4)):
                lengths = [draws.randrange(1, 60) for _ in range(draws.randrange(1, 4))]
                caller, priority = draws.choice("ab"), draws.randrange(1, 4)
                together.append(request(lengths, "fp32", deadline_ns, now_ns, priority, caller=caller))
            has_room = queue.have_room(together, now_ns)
            answers.add(has_room)
            for made in together:
                try:
                    told.append(f"{len(queue.put(made, now_ns, has_room))} left")
                except OverloadedError as error:
                    told.append(error.limit)
            if draws.random() < 0.5:
                queue.ended(now_ns)
                batch = queue.take(now_ns)
                if isinstance(batch, list):
                    queue.began(batch, now_ns)
                    now_ns += 30_000 * sum(sequence.length for sequence in batch)
        return told

    answers = set[bool]()
    found = fates()
    assert {"0 left", "time", "deadline"} <= set(found)
    assert answers == {True, False}
    monkeypatch.setattr(Batcher, "_has_room_behind", lambda *_: False)
    assert fates() == found


def test_who_leaves_in_the_moment_in_which_his_request_was_answered_changes_nothing() -> None:
    request = asked(5, 7)
    queue = queue_of(request)
    assert lengths_taken(queue) == [5, 7]
    request.sequences.clear()  # as `end` does
    assert queue.withdraw(request) == 0
