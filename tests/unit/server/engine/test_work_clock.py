"""A batch took the CPU time of its own threads, and its requests' part of what the event loop took for those
that ran; nothing of what others had the process do meanwhile."""

import asyncio
import threading
import time
from typing import Any, cast

import pytest

from wattserve_server.engine.worktime import (
    LEARNS_FROM_NS,
    LOOKS_NS,
    MOST_AFTER,
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
        self.served = Served(lambda: self.loop_ns)

    def spend(self, work: TaskWork, ms: float, beside: float = 0.0) -> None:
        """The loop takes so much for a task, and so many times that beside it."""
        work.add(round(ms * MS))
        self.loop_ns += round(ms * (1 + beside) * MS)

    def call(self, ms: float, beside: float = 0.0) -> TaskWork:
        """One that is to run."""
        work = TaskWork(self.served)
        self.spend(work, ms, beside)
        return work

    def batch(self, *calls: TaskWork, after: float = 0.0, beside: float = 0.0) -> list[float]:
        """Milliseconds of each of its sequences. after: so many ms each call has still to take."""
        told = [ns / MS for ns in self.served.parts_ns(calls)]
        for call in dict.fromkeys(calls):
            self.spend(call, after, beside)
            call.end()
        return told


def test_each_is_told_what_its_own_task_took() -> None:
    loop = Loop()
    told = loop.batch(loop.call(1), loop.call(50), loop.call(2))
    assert told == [1, 50, 2]
    assert loop.batch(loop.call(1)) == [1]


def test_a_request_of_several_sequences_is_told_once() -> None:
    loop = Loop()
    one, many = loop.call(1), loop.call(8)
    assert loop.served.parts_ns((many, one, many)) == (4 * MS, MS, 4 * MS)
    assert loop.served.parts_ns((many, many)) == (0, 0)  # in another batch
    loop.spend(many, 3)
    assert loop.served.parts_ns((many,)) == (3 * MS,)  # a generation is told what its steps have its task do


def test_a_trial_and_a_task_that_nobody_clocks_are_told_nothing() -> None:
    served = Loop().served
    assert served.parts_ns(()) == ()
    assert served.parts_ns((None, None)) == (0, 0)


def test_what_comes_after_a_batch_is_told_with_what_came_before() -> None:
    loop = Loop()
    told = [loop.batch(loop.call(1), after=0.5) for _ in range(300)]
    assert told[-1] == pytest.approx([1.5], rel=0.01)
    assert sum(each for (each,) in told) == pytest.approx(450, rel=0.02)


def test_who_has_much_to_do_afterwards_makes_others_little_dearer() -> None:
    loop = Loop()
    for _ in range(300):
        loop.batch(*[loop.call(1, beside=0) for _ in range(9)], after=0.5)
        loop.batch(loop.call(1), after=100)
    (told,) = loop.batch(loop.call(1))
    assert told == pytest.approx(1 + 0.9 * 0.5 + 0.1 * MOST_AFTER, rel=0.01)


@pytest.mark.parametrize("one_ms", [0.1, 40.0])
def test_calls_that_never_run_cost_those_that_do_nothing(one_ms: float) -> None:
    alone, beside = Loop(), Loop()
    for _ in range(1000):
        told_ms = []
        for loop in (alone, beside):
            told_ms += loop.batch(loop.call(1, beside=0.8))
            if loop is beside:
                for _ in range(20):
                    loop.call(one_ms, beside=0.2)
        assert max(told_ms) <= 1.8 + 1e-6
    assert told_ms[0] == pytest.approx(1.8)  # with what the loop did beside its tasks


def test_what_the_loop_does_for_nobodys_task_is_bounded_and_forgotten() -> None:
    loop = Loop()
    for _ in range(2 * LEARNS_FROM_NS // MS):  # from the start somebody shakes hands and says nothing
        told_ms = loop.batch(loop.call(1, beside=9.0))
    assert told_ms == pytest.approx([MOST_TIMES])
    for _ in range(20 * LEARNS_FROM_NS // MS):
        told_ms = loop.batch(loop.call(1, beside=0.8))
    assert told_ms == pytest.approx([1.8], abs=0.01)


def test_a_rest_teaches_nothing() -> None:
    loop = Loop()
    for _ in range(2 * LEARNS_FROM_NS // MS):
        loop.loop_ns += 9 * MS
        loop.served.rested()
        told_ms = loop.batch(loop.call(1, beside=0.8))
    assert told_ms == pytest.approx([1.8])


async def test_a_loops_tasks_are_clocked_and_answer_as_ever() -> None:
    served = Served(this_thread())
    asyncio.get_running_loop().set_task_factory(cast(Any, served))
    assert served_on(asyncio.get_running_loop()) is served
    assert work_of_this_task() is None  # it is older

    async def call() -> int:
        spend(20)
        await asyncio.sleep(0)
        spend(20)
        work = work_of_this_task()
        assert work is not None
        assert 19 * MS < work.take_fresh_ns() < 90 * MS  # of what it did before it waited
        spend(20)
        return 7

    assert await asyncio.create_task(call()) == 7
    assert served.tasks_ns > 59 * MS
    assert served.ended == 1
    assert served.after > 0

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
    assert 19 * MS < clock.took_ns(())[0] < 90 * MS
    spend(100)
    clock.skip()
    assert clock.took_ns(())[0] < 90 * MS


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
