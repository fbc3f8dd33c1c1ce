"""What CPU time a batch takes: that of its lane's threads, and its requests' part of the event loop's.

Each is measured where it is spent. What the process does besides, for calls that never run above all, is no
batch's, however much of it there is while one runs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

LATELY = 0.99  # a batch counts so much less for each one that has come since

# The loop works beside its tasks too: it waits for sockets, wakes tasks, hands out results. How many times
# their time it takes in all is learned from so much of it at a time, of which this part at the least was for
# batches; the newest of it weighs so much. 1.9 were seen, and no more is believed than this: who only shakes
# hands has the loop work too.
LEARNS_FROM_NS, OWN_PART, NEWEST = 50_000_000, 0.25, 0.2
MOST_TIMES = 2.0

# Once its batch has ended a task has more to do: how many times what it had taken until then is learned from
# all that have ended of late, each counted once. Of one no more is believed than this.
MOST_AFTER = 2.0

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
    clock them. The loop's thread adds to it; the lanes' threads read."""

    def __init__(self, loop_clock: Callable[[], int]) -> None:
        self.loop_clock = loop_clock
        self.tasks_ns = 0  # of all tasks
        # Of those whose request has run: how many have ended, and how much they took after their batches, in
        # parts of what each had taken before.
        self.ended, self.after = 0, 0.0
        self._lock = threading.Lock()  # for what follows, which the lanes share
        self._told = 0, 0.0  # of `ended` and `after`
        self._ended_lately = self._after_lately = 0.0
        self._times = 0.0  # its tasks' time the loop takes in all; 0: not known
        self._since = loop_clock(), 0
        self._learned_from = (0, 0, 0)

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        return asyncio.Task(_Clocked(coroutine, TaskWork(self)), loop=loop, **options)

    def rested(self) -> None:
        """At rest the loop works for nobody."""
        with self._lock:
            self._since = self.loop_clock(), self.tasks_ns

    def parts_ns(self, works: Sequence[TaskWork | None]) -> tuple[int, ...]:
        """Of each sequence of a batch that has ended, by the task that serves it: what that has taken since
        it was last asked, and what goes with it. A request of several sequences has as many equal parts."""
        with self._lock:
            fresh_ns = {work: work.take_fresh_ns() for work in dict.fromkeys(works) if work is not None}
            self._learn(sum(fresh_ns.values()))
            if not fresh_ns:
                return (0,) * len(works)
            told, self._told = self._told, (self.ended, self.after)
            self._ended_lately = LATELY * self._ended_lately + self._told[0] - told[0]
            self._after_lately = LATELY * self._after_lately + self._told[1] - told[1]
            after = self._after_lately / self._ended_lately if self._ended_lately else 0.0
            more = (1.0 + after) * (self._times or 1.0)
            counts = Counter(works)
            return tuple(
                [0 if work is None else round(more * fresh_ns[work] / counts[work]) for work in works]
            )

    def _learn(self, fresh_ns: int) -> None:
        now, since = (self.loop_clock(), self.tasks_ns), self._since
        new = now[0] - since[0], now[1] - since[1], fresh_ns
        loop_ns, tasks_ns, own_ns = map(add, self._learned_from, new)
        self._since, self._learned_from = now, (loop_ns, tasks_ns, own_ns)
        if tasks_ns < LEARNS_FROM_NS:
            return
        self._learned_from = (0, 0, 0)
        if own_ns >= OWN_PART * tasks_ns:
            times = min(max(loop_ns / tasks_ns, 1.0), MOST_TIMES)
            self._times += NEWEST * (times - self._times) if self._times else times


class TaskWork:
    """What CPU time one task takes. Belongs to the event loop, but for what a lane takes."""

    __slots__ = ("_ns", "_served", "_taken_ns")

    def __init__(self, served: Served) -> None:
        self._served = served
        self._ns = self._taken_ns = 0

    def add(self, ns: int) -> None:
        self._ns += ns
        self._served.tasks_ns += ns

    def end(self) -> None:
        """The task has; one that served no batch tells nothing."""
        if self._taken_ns:
            self._served.ended += 1
            self._served.after += min((self._ns - self._taken_ns) / self._taken_ns, MOST_AFTER)

    def take_fresh_ns(self) -> int:
        """What it has taken since this was last asked."""
        ns = self._ns
        fresh_ns, self._taken_ns = ns - self._taken_ns, ns
        return fresh_ns


class _Clocked(Coroutine[Any, Any, Any]):
    """A coroutine whose CPU time `work` is told."""

    __slots__ = ("_coroutine", "work")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], work: TaskWork) -> None:
        self._coroutine = coroutine
        self.work = work

    def send(self, value: Any) -> Any:
        since_ns = time.thread_time_ns()
        has_ended = True
        try:
            waits_for = self._coroutine.send(value)
            has_ended = False
            return waits_for
        finally:
            self.work.add(time.thread_time_ns() - since_ns)
            if has_ended:
                self.work.end()

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
    """None of a task that was made before its loop had `Served`."""
    task = asyncio.current_task()
    coroutine = None if task is None else task.get_coro()
    return coroutine.work if isinstance(coroutine, _Clocked) else None


class NoWorkClock:
    """Of a lane of which no counter goes by CPU time: it is not timed, for that costs a call an eighth of its
    own."""

    def begin(self) -> None:
        pass

    def rested(self) -> None:
        pass

    def skip(self) -> None:
        pass

    def took_ns(self, works: Sequence[TaskWork | None]) -> tuple[int | None, tuple[int, ...]]:
        return None, ()

    def more_ns(self) -> int:
        return 0


class WorkClock(NoWorkClock):
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

    def took_ns(self, works: Sequence[TaskWork | None]) -> tuple[int, tuple[int, ...]]:
        """Of the batch that has ended: in all, and each sequence's part of the loop in that. works: the tasks
        that serve its sequences; none where nobody waits for them."""
        if not works:  # a first run may have started threads
            self._threads.look_again()
        took_ns = self.more_ns()
        parts_ns = self._served.parts_ns(works)
        return took_ns + sum(parts_ns), parts_ns

    def more_ns(self) -> int:
        """What the threads have done since, for the same batch."""
        since_ns = self._since_ns
        self.skip()
        return max(self._since_ns - since_ns, 0)
