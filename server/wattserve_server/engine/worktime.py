"""What CPU time a batch takes: that of its lane's threads, and its requests' part of the event loop's.

Each is measured where it is spent. What the process does besides, for calls that never run above all, is no
batch's, however much of it there is while one runs.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

LATELY = 0.99  # of what the event loop takes: a batch counts so much less for each one that has come since

EVERY = (
    8  # of so many tasks one is clocked, at random: to read the clock takes 1 us, twice for each step of one
)

# The loop works beside its tasks too: it waits for sockets, wakes tasks, hands out results. How many times
# their time it takes in all is learned from so much of it at a time, of which this part at the least was for
# requests that ran; the newest of it weighs so much. 1.9 were seen, no more is believed than this: who only
# shakes hands has the loop work too.
LEARNS_FROM_NS, OWN_PART, NEWEST = 250_000_000, 0.5, 0.2
MOST_TIMES = 2.0

LOOKS_NS = 50_000_000  # how far apart

_THREADS = Path("/proc/self/task")


def this_thread() -> Callable[[], int]:
    """A clock of the CPU time of the thread that calls this, in nanoseconds, for any thread to read."""
    return partial(time.clock_gettime_ns, time.pthread_getcpuclockid(threading.get_ident()))


class OwnThreads:
    """A clock of the CPU time of the thread that makes it and of those that it has started, in nanoseconds:
    they have its name. Where the system does not list threads, of the process less the event loop's."""

    def __init__(self, loop_clock: Callable[[], int]) -> None:
        self._loop_clock = loop_clock
        self._spent_ns: dict[int, int] = {}  # by thread; one that has ended stays
        own = threading.get_native_id()
        self._name = f"lane {own}"
        with suppress(OSError):
            (_THREADS / str(own) / "comm").write_text(self._name)
        self._look()

    def look_again(self) -> None:
        """For threads that have been started since, if that was not just now."""
        if time.monotonic_ns() - self._looked_ns > LOOKS_NS:
            self._look()

    def _look(self) -> None:
        self._looked_ns = time.monotonic_ns()
        with suppress(OSError):
            for thread in _THREADS.iterdir():
                with suppress(OSError):  # it has ended
                    if (thread / "comm").read_text().rstrip() == self._name:
                        self._spent_ns.setdefault(int(thread.name), 0)

    def __call__(self) -> int:
        if not self._spent_ns:
            return time.process_time_ns() - self._loop_clock()
        for thread in self._spent_ns:
            with suppress(OSError):
                self._spent_ns[thread] = time.clock_gettime_ns(~thread << 3 | 6)  # as Linux numbers clocks
        return sum(self._spent_ns.values())


class Served:
    """What CPU time an event loop takes for requests that run. It makes the loop's tasks (a task factory), to
    clock some of them. The loop's thread adds to it; the lanes' threads read."""

    def __init__(self, loop_clock: Callable[[], int], every: int = EVERY) -> None:
        self.loop_clock = loop_clock
        self._every = every
        self.tasks_ns = 0  # of all tasks, as far as those tell that are clocked
        self.ran_ns = 0  # of those that serve a request of which something has run
        self._lock = threading.Lock()  # for what follows, which the lanes share
        self._told_ns = 0  # of `ran_ns`
        self._lately_ns = self._answered = 0.0
        self._times = 0.0  # its tasks' time the loop takes in all; 0: not known
        self._since = self._now()
        self._learned_from = (0, 0, 0)

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        if random.random() * self._every < 1:
            coroutine = _Clocked(coroutine, TaskWork(self))
        return asyncio.Task(coroutine, loop=loop, **options)

    def add(self, ns: int) -> None:
        self.tasks_ns += self._every * ns

    def add_ran(self, ns: int) -> None:
        self.ran_ns += self._every * ns

    def _now(self) -> tuple[int, int, int]:
        return self.loop_clock(), self.tasks_ns, self.ran_ns

    def rested(self) -> None:
        """At rest the loop works for nobody."""
        with self._lock:
            self._since = self._now()

    def part_ns(self, answered: int) -> int:
        """Of so many sequences that somebody waits for."""
        with self._lock:
            self._learn()
            if not answered:
                return 0
            ran_ns = self.ran_ns
            self._lately_ns = LATELY * self._lately_ns + ran_ns - self._told_ns
            self._answered = LATELY * self._answered + answered
            self._told_ns = ran_ns
            return round(answered * self._lately_ns / self._answered * (self._times or 1.0))

    def _learn(self) -> None:
        now = self._now()
        loop_ns, tasks_ns, ran_ns = (
            sum_ns + now_ns - since_ns
            for sum_ns, now_ns, since_ns in zip(self._learned_from, now, self._since, strict=True)
        )
        self._since, self._learned_from = now, (loop_ns, tasks_ns, ran_ns)
        if tasks_ns < LEARNS_FROM_NS:
            return
        self._learned_from = (0, 0, 0)
        if ran_ns >= OWN_PART * tasks_ns:
            times = min(max(loop_ns / tasks_ns, 1.0), MOST_TIMES)
            self._times += NEWEST * (times - self._times) if self._times else times


