"""The open loop, against calls that this file scripts, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from tests.fixtures.virtual_time import in_virtual_time
from wattserve_loadgen.drive import loop as recording
from wattserve_loadgen.drive.job import Job
from wattserve_loadgen.drive.open import OpenLoop
from wattserve_loadgen.plan.load import POISSON, Load
from wattserve_loadgen.target.wire import CallFailure, Connection

MS = 1_000_000


def refuse() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata(), details="queue full"
    )


def make_loop(call: Callable[..., Any], arrivals_ms: list[float], **changes: Any) -> OpenLoop:
    options = {"deadline_s": 5.0, **changes}
    arrivals_ns = (np.array(arrivals_ms) * MS).astype(np.int64)
    load = Load(POISSON, rate=1.0)
    job = Job(Connection("h:1"), [b"a", b"b", b"c"], load, arrivals_ns=arrivals_ns, **options)
    return OpenLoop(job, [call] * 3)


async def echo(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
    await asyncio.sleep(0.001)
    return request


@in_virtual_time
async def test_every_request_is_sent_and_none_before_it_is_due() -> None:
    found = await make_loop(echo, [0, 3, 3, 3, 10]).run()
    assert found.scheduled_ns is not None
    assert (np.diff(found.scheduled_ns) == np.array([3, 0, 0, 7]) * MS).all()
    assert (found.sent_ns >= found.scheduled_ns).all()
    assert (found.done_ns > found.sent_ns).all()
    assert found.outcomes == (b"a", b"b", b"c", b"a", b"b")
    assert found.stopped == ""


@in_virtual_time
async def test_a_stalled_server_holds_nothing_back() -> None:
    released = asyncio.Event()
    sent = 0

    async def stall(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        nonlocal sent
        sent += 1
        if sent == 50:
            released.set()
        await released.wait()
        return request

    found = await asyncio.wait_for(make_loop(stall, [0.1 * i for i in range(50)]).run(), 30)
    assert (found.done_ns >= found.sent_ns[-1]).all()  # all were in flight together


@in_virtual_time
async def test_the_window_goes_by_the_schedule() -> None:
    found = await make_loop(echo, [0, 4, 5, 6, 9], warmup_s=0.005, window_s=0.02).run()
    assert found.scheduled_ns is not None
    assert found.in_window().tolist() == [False, False, True, True, True]
    assert found.window_start_ns == found.scheduled_ns[0] + 5 * MS
    assert found.window_s == 0.02


@in_virtual_time
async def test_a_schedule_within_the_warm_up_leaves_its_window_empty() -> None:
    found = await make_loop(echo, [0, 1, 2], warmup_s=0.01, window_s=0.01).run()
    assert found.window_s == 0.01
    assert not found.in_window().any()


@in_virtual_time
async def test_an_empty_schedule_is_an_empty_result() -> None:
    found = await make_loop(echo, [], window_s=0.01).run()
    assert (len(found.sent_ns), found.outcomes, found.window_s) == (0, (), 0.01)


@in_virtual_time
async def test_a_loop_stopped_in_its_warm_up_has_no_window() -> None:
    loop = make_loop(echo, [0, 1], warmup_s=3600.0, window_s=1.0)
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    loop.stop("interrupted by the user")
    found = await asyncio.wait_for(running, 5)
    assert (found.window_start_ns, found.window_end_ns, found.client_cpu_share_max) == (0, 0, None)


@in_virtual_time
async def test_too_many_in_flight_end_it_with_a_reason() -> None:
    async def slow(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        await asyncio.sleep(0.05)
        return request

    found = await make_loop(slow, [0.0] * 10, most_in_flight=4).run()
    assert found.stopped == "4 requests in flight, the most: the server does not keep up"
    assert len(found.outcomes) == 4


@in_virtual_time
async def test_failures_are_recorded_and_do_not_hold_the_others_back() -> None:
    async def some(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        await asyncio.sleep(0)
        if request == b"b":
            raise refuse()
        return request

    found = await make_loop(some, [0, 0, 0, 1, 1]).run()
    full = CallFailure("RESOURCE_EXHAUSTED", "queue full")
    assert found.outcomes == (b"a", full, b"c", b"a", full)


@in_virtual_time
async def test_a_bug_in_a_call_is_raised_and_no_outcome() -> None:
    async def broken(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await make_loop(broken, [0, 1, 3_600_000]).run()


@in_virtual_time
async def test_a_cancelled_loop_cancels_what_is_in_flight() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return request

    running = asyncio.create_task(make_loop(hang, [0]).run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(cancelled.wait(), 5)


@in_virtual_time
async def test_the_schedule_begins_when_it_is_told_to() -> None:
    begin_ns = round(asyncio.get_running_loop().time() * 1e9) + 20 * MS
    found = await make_loop(echo, [0, 1]).run(begin_ns)
    assert found.scheduled_ns is not None
    assert found.scheduled_ns.tolist() == [begin_ns, begin_ns + MS]
    assert (found.sent_ns >= found.scheduled_ns).all()


@in_virtual_time
async def test_nothing_but_failures_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_SILENCE_TO_STOP_NS", 0)

    async def dead(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        raise refuse()

    found = await make_loop(dead, [float(i) for i in range(1000)]).run()
    assert found.stopped == "nothing but failures for 2 seconds, the last: RESOURCE_EXHAUSTED queue full"
    assert 20 <= len(found.outcomes) < 1000


@in_virtual_time
async def test_a_stop_does_not_wait_for_the_next_arrival() -> None:
    begun = asyncio.Event()

    async def begin(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        begun.set()
        return request

    loop = make_loop(begin, [0, 3_600_000], window_s=7200.0)
    running = asyncio.create_task(loop.run())
    await begun.wait()
    loop.stop("interrupted by the user")
    found = await asyncio.wait_for(running, 5)
    assert found.stopped == "interrupted by the user"
    assert found.outcomes == (b"a",)
    assert 0 < found.window_s < 3600


@in_virtual_time
async def test_a_share_replays_every_other_request() -> None:
    found = await make_loop(echo, [0, 0, 0], first=1, step=2).run()
    assert found.request_index.tolist() == [1, 0, 2]
    assert found.outcomes == (b"b", b"a", b"c")


@in_virtual_time
async def test_the_screen_sees_the_rate_and_the_median() -> None:
    loop = make_loop(echo, [0, 1, 2])
    progress = loop.progress()
    assert (progress.rate_per_second, progress.percentile_ns(50)) == (None, None)
    await loop.run()
    assert (loop.progress().rate_per_second or 0) > 0
    assert (loop.progress().percentile_ns(50) or 0) >= MS
