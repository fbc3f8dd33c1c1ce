"""The timer of an open loop."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from wattserve_loadgen.drive.timer import Timer


@pytest.fixture(params=["linux", "elsewhere"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "elsewhere":
        monkeypatch.setattr(sys, "platform", "elsewhere")
    elif sys.platform != "linux":
        pytest.skip("timers that are file descriptors are Linux's")
    return str(request.param)


async def test_it_never_wakes_early(platform: str) -> None:
    timer = Timer()
    for _ in range(20):
        due = time.perf_counter_ns() + 300_000
        await timer.until(due)
        assert time.perf_counter_ns() >= due
    timer.close()


async def test_an_instant_that_is_past_is_no_wait_for_ever(platform: str) -> None:
    timer = Timer()
    await asyncio.wait_for(timer.until(time.perf_counter_ns() - 1_000_000), 60)
    await asyncio.wait_for(timer.until(0), 60)
    timer.close()


async def test_it_can_be_woken(platform: str) -> None:
    timer = Timer()
    waiting = asyncio.create_task(timer.until(time.perf_counter_ns() + 3_600_000_000_000))
    await asyncio.sleep(0)
    timer.wake()
    await asyncio.wait_for(waiting, 60)
    timer.close()


async def test_a_woken_wait_leaves_nothing_behind_for_the_next(platform: str) -> None:
    timer = Timer()
    soon = time.perf_counter_ns() + 2_000_000
    waiting = asyncio.create_task(timer.until(soon))
    await asyncio.sleep(0)
    timer.wake()
    await waiting
    later = soon + 20_000_000
    await timer.until(later)
    assert time.perf_counter_ns() >= later
    timer.close()


async def test_waking_nobody_is_no_error(platform: str) -> None:
    timer = Timer()
    timer.wake()
    timer.close()
    timer.close()