class TaskWork:
    """What CPU time one task takes. Belongs to the event loop."""

    __slots__ = ("_has_run", "_kept_ns", "_served")

    def __init__(self, served: Served) -> None:
        self._served = served
        self._has_run = False
        self._kept_ns = 0

    def add(self, ns: int) -> None:
        self._served.add(ns)
        if self._has_run:
            self._served.add_ran(ns)
        else:
            self._kept_ns += ns

    def has_run(self) -> None:
        """Something of the request that it serves."""
        self._has_run = True
        self._served.add_ran(self._kept_ns)
        self._kept_ns = 0


class _Clocked(Coroutine[Any, Any, Any]):
    """A coroutine whose CPU time `work` is told."""

    __slots__ = ("_coroutine", "work")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], work: TaskWork) -> None:
        self._coroutine = coroutine
        self.work = work

    def send(self, value: Any) -> Any:
        since_ns = time.thread_time_ns()
        try:
            return self._coroutine.send(value)
        finally:
            self.work.add(time.thread_time_ns() - since_ns)

    def throw(self, *error: Any) -> Any:
        since_ns = time.thread_time_ns()
        try:
            return self._coroutine.throw(*error)
        finally:
            del error  # its traceback refers to this frame: together they would wait for a look for garbage
            self.work.add(time.thread_time_ns() - since_ns)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()


def served_on(loop: asyncio.AbstractEventLoop) -> Served:
    """Of the loop that runs, on its thread. Where somebody else makes its tasks, they are not looked into."""
    factory = loop.get_task_factory()
    if isinstance(factory, Served):
        return factory
    served = Served(this_thread())
    if factory is None:
        makes_tasks: Any = served
        loop.set_task_factory(makes_tasks)
    return served


def work_of_this_task() -> TaskWork | None:
    """None of a task that is not clocked."""
    task = asyncio.current_task()
    coroutine = None if task is None else task.get_coro()
    return coroutine.work if isinstance(coroutine, _Clocked) else None


class WorkClock:
    """What CPU time a lane's batches take, each with what its thread does to get it ready, and its requests'
    part of the event loop's."""

    _threads: OwnThreads
    _since_ns = 0

    def __init__(self, served: Served) -> None:
        self._served = served

    def begin(self) -> None:
        """On the lane's thread, as all that follows."""
        self._threads = OwnThreads(self._served.loop_clock)
        self.skip()

    def rested(self) -> None:
        """A batch starts after a rest."""
        self._served.rested()

    def skip(self) -> None:
        """What the threads have done was for no batch."""
        self._since_ns = self._threads()

    def took_ns(self, answered: int) -> int:
        """Of the batch that has ended. answered: how many of its sequences somebody waits for."""
        if not answered:  # a first run may have started threads
            self._threads.look_again()
        since_ns = self._since_ns
        self.skip()
        return max(self._since_ns - since_ns, 0) + self._served.part_ns(answered)
