"""Statistics, counted as Triton counts them: whole numbers that only grow."""

from __future__ import annotations

import time

import pytest

from wattserve_server.energy.receipt import Window
from wattserve_server.telemetry.observer import Duration, Observer, Times, VariantStatistics


def durations(of: VariantStatistics) -> list[Duration]:
    return [of.success, of.fail, *of.stages]


TIMES = Times(tokenize_ns=1, queue_ns=20, compute_ns=300, output_ns=4000, total_ns=50000)


def test_nothing_has_happened_to_a_variant_nobody_asked_for() -> None:
    found = Observer("test").statistics(["fp32", "int8@cpu"])
    assert [duration.count for duration in durations(found)] == [0] * 6
    assert (found.sequences, dict(found.batches), found.last_unix_ms) == (0, {}, 0)


def test_an_answered_request_counts_once_everywhere_and_its_sequences_each() -> None:
    observer = Observer("test")
    observer.answered("fp32", 3, TIMES)
    observer.answered("fp32", 2, TIMES)
    found = observer.statistics(["fp32"])
    assert found.sequences == 5
    named = (found.success, found.tokenize, found.queue, found.compute, found.output)
    assert [(each.count, each.total_ns) for each in named] == [
        (2, 8642),
        (2, 2),
        (2, 40),
        (2, 600),
        (2, 8000),
    ]
    assert found.fail.count == 0


def test_a_failed_request_counts_as_nothing_else() -> None:
    observer = Observer("test")
    observer.failed("fp32", "INTERNAL", "", "", 7)
    found = observer.statistics(["fp32"])
    assert (found.fail.count, found.fail.total_ns) == (1, 7)
    assert found.sequences == 0
    assert {each.count for each in durations(found) if each is not found.fail} == {0}
    assert found.last_unix_ms == 0  # of the last answer, and there was none


def test_batches_are_kept_apart_by_their_size() -> None:
    observer = Observer("test")
    for size, compute_ns in ((4, 10), (1, 3), (4, 30)):
        observer.batch_ran(Window("fp32", 0, compute_ns, (5,) * size, 5))
    found = observer.statistics(["fp32"])
    assert {size: (each.count, each.total_ns) for size, each in found.batches.items()} == {
        4: (2, 40),
        1: (1, 3),
    }


def test_a_sum_over_variants_adds_up_and_changes_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer("test")
    now_ns = 5_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    observer.answered("fp32", 1, TIMES)
    now_ns = 4_000_000_000
    observer.answered("bf16", 2, TIMES)
    for variant, size in (("fp32", 1), ("bf16", 1), ("bf16", 2)):
        observer.batch_ran(Window(variant, 0, 10, (5,) * size, 5))
    for _ in range(2):  # asking twice changes nothing
        whole = observer.statistics(["fp32", "bf16", "never"])
        assert (whole.sequences, whole.success.count, whole.queue.total_ns) == (3, 2, 40)
        assert {size: each.count for size, each in whole.batches.items()} == {1: 2, 2: 1}
        assert whole.last_unix_ms == 5000  # the latest, not the last in the list
    assert observer.statistics(["bf16"]).sequences == 2
    assert observer.statistics(["bf16"]).last_unix_ms == 4000


def test_a_request_for_which_there_was_no_room_counts_by_the_limit_that_it_met() -> None:
    made = Observer("test")
    made.failed("fp32", "RESOURCE_EXHAUSTED", "OVERLOADED", "full", 5, "deadline")
    made.failed("fp32", "INVALID_ARGUMENT", "INVALID_REQUEST", "empty", 5)
    page = made.page("")[1].decode()
    assert 'wattserve_refused_requests_total{limit="deadline"} 1.0' in page
    assert 'wattserve_refused_requests_total{limit="time"} 0.0' in page
