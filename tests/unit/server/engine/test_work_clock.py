"""A batch took the CPU time of its own threads, and its requests' part of what the event loop took for those
that ran; nothing of what others had the process do meanwhile."""

import asyncio
import threading
import time
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wattserve_server.engine import worktime
from wattserve_server.engine.worktime import (
    EVERY,
    LEARNS_FROM_NS,
    LOOKS_NS,
    MOST_TIMES,
    OwnThreads,
    Served,
    TaskWork,
    WorkClock,
    served_on,
    this_thread,
    work_of_this_task,
)

MS = 1_000_000


def spend(ms: float) -> None:
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


class Loop:
    """An event loop whose CPU time is spent by hand."""

    def __init__(self) -> None:
        self.loop_ns = 0
        self.served = Served(lambda: self.loop_ns, every=1)

    def call(self, ms: float, has_run: bool = True, beside: float = 0.0) -> None:
        """The task of a call takes so much, and the loop beside it so many times that."""
        work = TaskWork(self.served)
        work.add(round(ms * MS))
        self.loop_ns += round(ms * (1 + beside) * MS)
        if has_run:
            work.has_run()

    def part_ms(self, answered: int) -> float:
        return self.served.part_ns(answered) / MS


def test_sequences_are_told_what_their_tasks_took_of_late() -> None:
    loop = Loop()
    told = 0.0
    for _ in range(200):  # four are answered by one batch, two by the next
        loop.call(1)
        four = loop.part_ms(4)
        loop.call(2)
        two = loop.part_ms(2)
        told += four + two
    assert told == pytest.approx(200 * 3, rel=0.01)
    assert four == pytest.approx(4 * 0.5, abs=0.1)
    assert two == pytest.approx(2 * 0.5, abs=0.1)


def test_a_trial_is_told_nothing_and_takes_nothing_from_others() -> None:
    loop = Loop()
    loop.call(2)
    assert loop.part_ms(0) == 0
    assert loop.part_ms(1) == pytest.approx(2)


@pytest.mark.parametrize("one_ms", [0.1, 40.0])
def test_calls_that_never_run_cost_those_that_do_nothing(one_ms: float) -> None:
    alone, beside = Loop(), Loop()
    for _ in range(1000):
        alone.call(1, beside=0.8)
        beside.call(1, beside=0.8)
        for _ in range(20):
            beside.call(one_ms, has_run=False, beside=0.2)
        told_ms = alone.part_ms(1), beside.part_ms(1)
        assert told_ms[1] <= told_ms[0] + 1e-6
    assert told_ms[0] == pytest.approx(1.8)  # with what the loop did beside its tasks


def test_what_the_loop_does_for_nobodys_task_is_bounded_and_forgotten() -> None:
    loop = Loop()
    for _ in range(2 * LEARNS_FROM_NS // MS):  # from the start somebody shakes hands and says nothing
        loop.call(1, beside=9.0)
        told_ms = loop.part_ms(1)
    assert told_ms == pytest.approx(MOST_TIMES)
    for _ in range(20 * LEARNS_FROM_NS // MS):
        loop.call(1, beside=0.8)
        told_ms = loop.part_ms(1)
    assert told_ms == pytest.approx(1.8, abs=0.01)


def test_a_rest_teaches_nothing() -> None:
    loop = Loop()
    for _ in range(2 * LEARNS_FROM_NS // MS):
        loop.loop_ns += 9 * MS
        loop.served.rested()
        loop.call(1, beside=0.8)
        told_ms = loop.part_ms(1)
    assert told_ms == pytest.approx(1.8)


async def test_a_loops_tasks_are_clocked_and_answer_as_ever() -> None:
    served = Served(this_thread(), every=1)
    asyncio.get_running_loop().set_task_factory(cast(Any, served))
    assert served_on(asyncio.get_running_loop()) is served
    assert work_of_this_task() is None  # it is older

    async def call(has_run: bool) -> int:
        spend(20)
        await asyncio.sleep(0)
        spend(20)
        if has_run:
            work = work_of_this_task()
            assert work is not None
            work.has_run()
        spend(20)
        return 7

    assert list(await asyncio.gather(call(True), call(False))) == [7, 7]
    assert served.tasks_ns > 119 * MS
    assert 59 * MS < served.ran_ns < served.tasks_ns - 59 * MS

    async def wrong() -> None:
        raise KeyError("wrong")

    async def endless() -> None:
        await asyncio.sleep(3600)

    with pytest.raises(KeyError):
        await asyncio.create_task(wrong())
    waiting = asyncio.create_task(endless(), name="endless")
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert waiting.get_name() == "endless"


async def test_of_many_tasks_few_tell_what_all_take(monkeypatch: pytest.MonkeyPatch) -> None:
    served = served_on(asyncio.get_running_loop())
    monkeypatch.setattr(worktime, "time", SimpleNamespace(thread_time_ns=count(0, MS).__next__))

    async def call() -> bool:
        if (work := work_of_this_task()) is not None:
            work.has_run()
        return work is not None

    clocked = sum([await asyncio.create_task(call()) for _ in range(4000)])
    assert served.tasks_ns == served.ran_ns == clocked * EVERY * MS
    assert clocked == pytest.approx(4000 / EVERY, rel=0.3)


async def test_a_loop_with_other_tasks_is_left_alone() -> None:
    def makes(loop: asyncio.AbstractEventLoop, coroutine: object, **options: object) -> asyncio.Task[None]:
        return asyncio.Task(coroutine, loop=loop, **options)  # type: ignore[arg-type]

    loop, other = asyncio.get_running_loop(), cast(Any, makes)
    loop.set_task_factory(other)
    served_on(loop)
    assert loop.get_task_factory() is makes


def test_a_threads_clock_counts_those_that_it_started_and_no_others() -> None:
    """As the threads of torch's pool are the lane's."""
    told: list[int] = []
    spent, done = threading.Event(), threading.Event()

    def work() -> None:
        spend(40)
        spent.set()
        done.wait()

    def lane() -> None:
        clock = OwnThreads(lambda: 0)
        child = threading.Thread(target=work)
        child.start()
        spent.wait()
        time.sleep(2 * LOOKS_NS / 1e9)
        clock.look_again()
        told.append(clock())
        done.set()
        child.join()
        told.append(clock())

    thread = threading.Thread(target=lane)
    thread.start()
    spend(100)
    thread.join()
    assert 39 * MS < told[0] < 90 * MS
    assert told[1] >= told[0]  # one that has ended stays


def test_a_batch_takes_what_its_thread_did_since_the_last_one_but_for_chores() -> None:
    clock = WorkClock(Served(lambda: 0))
    clock.begin()
    spend(20)
    assert 19 * MS < clock.took_ns(1) < 90 * MS
    spend(100)
    clock.skip()
    assert clock.took_ns(1) < 90 * MS


def test_the_clock_is_of_the_thread_that_made_it() -> None:
    clock = this_thread()
    read: list[int] = []

    def look() -> None:
        for _ in range(2):
            read.append(clock())
            spend(20)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert 0 <= read[1] - read[0] < 10 * MS  # this thread only waited
