"""Loads shared between processes: the shares, their merging, and real workers against a null server."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from typing import Any

import numpy as np
import pytest

from wattserve_loadgen.drive import processes
from wattserve_loadgen.drive.calibration import null_server
from wattserve_loadgen.drive.job import BurstShape, ClosedShape, Job, OpenShape, split
from wattserve_loadgen.drive.outcome import Failure, LoopResult, merge
from wattserve_loadgen.drive.processes import JobRun, WorkerError, run_job
from wattserve_loadgen.target.channel import Connection

NOBODY = Connection("127.0.0.1:1")
REQUESTS = [bytes([number]) * 8 for number in range(10)]


def result(sent: list[int], window: tuple[int, int], **changes: Any) -> LoopResult:
    options = {"outcomes": tuple(b"%d" % stamp for stamp in sent), "stopped": "", **changes}
    stamps = np.array(sent, dtype=np.int64)
    return LoopResult(
        sent_ns=stamps,
        done_ns=stamps + 5,
        window_start_ns=window[0],
        window_end_ns=window[1],
        client_cpu_seconds=0.25,
        request_index=stamps * 10,
        **options,
    )


def test_results_are_merged_in_the_order_of_sending() -> None:
    merged = merge(
        [
            result([10, 30], (10, 30), client_cpu_share_max=0.25),
            result([20, 40], (20, 40), client_cpu_share_max=0.5),
        ]
    )
    assert merged.sent_ns.tolist() == [10, 20, 30, 40]
    assert merged.done_ns.tolist() == [15, 25, 35, 45]
    assert merged.outcomes == (b"10", b"20", b"30", b"40")
    assert merged.request_index.tolist() == [100, 200, 300, 400]
    assert (merged.window_start_ns, merged.window_end_ns) == (10, 40)
    assert merged.client_cpu_seconds == 0.5
    assert merged.client_cpu_share_max == 0.5
    assert merged.scheduled_ns is None


def test_schedules_are_merged_with_their_requests() -> None:
    shares = [
        result([11, 31], (10, 30), scheduled_ns=np.array([10, 30])),
        result([20, 40], (20, 40), scheduled_ns=np.array([19, 39])),
    ]
    merged = merge(shares)
    assert merged.scheduled_ns is not None
    assert merged.scheduled_ns.tolist() == [10, 19, 30, 39]
    assert merged.in_window().tolist() == [True, True, True, True]


def test_a_share_without_a_window_adds_its_requests_and_no_window() -> None:
    merged = merge([result([1], (0, 0), stopped="dead"), result([20], (20, 40))])
    assert (merged.window_start_ns, merged.window_end_ns, merged.stopped) == (20, 40, "dead")
    assert merged.in_window().tolist() == [False, True]


def test_a_closed_load_is_split_by_slots_and_each_share_begins_elsewhere() -> None:
    shape = ClosedShape(concurrency=5, warmup_seconds=1.0, seconds=2.0, capacity=101, least_requests=11)
    shares = split(Job(NOBODY, REQUESTS, shape, 5.0), 2)
    assert [(one.first, one.step) for one in shares] == [(0, 1), (5, 1)]
    assert [one.shape for one in shares] == [
        ClosedShape(concurrency=3, warmup_seconds=1.0, seconds=2.0, capacity=51, least_requests=6),
        ClosedShape(concurrency=2, warmup_seconds=1.0, seconds=2.0, capacity=50, least_requests=5),
    ]


def test_an_open_load_is_dealt_out_arrival_by_arrival() -> None:
    shares = split(Job(NOBODY, REQUESTS, OpenShape(np.arange(7) * 100, 1.0, 2.0), 5.0), 3)
    shapes = [one.shape for one in shares if isinstance(one.shape, OpenShape)]
    assert [one.arrivals_ns.tolist() for one in shapes] == [[0, 300, 600], [100, 400], [200, 500]]
    assert [(one.first, one.step) for one in shares] == [(0, 3), (1, 3), (2, 3)]
    assert sum(one.most_in_flight for one in shapes) == 20_000


def test_a_burst_is_dealt_out_request_by_request() -> None:
    shares = split(Job(NOBODY, REQUESTS, BurstShape(concurrency=5, count=11), 5.0), 2)
    assert [one.shape for one in shares] == [BurstShape(3, 6), BurstShape(2, 5)]
    assert [(one.first, one.step) for one in shares] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    "shape", [ClosedShape(2, 0.0, 1.0, 99), BurstShape(2, 9), OpenShape(np.arange(2), 0.0, 1.0)]
)
def test_no_process_is_without_work(shape: Any) -> None:
    assert len(split(Job(NOBODY, REQUESTS, shape, 5.0), 8)) == 2


def test_a_job_can_be_pickled() -> None:
    job = Job(NOBODY, REQUESTS, BurstShape(2, 9), 5.0)
    assert pickle.loads(pickle.dumps(job)) == job


async def test_two_processes_replay_a_schedule_exactly_once() -> None:
    arrivals = np.arange(40) * 2_000_000
    async with null_server("unary") as connection:
        found = await run_job(Job(connection, REQUESTS, OpenShape(arrivals, 0.02, 0.06), 20.0), 2)
    assert found.scheduled_ns is not None
    assert (np.sort(found.scheduled_ns) - found.scheduled_ns.min()).tolist() == arrivals.tolist()
    assert np.bincount(found.request_index).tolist() == [4] * 10
    assert all(isinstance(outcome, bytes) for outcome in found.outcomes)
    assert found.in_window().sum() == 30
    assert found.window_seconds == pytest.approx(0.06)
    assert (np.diff(found.sent_ns) >= 0).all()


async def test_one_process_and_several_send_the_same_burst_over_streams() -> None:
    async with null_server("stream") as connection:
        job = Job(connection, REQUESTS, BurstShape(16, 100), 20.0)
        for count in (1, 2):
            found = await run_job(job, count)
            assert np.bincount(found.request_index).tolist() == [10] * 10
            assert not [one for one in found.outcomes if isinstance(one, Failure)]
            assert found.done_in_window().all()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stop_reaches_every_process_and_the_screen_is_told(count: int) -> None:
    seen: list[tuple[float | None, int | None]] = []

    def on_tick(run: JobRun) -> None:
        seen.append((run.rate_per_second(), run.recent_ns(99)))
        if None not in seen[-1]:
            run.stop("interrupted by the user")

    async with null_server("unary") as connection:
        job = Job(connection, REQUESTS, ClosedShape(4, 0.0, 3600.0, 1_000_000), 20.0)
        found = await asyncio.wait_for(run_job(job, count, on_tick), 60)
    assert found.stopped == "interrupted by the user"
    assert len(found.outcomes) == len(found.sent_ns) > 0
    assert (seen[-1][0] or 0) > 0
    assert (seen[-1][1] or 0) > 0


async def test_a_run_stopped_before_it_began_sends_nothing() -> None:
    run = JobRun(Job(NOBODY, REQUESTS, ClosedShape(4, 0.0, 3600.0, 1_000), 20.0), 1)
    run.stop("interrupted by the user")
    found = await asyncio.wait_for(run.run(), 20)
    assert (found.stopped, len(found.sent_ns)) == ("interrupted by the user", 0)


async def begin(run: JobRun) -> asyncio.Task[LoopResult]:
    """Returns once every worker has said how it goes."""
    running = asyncio.create_task(run.run())
    while run.rate_per_second() is None:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return running


async def test_a_worker_that_dies_is_an_error_and_leaves_no_other_behind() -> None:
    async with null_server("unary") as connection:
        job = Job(connection, REQUESTS, ClosedShape(4, 0.0, 3600.0, 1_000_000), 20.0)
        run = JobRun(job, 2)
        running = await begin(run)
        workers = [one._process.pid for one in run._workers]
        os.kill(workers[0], signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"^a worker process of loadgen ended by SIGKILL; what it had"):
            await asyncio.wait_for(running, 60)
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_cancelled_run_leaves_no_worker_behind() -> None:
    async with null_server("unary") as connection:
        job = Job(connection, REQUESTS, ClosedShape(4, 0.0, 3600.0, 1_000_000), 20.0)
        run = JobRun(job, 2)
        running = await begin(run)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    for one in run._workers:
        with pytest.raises(ProcessLookupError):
            os.kill(one._process.pid, 0)


async def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_WORKER", "wattserve_loadgen.no_such_room")
    job = Job(NOBODY, REQUESTS, ClosedShape(4, 0.0, 1.0, 1_000), 20.0)
    with pytest.raises(WorkerError, match=r"ended with exit status 1: .*No module named .*no_such_room"):
        await asyncio.wait_for(run_job(job, 2), 60)
