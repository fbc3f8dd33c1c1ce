"""The closed loop and the burst, against calls that this file scripts, in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from tests.fixtures.virtual_time import in_virtual_time
from wattserve_loadgen.drive import closed
from wattserve_loadgen.drive import loop as recording
from wattserve_loadgen.drive.closed import Burst, ClosedLoop
from wattserve_loadgen.drive.job import Job
from wattserve_loadgen.plan.load import OFFLINE, Load
from wattserve_loadgen.plan.load import closed as load
from wattserve_loadgen.target.wire import CallFailure, Connection


def refuse(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def make_loop(call: Callable[..., Any], concurrency: int = 2, **changes: Any) -> ClosedLoop:
    options = {"window_s": 0.05, "deadline_s": 5.0, "most_requests": 100_000, **changes}
    job = Job(Connection("h:1"), [b"a", b"b", b"c"], load(concurrency), **options)
    return ClosedLoop(job, [call] * concurrency)


async def echo(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
    await asyncio.sleep(0.001)
    return request


@in_virtual_time
async def test_answers_stand_in_the_order_of_sending() -> None:
    delays = iter([0.02, 0.001] + [0.001] * 1000)

    async def slow_first(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        await asyncio.sleep(next(delays))
        return request

    found = await make_loop(slow_first, window_s=3600.0, most_requests=4).run()
    assert found.outcomes == (b"a", b"b", b"c", b"a")
    assert (np.diff(found.sent_ns) >= 0).all()
    assert found.done_ns[0] > found.done_ns[1]


@in_virtual_time
async def test_never_more_requests_are_in_flight_than_the_concurrency() -> None:
    flying = most = 0

    async def count(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.001)
        flying -= 1
        return request

    await make_loop(count, concurrency=7, window_s=3600.0, most_requests=50).run()
    assert most == 7


@in_virtual_time
async def test_the_window_opens_without_a_drain_and_nothing_is_sent_after_it() -> None:
    found = await make_loop(echo, concurrency=3, warmup_s=0.03).run()
    first = int(found.in_window().argmax())
    assert first > 0
    assert found.window_s == 0.05
    assert found.sent_ns[-1] <= found.window_end_ns
    late = found.done_ns > found.window_end_ns
    assert not (late & found.done_in_window()).any()  # awaited and recorded, and not counted in throughput


@in_virtual_time
async def test_failures_are_recorded_with_code_and_message() -> None:
    replies: Iterator[bytes | Exception] = iter(
        (b"x", refuse(grpc.StatusCode.INTERNAL, "the model\n failed"), b"y")
    )

    async def script(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        reply = next(replies, b"z")
        if isinstance(reply, Exception):
            raise reply
        await asyncio.sleep(0.001)
        return reply

    found = await make_loop(script, concurrency=1, window_s=3600.0, most_requests=3).run()
    assert found.outcomes == (b"x", CallFailure("INTERNAL", "the model failed"), b"y")


@in_virtual_time
async def test_nothing_but_failures_ends_the_loop_with_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closed, "_PAUSE_AFTER_FAILURE_S", 0.0001)
    monkeypatch.setattr(recording, "_SILENCE_TO_STOP_NS", 0)

    async def dead(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        raise refuse(
            grpc.StatusCode.UNAVAILABLE, "failed; last error: UNKNOWN: ipv4:1.2.3.4:5: Connection refused"
        )

    found = await make_loop(dead, window_s=3600.0).run()
    assert found.stopped == "nothing but failures for 2 seconds, the last: UNAVAILABLE Connection refused"
    assert set(found.outcomes) == {CallFailure("UNAVAILABLE", "Connection refused")}
    assert 22 <= len(found.outcomes) <= 25


@in_virtual_time
async def test_failures_between_answers_do_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed, "_PAUSE_AFTER_FAILURE_S", 0.0)
    monkeypatch.setattr(recording, "_SILENCE_TO_STOP_NS", 0)
    count = 0

    async def mostly_full(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        nonlocal count
        count += 1
        if count % 10:
            raise refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")
        await asyncio.sleep(0.0001)
        return request

    found = await make_loop(mostly_full, window_s=3600.0, most_requests=200).run()
    assert found.stopped.startswith("200 requests sent")
    assert sum(isinstance(outcome, bytes) for outcome in found.outcomes) == 20


@in_virtual_time
async def test_the_loop_ends_when_its_capacity_is_reached() -> None:
    found = await make_loop(echo, window_s=3600.0, most_requests=10).run()
    assert len(found.outcomes) == 10
    assert found.stopped == "10 requests sent, the most for one cell"


@in_virtual_time
async def test_a_stopped_loop_awaits_what_is_in_flight() -> None:
    calls = 0

    async def stop_at_ten(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        nonlocal calls
        calls += 1
        if calls == 10:
            loop.stop("interrupted by the user")
            loop.stop("again")
        await asyncio.sleep(0.001)
        return request

    loop = make_loop(stop_at_ten, concurrency=4, window_s=3600.0)
    found = await loop.run()
    assert found.stopped == "interrupted by the user"
    assert len(found.outcomes) == len(found.sent_ns) == 10
    assert (found.done_ns >= found.sent_ns).all()


@in_virtual_time
async def test_a_loop_stopped_in_its_warm_up_has_no_window() -> None:
    loop = make_loop(echo, warmup_s=3600.0, most_requests=5)
    found = await loop.run()
    assert loop.progress().rate_per_second is None
    assert (found.window_start_ns, found.window_end_ns, found.window_s) == (0, 0, 0.0)
    assert not found.in_window().any()


@in_virtual_time
async def test_every_request_carries_the_deadline() -> None:
    seen = set()

    async def look(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        seen.add(timeout)
        await asyncio.sleep(0.001)
        return request

    await make_loop(look, deadline_s=12.5).run()
    assert seen == {12.5}


@in_virtual_time
async def test_garbage_is_not_collected_within_the_window_and_is_again_after_it() -> None:
    enabled = set()

    async def look(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        enabled.add(gc.isenabled())
        await asyncio.sleep(0.001)
        return request

    await make_loop(look).run()
    assert enabled == {False}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@in_virtual_time
async def test_the_screen_sees_the_rate_and_the_median_of_the_window() -> None:
    loop = make_loop(echo, window_s=3600.0, most_requests=20)
    assert loop.progress().percentile_ns(50) is None
    await loop.run()
    assert (loop.progress().rate_per_second or 0) > 0
    assert (loop.progress().percentile_ns(50) or 0) >= 1_000_000


@in_virtual_time
async def test_the_window_lasts_until_enough_requests_are_sent_in_it() -> None:
    found = await make_loop(echo, warmup_s=0.01, window_s=0.0, least_requests=30).run()
    assert found.stopped == ""
    assert found.in_window().sum() == 30


@in_virtual_time
async def test_each_entry_names_the_request_it_replayed() -> None:
    found = await make_loop(echo, window_s=3600.0, most_requests=7, first=2).run()
    assert found.request_index.tolist() == [2, 0, 1, 2, 0, 1, 2]
    assert found.outcomes == (b"c", b"a", b"b", b"c", b"a", b"b", b"c")


@in_virtual_time
async def test_nothing_is_sent_before_the_loop_is_told_to_begin() -> None:
    begin_ns = round(asyncio.get_running_loop().time() * 1e9) + 20_000_000
    found = await make_loop(echo, window_s=3600.0, most_requests=5, warmup_s=3600.0).run(begin_ns)
    assert (found.sent_ns >= begin_ns - 1_000).all()  # asyncio's clock rounds


@in_virtual_time
async def test_a_closed_loop_has_no_schedule() -> None:
    assert (await make_loop(echo, most_requests=3, window_s=3600.0).run()).scheduled_ns is None


@in_virtual_time
async def test_the_cpu_time_of_the_window_is_known() -> None:
    found = await make_loop(echo).run()
    assert found.client_cpu_s > 0
    assert found.client_cpu_share_max == pytest.approx(found.client_cpu_s / 0.05)


@in_virtual_time
async def test_a_burst_sends_each_request_once_and_lasts_until_the_last_answer() -> None:
    flying = most = 0

    async def count(request: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.001)
        flying -= 1
        return request

    offline = Load(OFFLINE, concurrency=4)
    job = Job(Connection("h:1"), [b"a", b"b", b"c"], offline, 5.0, most_requests=30)
    burst = Burst(job, [count] * 4)
    found = await burst.run()
    assert found.stopped == ""
    assert len(found.outcomes) == 30
    assert most == 4
    assert found.window_start_ns == found.sent_ns[0]
    assert found.window_end_ns == found.done_ns.max()
    assert found.in_window().all()
    assert found.done_in_window().all()
