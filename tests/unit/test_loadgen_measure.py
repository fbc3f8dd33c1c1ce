"""The figures of one cell, from its records and its loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.loadgen_results import make_record
from wattserve_loadgen.drive.closed import LoopResult
from wattserve_loadgen.figures.account import unknown_growth
from wattserve_loadgen.figures.measure import mean_batch_size, measure_cell, padding_share
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.results.schema import CellResult, Record

CELL = Cell(position=9, block=1, variant="fp32", concurrency=2, warmup_seconds=0.0, seconds=1.0)
SECOND = 1_000_000_000


def measure(records: list[Record], window: tuple[int, int], stopped: str = "") -> CellResult:
    sent = np.array([record.sent_ns for record in records])
    done = np.array([record.done_ns for record in records])
    return measure_cell(
        CELL, LoopResult(sent, done, (), *window, 0.25, stopped), records, unknown_growth("-"), stopped
    )


def test_throughput_counts_answers_that_came_within_the_window() -> None:
    """Sent before the window and answered in it: counted. Sent in it and answered after it: not."""
    records = [
        make_record(sent_ns=0, done_ns=SECOND + 5, in_window=False),
        make_record(sent_ns=SECOND, done_ns=2 * SECOND),
        make_record(sent_ns=2 * SECOND, done_ns=4 * SECOND),
        make_record(sent_ns=3 * SECOND, done_ns=9 * SECOND),
    ]
    assert measure(records, (SECOND, 4 * SECOND)).rate_per_second == 1.0


def test_latency_is_of_requests_sent_within_the_window_even_when_answered_after_it() -> None:
    records = [
        make_record(sent_ns=0, done_ns=8 * SECOND, in_window=False),
        *[make_record(sent_ns=SECOND, done_ns=2 * SECOND)] * 10,
        make_record(sent_ns=3 * SECOND, done_ns=9 * SECOND),
    ]
    found = measure(records, (SECOND, 3 * SECOND))
    assert (found.sent, found.answered, found.p50_ns, found.max_ns) == (11, 11, SECOND, 6 * SECOND)


def test_failed_requests_are_shown_and_are_in_neither_latency_nor_throughput() -> None:
    good = [make_record(sent_ns=SECOND, done_ns=2 * SECOND)] * 11
    bad = make_record(ok=False, code="INTERNAL", message="boom", sent_ns=SECOND, done_ns=2 * SECOND - 1)
    found = measure([*good, bad, bad], (SECOND, 2 * SECOND))
    assert (found.sent, found.answered, found.failed) == (13, 11, 2)
    assert (found.failures, found.failure_example) == ({"INTERNAL": 2}, "INTERNAL boom")
    assert (found.rate_per_second, found.max_ns) == (11.0, SECOND)


def test_the_clients_cpu_time_is_a_share_of_the_window() -> None:
    found = measure([make_record()], (SECOND, 3 * SECOND))
    assert (found.client_cpu_seconds, found.client_cpu_share) == (0.25, 0.125)


def test_a_window_without_length_has_no_rate() -> None:
    found = measure([make_record()], (SECOND, SECOND), stopped="interrupted")
    assert (found.rate_per_second, found.client_cpu_share, found.stopped) == (None, None, "interrupted")


def test_the_mean_batch_is_over_batches_and_not_over_requests() -> None:
    """One batch of 8, seen eight times, and eight batches of 1: sixteen requests in nine batches."""
    assert mean_batch_size([8] * 8 + [1] * 8) == pytest.approx(16 / 9)
    assert mean_batch_size([]) is None


@given(st.lists(st.integers(1, 32), min_size=1, max_size=50))
def test_the_mean_batch_size_is_recovered_from_whole_batches(sizes: list[int]) -> None:
    assert mean_batch_size([size for size in sizes for _ in range(size)]) == pytest.approx(
        sum(sizes) / len(sizes)
    )


def test_padding_is_the_share_of_computed_positions_that_held_no_token() -> None:
    assert padding_share([(10, 40), (30, 40)]) == 0.5
    assert padding_share([(10, 10)]) == 0
    assert padding_share([]) is None


def test_images_have_neither_tokens_nor_padding() -> None:
    found = measure([make_record(tokens=None, sent_ns=SECOND, done_ns=2 * SECOND)] * 3, (SECOND, 2 * SECOND))
    assert (found.mean_tokens, found.padding_share) == (None, None)
    assert found.mean_batch_size == 2
