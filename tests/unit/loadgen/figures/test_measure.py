"""The figures of one cell, from its records and its loop. Times are seconds, stamps nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.loadgen_results import FP32, OPEN, make_meter_window, make_record
from wattserve_loadgen.drive.job import LoopResult
from wattserve_loadgen.figures.account import LedgerGrowth
from wattserve_loadgen.figures.measure import (
    CellSamples,
    cell_samples,
    lag_limit_ns,
    late_sends,
    mean_batch_size,
    measure_cell,
    padding_share,
)
from wattserve_loadgen.model.cells import CellResult, Conditions, Record
from wattserve_loadgen.model.server_info import Standing
from wattserve_loadgen.plan.load import OFFLINE, Load, closed
from wattserve_loadgen.plan.schedule import Cell

SECOND = 1_000_000_000
MS = 1_000_000
CLOSED = closed(2)
BURST = Load(OFFLINE, concurrency=8)


def request(sent: float, done: float, due: float | None = None, **changes: Any) -> Record:
    stamps = {
        "sent_ns": round(sent * SECOND),
        "done_ns": round(done * SECOND),
        "scheduled_ns": None if due is None else round(due * SECOND),
    }
    return make_record(**{**stamps, **changes})


def measure(
    records: Sequence[Record],
    window: tuple[float, float],
    load: Load = CLOSED,
    cpu_share_max: float | None = None,
    **options: Any,
) -> CellResult:
    due = [record.scheduled_ns for record in records]
    loop = LoopResult(
        sent_ns=np.array([record.sent_ns for record in records], dtype=np.int64),
        done_ns=np.array([record.done_ns for record in records], dtype=np.int64),
        outcomes=(),
        window_start_ns=round(window[0] * SECOND),
        window_end_ns=round(window[1] * SECOND),
        client_cpu_s=0.25,
        stopped="",
        scheduled_ns=np.array(due, dtype=np.int64) if load.scheduled else None,
        client_cpu_share_max=cpu_share_max,
    )
    cell = Cell(position=9, block=1, arm=FP32, load=load, warmup_seconds=0.0, seconds=1.0)
    return measure_cell(cell, loop, records, LedgerGrowth(reason="-"), **options)


def test_throughput_counts_answers_that_came_within_the_window() -> None:
    """Sent before the window and answered in it: counted. Sent in it and answered after it: not."""
    records = [
        request(0.5, 1.5, in_window=False),
        request(1, 2),
        request(2, 4),
        request(3, 9),
    ]
    assert measure(records, (1, 4)).rate_per_second == 1.0


def test_a_closed_loops_latency_is_service_time_even_when_the_answer_came_after_the_window() -> None:
    records = [request(0, 8, in_window=False), *[request(1, 2)] * 10, request(3, 9)]
    found = measure(records, (1, 3))
    assert (found.sent, found.answered, found.latency.max_ns) == (11, 11, 6 * SECOND)
    assert (found.service, found.lag, found.late, found.offered_per_second) == (None, None, None, None)


def test_an_open_loops_latency_counts_from_the_schedule() -> None:
    """Due every 0.1 s from 1 s on, sent 20 ms later, answered 30 ms after that."""
    records = [request(at + 0.02, at + 0.05, due=at) for at in 1 + np.arange(1000) / 10]
    found = measure(records, (1, 101), OPEN)
    assert found.latency.p50_ns == 50 * MS
    assert found.service is not None
    assert found.lag is not None
    assert (found.service.p50_ns, found.lag.p99_ns) == (30 * MS, 20 * MS)
    assert (found.offered_per_second, found.rate_per_second, found.late) == (10.0, 10.0, 1000)


@pytest.mark.parametrize(("service_p50", "limit"), [(None, MS), (10 * MS, MS), (100 * MS, 5 * MS)])
def test_a_send_may_lag_a_millisecond_or_a_twentieth_of_the_median_service_time(
    service_p50: float | None, limit: float
) -> None:
    assert lag_limit_ns(service_p50) == limit


def test_late_sends_are_those_beyond_the_limit_answered_or_not() -> None:
    lag = np.array([0, MS, MS + 1, 3 * MS, 6 * MS])
    slow = CellSamples(np.array([100 * MS]), np.array([100 * MS]), lag)
    quick = CellSamples(np.array([MS]), np.array([MS]), lag)
    nothing = np.array([], dtype=np.int64)
    assert (late_sends(slow), late_sends(quick)) == (1, 3)
    assert late_sends(CellSamples(nothing, nothing, lag)) == 3
    assert late_sends(CellSamples(nothing, None, None)) is None


def test_samples_are_in_the_order_of_the_schedule_and_leave_out_failures_but_not_their_lag() -> None:
    records = [
        request(3.5, 4, due=3),
        request(3.6, 9, due=1),
        request(3.7, 5, due=2, ok=False),
        request(0.5, 1, due=0.5, in_window=False),
    ]
    found = cell_samples(OPEN, records)
    assert found.service_ns is not None
    assert found.lag_ns is not None
    assert found.latency_ns.tolist() == [8 * SECOND, SECOND]
    assert found.service_ns.tolist() == [5_400 * MS, 500 * MS]
    assert found.lag_ns.tolist() == [2_600 * MS, 1_700 * MS, 500 * MS]


def test_an_offline_load_has_throughput_and_service_times_and_no_latency() -> None:
    found = measure([request(1, 1.5)] * 100, (1, 3), BURST, objective="p99<1s")
    assert (found.latency.samples, found.latency.p50_ns, found.within_objective) == (0, None, None)
    assert found.service is not None
    assert (found.service.samples, found.service.p50_ns) == (100, 500 * MS)
    assert (found.rate_per_second, found.offered_per_second, found.lag) == (50.0, None, None)


def test_failed_requests_are_shown_and_are_in_neither_latency_nor_throughput() -> None:
    bad = request(1, 1.5, ok=False, code="INTERNAL", message="boom")
    found = measure([*[request(1, 2)] * 11, bad, bad], (1, 2))
    assert (found.sent, found.answered, found.failed) == (13, 11, 2)
    assert (found.failures, found.failure_example) == ({"INTERNAL": 2}, "INTERNAL boom")
    assert (found.rate_per_second, found.latency.p50_ns, found.latency.max_ns) == (11.0, SECOND, SECOND)


def test_answers_within_the_objective_are_counted_against_all_that_was_sent() -> None:
    records = [request(1, 1.4), request(1, 1.5), request(1, 1.6), request(1, 1.1, ok=False)]
    assert measure(records, (1, 2), objective="p99<500ms").within_objective == 1
    assert measure(records, (1, 2), objective="p99<=500ms").within_objective == 2
    assert measure(records, (1, 2)).within_objective is None


def test_the_clients_cpu_share_is_that_of_its_busiest_process() -> None:
    assert measure([request(1, 2)], (1, 3)).client_cpu_share is None
    found = measure([request(1, 2)], (1, 3), cpu_share_max=0.1)
    assert (found.client_cpu_seconds, found.client_cpu_share) == (0.25, 0.1)
    assert found.client_cpu_us_per_request == 250_000


def test_a_window_without_length_has_no_rate() -> None:
    found = measure([request(1, 1)], (1, 1), stopped="interrupted")
    assert (found.rate_per_second, found.client_cpu_share, found.stopped) == (None, None, "interrupted")
    assert found.slices is None


def test_a_cell_without_a_request_has_no_figures_and_no_error() -> None:
    for load in (CLOSED, OPEN, BURST):
        found = measure([], (1, 9), load)
        assert (found.sent, found.latency.p50_ns, found.mean_tokens) == (0, None, None)
        assert found.rate_per_second == 0


def test_what_is_known_of_the_cell_besides_its_requests_is_kept() -> None:
    conditions = Conditions(1.0, 2_400.0, 50.0, 0.5)
    standing = Standing("fp32 with rounding", False)
    meter = make_meter_window(measured_uj=2_000)
    found = measure([request(1, 2)] * 2, (1, 3), conditions=conditions, standing=standing, meter=meter)
    assert (found.conditions, found.proxy, found.verified) == (conditions, "fp32 with rounding", False)
    assert (found.energy.meter, found.energy.meter_uj_per_request) == (meter, 1_000)


def test_floors_hold_the_effective_sample_unless_the_plan_is_a_look() -> None:
    """Slow answers in one run and quick ones in another: hardly more than one independent answer."""
    records = [*[request(1, 2)] * 20, *[request(1, 3)] * 20]
    assert measure(records, (1, 5)).latency.p50_ns is None
    assert measure(records, (1, 5), floors_by_effective=False).latency.p50_ns == SECOND


@pytest.mark.parametrize(
    ("seconds", "answers", "slices"),
    [(20.0, 400, 20), (5.0, 200, 10), (4.0, 8, 8), (3.9, 399, None), (2.0, 400, 8), (2.0, 5_000, 20)],
)
def test_a_window_is_cut_where_slices_are_long_or_full_enough(
    seconds: float, answers: int, slices: int | None
) -> None:
    at = 1 + np.arange(answers) * seconds / answers
    found = measure([request(one, one + 0.001) for one in at], (1, 1 + seconds)).slices
    assert (None if found is None else len(found.rate_per_second)) == slices


def test_slices_show_what_happened_when() -> None:
    """20 requests per second; from the middle on an answer takes twice as long and as much."""
    records = [
        request(
            1 + step / 20, 1 + step / 20 + (0.01 if step < 200 else 0.02), energy_uj=7 if step < 200 else 14
        )
        for step in range(400)
    ]
    found = measure(records, (1, 21)).slices
    assert found is not None
    assert found.seconds == 1.0
    assert found.rate_per_second == [20.0] * 20
    assert found.p50_ns == [10 * MS] * 10 + [20 * MS] * 10
    assert found.active_uj_per_request == [7.0] * 10 + [14.0] * 10


def test_slices_are_null_where_answers_are_too_few() -> None:
    records = [request(1 + step / 5, 1 + step / 5 + 0.01, energy_uj=None) for step in range(100)]
    found = measure(records, (1, 21)).slices
    assert found is not None
    assert (found.p50_ns, found.active_uj_per_request) == ([None] * 20, [None] * 20)


def test_the_mean_batch_is_over_batches_and_not_over_requests() -> None:
    """One batch of 8, seen eight times, and eight batches of 1: sixteen requests in nine batches."""
    assert mean_batch_size([(8, 1)] * 8 + [(1, 1)] * 8) == pytest.approx(16 / 9)
    assert mean_batch_size([]) is None


def test_a_request_of_several_sequences_stands_for_that_share_of_its_batch() -> None:
    """A batch of 8 of two requests of four, and a batch of 4 of one."""
    assert mean_batch_size([(8, 4), (8, 4), (4, 4)]) == pytest.approx(6)


@settings(deadline=None)
@given(st.lists(st.integers(1, 32), min_size=1, max_size=50))
def test_the_mean_batch_size_is_recovered_from_whole_batches(sizes: list[int]) -> None:
    assert mean_batch_size([(size, 1) for size in sizes for _ in range(size)]) == pytest.approx(
        sum(sizes) / len(sizes)
    )


def test_padding_is_the_share_of_computed_positions_that_held_no_token() -> None:
    assert padding_share([(10, 40), (30, 40)]) == 0.5
    assert padding_share([(10, 10)]) == 0
    assert padding_share([]) is None


def test_images_have_neither_tokens_nor_padding() -> None:
    found = measure([request(1, 2, tokens=None)] * 3, (1, 2))
    assert (found.mean_tokens, found.padding_share) == (None, None)
    assert found.mean_batch_size == 2
