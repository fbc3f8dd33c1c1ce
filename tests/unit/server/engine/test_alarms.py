"""Alarms: what is due is told, once; what has ended leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from wattserve_server.engine.alarms import LEAST_SHIFT, Alarms


async def test_what_is_due_rings_once_and_what_has_ended_never() -> None:
    rang: list[str] = []
    last = asyncio.Event()

    def ring(what: str) -> None:
        rang.append(what)
        if what == "late":
            last.set()

    alarms = Alarms(ring)
    now_ns = time.monotonic_ns()
    slots = {what: alarms.set(what, now_ns) for what in ("early", "ended", "too")}
    alarms.clear("ended", slots["ended"])
    alarms.set("late", now_ns + (2 << LEAST_SHIFT))
    await last.wait()
    assert rang == ["early", "too", "late"]
    alarms.clear("early", slots["early"])  # which has rung


async def test_a_timer_keeps_nothing_of_the_call_that_needed_it_first() -> None:
    class Call:
        pass

    of_call: ContextVar[Call] = ContextVar("call")
    alarms = Alarms[int](lambda what: None)

    async def call() -> weakref.ref[Call]:
        of_call.set(Call())
        alarms.clear(1, alarms.set(1, time.monotonic_ns() + 600 * 10**9))
        return weakref.ref(of_call.get())

    held = await asyncio.create_task(call())
    await asyncio.sleep(0)
    gc.collect()
    assert held() is None


async def test_many_share_few_timers_and_none_rings_early_or_much_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def kept(*arguments: Any, **named: Any) -> asyncio.TimerHandle:
        timers.append(call_at(*arguments, **named))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", kept)
    alarms = Alarms[int](lambda what: None)
    begin_ns = time.monotonic_ns()
    for number in range(20_000):  # ten seconds of calls that have ten minutes each
        due_ns = begin_ns + 600 * 10**9 + number * 500_000
        rings_ns = alarms.set(number, due_ns)
        assert due_ns < rings_ns <= due_ns + 6 * 10**9
        alarms.clear(number, rings_ns)
    assert len(timers) <= 6
    assert alarms.set(0, begin_ns + 10**9) <= begin_ns + 10**9 + 8_400_000
    assert [timer for timer in timers if timer.when() * 1e9 < begin_ns + 10**9] == []
