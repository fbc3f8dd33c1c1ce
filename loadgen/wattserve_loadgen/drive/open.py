"""An open loop: every request is sent when it is due, whatever is in flight.

It never waits for an answer, so a slow server delays nothing but its own answers (no coordinated omission).
Three stamps: scheduled, sent, done. The window opens a stretch of warm-up after the start, without draining
what is in flight, and lasts as long as the schedule was made for: up to its last arrival it would hold n
arrivals in n - 1 gaps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence

from wattserve_loadgen.drive.job import Job, LoopResult
from wattserve_loadgen.drive.loop import Loop, no_garbage_collection
from wattserve_loadgen.drive.timer import Timer
from wattserve_loadgen.target.wire import CALL_ERRORS, Sender

_LEAD_NS = 2_000_000  # from the start of `run` to instant 0 of the schedule


class OpenLoop(Loop):
    """Arrival i goes to `calls[i % len(calls)]`."""

    def __init__(self, job: Job, calls: Sequence[Sender]) -> None:
        super().__init__(job, calls)
        assert job.arrivals_ns is not None
        self._arrivals_ns = job.arrivals_ns
        self._offsets_ns: list[int] = job.arrivals_ns.tolist()
        self._begin_ns = 0
        self._in_flight: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None
        self._bug: BaseException | None = None  # what was raised and is no call's failure

    def stop(self, reason: str) -> None:
        super().stop(reason)
        if self._timer is not None:
            self._timer.wake()

    async def run(self, begin_ns: int = 0) -> LoopResult:
        self._timer = Timer()
        try:
            with no_garbage_collection():
                self._begin_ns = self._last_answer_ns = begin_ns or time.perf_counter_ns() + _LEAD_NS
                opens_ns = self._begin_ns + self._warmup_ns
                ends_ns = opens_ns + self._window_ns
                opening = self._at(opens_ns, lambda: self._open_window(opens_ns))
                with opening, self._at(ends_ns, self._close_window):
                    await self._send_all(self._timer)
                    await self._wait(self._timer, ends_ns)
                self._open_window(opens_ns)
                self._close_window()
                while self._in_flight:
                    await asyncio.wait(self._in_flight)
        finally:
            self._timer.close()
            self._timer = None
            for task in self._in_flight:
                task.cancel()
        if self._bug is not None:
            raise self._bug
        return self._result(self._cut(ends_ns), self._arrivals_ns[: self._next] + self._begin_ns)

    async def _wait(self, timer: Timer, instant_ns: int) -> None:
        while not self._stopped and time.perf_counter_ns() < instant_ns:
            await timer.until(instant_ns)

    async def _send_all(self, timer: Timer) -> None:
        while not self._stopped and self._next < len(self._offsets_ns):
            due_ns = self._begin_ns + self._offsets_ns[self._next]
            if due_ns > time.perf_counter_ns():
                await timer.until(due_ns)
                continue
            self._send_due()
            await asyncio.sleep(0)  # answers are taken even when the schedule cannot be kept

    def _send_due(self) -> None:
        """All that is due by now."""
        now, offsets = time.perf_counter_ns() - self._begin_ns, self._offsets_ns
        while not self._stopped and self._next < len(offsets) and offsets[self._next] <= now:
            self._send(self._next)

    def _send(self, index: int) -> None:
        job = self._job
        if len(self._in_flight) >= job.most_in_flight:
            self.stop(f"{job.most_in_flight} requests in flight, the most: the server does not keep up")
            return
        self._next = index + 1
        request = job.requests[(job.first + index * job.step) % len(job.requests)]
        self._sent[index] = time.perf_counter_ns()
        answer = self._calls[index % len(self._calls)](request, timeout=job.deadline_s)
        task = asyncio.create_task(self._take(index, answer))
        self._in_flight.add(task)
        task.add_done_callback(self._landed)

    async def _take(self, index: int, answer: Awaitable[bytes]) -> None:
        try:
            self._answer(index, await answer)
            self._send_due()  # many answers at once do not hold the schedule up
        except CALL_ERRORS as error:
            self._fail(index, error, 0)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = self._bug or error
            self.stop(repr(error))
