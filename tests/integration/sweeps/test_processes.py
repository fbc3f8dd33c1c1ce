"""Loads shared between processes: the shares, their merging, and real workers against a null server."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from wattserve_loadgen.drive import processes
from wattserve_loadgen.drive.calibration import null_server
from wattserve_loadgen.drive.job import Job, LoopResult, Progress, merge, split
from wattserve_loadgen.drive.processes import JobRun, WorkerError
from wattserve_loadgen.plan.load import OFFLINE, POISSON, Load, closed
from wattserve_loadgen.target.wire import CallFailure, Connection

NOBODY = Connection("127.0.0.1:1")
REQUESTS = [bytes([number]) * 8 for number in range(10)]
OPEN = Job(NOBODY, REQUESTS, Load(POISSON, rate=1.0), 5.0, 1.0, 2.0)


def burst(connection: Connection, concurrency: int, count: int) -> Job:
    return Job(connection, REQUESTS, Load(OFFLINE, concurrency=concurrency), 20.0, most_requests=count)


def for_ever(connection: Connection, concurrency: int = 4) -> Job:
    return Job(connection, REQUESTS, closed(concurrency), 20.0, 0.0, 3600.0, most_requests=1_000_000)


def result(sent: list[int], window: tuple[int, int], **changes: Any) -> LoopResult:
    options = {"outcomes": tuple(b"%d" % stamp for stamp in sent), "stopped": "", **changes}
    stamps = np.array(sent, dtype=np.int64)
    return LoopResult(
        sent_ns=stamps,
        done_ns=stamps + 5,
        window_start_ns=window[0],
        window_end_ns=window[1],
        client_cpu_s=0.25,
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
    assert merged.client_cpu_s == 0.5
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
    job = Job(NOBODY, REQUESTS, closed(5), 5.0, 1.0, 2.0, most_requests=101, least_requests=11)
    shares = split(job, 2)
    assert [(one.first, one.step) for one in shares] == [(0, 1), (5, 1)]
    assert [(one.load, one.most_requests, one.least_requests) for one in shares] == [
        (closed(3), 51, 6),
        (closed(2), 50, 5),
    ]
    assert {(one.warmup_s, one.window_s) for one in shares} == {(1.0, 2.0)}


def test_an_open_load_is_dealt_out_arrival_by_arrival() -> None:
    shares = split(replace(OPEN, arrivals_ns=np.arange(7) * 100), 3)
    arrivals = [one.arrivals_ns.tolist() for one in shares if one.arrivals_ns is not None]
    assert arrivals == [[0, 300, 600], [100, 400], [200, 500]]
    assert [(one.first, one.step) for one in shares] == [(0, 3), (1, 3), (2, 3)]
    assert sum(one.most_in_flight for one in shares) == 20_000


def test_a_burst_is_dealt_out_request_by_request() -> None:
    shares = split(burst(NOBODY, 5, 11), 2)
    assert [(one.load.concurrency, one.most_requests) for one in shares] == [(3, 6), (2, 5)]
    assert [(one.first, one.step) for one in shares] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    "job", [for_ever(NOBODY, 2), burst(NOBODY, 2, 9), replace(OPEN, arrivals_ns=np.arange(2))]
)
def test_no_process_is_without_work(job: Job) -> None:
    assert len(split(job, 8)) == 2


def test_a_job_can_be_pickled() -> None:
    job = burst(NOBODY, 2, 9)
    assert pickle.loads(pickle.dumps(job)) == job


async def test_two_processes_replay_a_schedule_exactly_once() -> None:
    arrivals = np.arange(40) * 2_000_000
    async with null_server("unary") as connection:
        job = Job(connection, REQUESTS, OPEN.load, 20.0, 0.02, 0.06, arrivals_ns=arrivals)
        found = await JobRun(job, 2).run()
    assert found.scheduled_ns is not None
    assert (np.sort(found.scheduled_ns) - found.scheduled_ns.min()).tolist() == arrivals.tolist()
    assert np.bincount(found.request_index).tolist() == [4] * 10
    assert all(isinstance(outcome, bytes) for outcome in found.outcomes)
    assert found.in_window().sum() == 30
    assert found.window_s == pytest.approx(0.06)
    assert (np.diff(found.sent_ns) >= 0).all()


async def test_one_process_and_several_send_the_same_burst_over_streams() -> None:
    async with null_server("stream") as connection:
        for count in (1, 2):
            found = await JobRun(burst(connection, 16, 100), count).run()
            assert np.bincount(found.request_index).tolist() == [10] * 10
            assert not [one for one in found.outcomes if isinstance(one, CallFailure)]
            assert found.done_in_window().all()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stop_reaches_every_process_and_the_screen_is_told(count: int) -> None:
    seen: list[tuple[float | None, int | None]] = []

    def on_progress(progress: Progress) -> None:
        seen.append((progress.rate_per_second, progress.percentile_ns(99)))
        if None not in seen[-1]:
            run.stop("interrupted by the user")

    async with null_server("unary") as connection:
        run = JobRun(for_ever(connection), count, on_progress)
        found = await asyncio.wait_for(run.run(), 60)
    assert found.stopped == "interrupted by the user"
    assert len(found.outcomes) == len(found.sent_ns) > 0
    assert (seen[-1][0] or 0) > 0
    assert (seen[-1][1] or 0) > 0


async def test_a_run_stopped_before_it_began_sends_nothing() -> None:
    run = JobRun(for_ever(NOBODY), 1)
    run.stop("interrupted by the user")
    found = await asyncio.wait_for(run.run(), 20)
    assert (found.stopped, len(found.sent_ns)) == ("interrupted by the user", 0)


async def begin(run: JobRun) -> asyncio.Task[LoopResult]:
    """Returns once every worker has said how it goes."""
    running = asyncio.create_task(run.run())
    while run.progress().rate_per_second is None:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return running


async def test_a_worker_that_dies_is_an_error_and_leaves_no_other_behind() -> None:
    async with null_server("unary") as connection:
        run = JobRun(for_ever(connection), 2)
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
        run = JobRun(for_ever(connection), 2)
        running = await begin(run)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    for one in run._workers:
        with pytest.raises(ProcessLookupError):
            os.kill(one._process.pid, 0)


async def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_WORKER", "import wattserve_loadgen.no_such_room")
    with pytest.raises(WorkerError, match=r"ended with exit status 1: .*No module named .*no_such_room"):
        await asyncio.wait_for(JobRun(for_ever(NOBODY), 2).run(), 60)
