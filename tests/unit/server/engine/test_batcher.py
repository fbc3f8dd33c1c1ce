"""The queue between the event loop and the runner's thread."""

import time
from functools import partial

import pytest

from tests.fixtures.queued import request
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.policy import (
    FIRST_PRIORITY,
    LAST_PRIORITY,
    NORMAL_PRIORITY,
    PRIORITY_WORTH_NS,
    BatchCost,
    BatchLimits,
)
from wattserve_server.engine.queued import QueuedSequence, Request
from wattserve_server.errors import OverloadedError


def batcher(max_queue: int = 100, expired: list[tuple[Request, int]] | None = None) -> Batcher:
    gone = expired if expired is not None else []
    limits = BatchLimits(max_sequences=4, max_tokens=1000)
    made = Batcher(limits, max_queue, lambda request, count: gone.append((request, count)))
    for variant in ("fp32", "bf16"):
        made.set_cost(variant, BatchCost(overhead_tokens=1000.0))
    return made


def taken(queue: Batcher) -> list[QueuedSequence]:
    """The next batch, where a chore would be a mistake."""
    batch = queue.next_work()
    assert isinstance(batch, list)
    return batch


def test_a_request_is_queued_whole_or_refused_whole() -> None:
    queue = batcher(max_queue=3)
    queue.put(request([5, 5]))
    with pytest.raises(OverloadedError, match=r"2 of 3 sequences wait, and this request has 2"):
        queue.put(request([5, 5]))
    assert len(queue) == 2


def test_a_batch_never_mixes_variants_and_the_oldest_goes_first() -> None:
    queue = batcher()
    queue.put(request([5], "bf16", at_ns=1))
    queue.put(request([5], "fp32", at_ns=2))
    queue.put(request([5], "bf16", at_ns=3))
    first, second = taken(queue), taken(queue)
    assert [item.request.variant for item in first] == ["bf16", "bf16"]
    assert [item.request.variant for item in second] == ["fp32"]
    assert len(queue) == 0


def test_a_higher_priority_goes_first_within_a_variant_and_between_variants() -> None:
    queue = batcher()
    for length in (1, 2, 3, 4):
        queue.put(request([length], at_ns=1))
    queue.put(request([9], "bf16", at_ns=2))
    queue.put(request([500], at_ns=3, priority=FIRST_PRIORITY))
    queue.put(request([5], "bf16", at_ns=4, priority=LAST_PRIORITY))
    first, second, third = taken(queue), taken(queue), taken(queue)
    assert [item.length for item in first] == [500]  # too long for company
    assert sorted(item.length for item in second) == [1, 2, 3, 4]
    assert sorted(item.length for item in third) == [5, 9]


def test_a_level_of_priority_is_worth_a_time_of_waiting_so_nothing_starves() -> None:
    queue = batcher()
    queue.put(request([900], priority=LAST_PRIORITY, at_ns=0))
    queue.put(request([901], at_ns=PRIORITY_WORTH_NS - 1))
    queue.put(request([902], at_ns=PRIORITY_WORTH_NS + 1))
    order = [taken(queue)[0].length for _ in range(3)]
    assert order == [901, 900, 902]


def test_sequences_of_every_priority_can_be_withdrawn() -> None:
    queue = batcher()
    asked = [request([5, 6], priority=level) for level in (FIRST_PRIORITY, NORMAL_PRIORITY, LAST_PRIORITY)]
    for each in asked:
        queue.put(each)
    assert [queue.withdraw(each) for each in asked] == [2, 2, 2]
    assert len(queue) == 0


def test_a_sequence_in_a_batch_is_marked_as_run() -> None:
    queue = batcher()
    queue.put(request([5, 6]))
    batch = taken(queue)
    assert [item.line.batch_size for item in batch] == [2, 2]


def test_a_withdrawn_request_leaves_only_what_has_started() -> None:
    queue = batcher()
    large = request([5] * 6)
    queue.put(large)
    started = taken(queue)
    assert len(started) == 4
    assert queue.withdraw(large) == 2
    assert queue.withdraw(large) == 0
    assert len(queue) == 0


def test_an_expired_request_leaves_the_queue_and_does_not_run() -> None:
    expired: list[tuple[Request, int]] = []
    queue = batcher(expired=expired)
    late, alive = request([5, 5], deadline_ns=time.monotonic_ns() - 1), request([7])
    queue.put(late)
    queue.put(alive)
    batch = taken(queue)
    assert [item.request for item in batch] == [alive]
    assert expired == [(late, 2)]


def test_a_closed_queue_gives_no_batch() -> None:
    queue = batcher()
    queue.close()
    assert queue.next_work() is None


def test_chores_and_batches_take_turns_so_that_neither_starves() -> None:
    queue = batcher()
    done: list[str] = []
    for number in range(3):
        queue.add_chore(partial(done.append, f"chore {number}"))
    for variant in ("fp32", "bf16"):
        queue.put(request([5], variant))
    for _ in range(5):
        work = queue.next_work()
        if isinstance(work, list):
            done.append("batch")
        else:
            assert work is not None
            work()
    assert done == ["chore 0", "batch", "chore 1", "batch", "chore 2"]


def test_a_closed_queue_calls_no_chore() -> None:
    queue = batcher()
    queue.add_chore(lambda: None)
    queue.close()
    assert queue.next_work() is None


def test_a_chore_runs_while_a_batch_waits_for_company() -> None:
    limits = BatchLimits(max_sequences=4, max_tokens=1000, max_wait_ns=10**15)
    queue = Batcher(limits, 100, lambda request, count: None)
    chores = [lambda: None, lambda: None]
    for chore in chores:
        queue.add_chore(chore)
    queue.put(request([5], at_ns=time.monotonic_ns()))
    assert [queue.next_work(), queue.next_work()] == chores


def test_a_learned_limit_holds_for_the_next_batch() -> None:
    queue = batcher()
    queue.put(request([100] * 4))
    queue.limit_tokens("fp32", 200)
    assert len(taken(queue)) == 2
