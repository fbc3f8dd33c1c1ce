"""A closed loop: slots that each send their next request when their answer is in.

The window opens a stretch of warm-up after the start, without draining what is in flight, and nothing is sent
after it. A closed loop has no arrival schedule: latency is done - sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from wattserve_loadgen.drive.job import Job, LoopResult
from wattserve_loadgen.drive.loop import Loop, no_garbage_collection
from wattserve_loadgen.target.wire import CALL_ERRORS, Sender

_PAUSE_AFTER_FAILURE_S = 0.05  # so that a refusing server is not hammered


class ClosedLoop(Loop):
    """A slot for each of `calls`, which has at most one request in flight.

    The window lasts the job's time, and until its least requests are sent, whichever is later; its most
    requests end the loop early.
    """

    def __init__(self, job: Job, calls: Sequence[Sender]) -> None:
        super().__init__(job, calls)
        self._first_in_window = 0
        self._opens_ns = self._ends_ns = 0  # as planned

    async def run(self, begin_ns: int = 0) -> LoopResult:
        with no_garbage_collection():
            await asyncio.sleep(max(0, begin_ns - time.perf_counter_ns()) / 1e9)
            self._last_answer_ns = begin_ns or time.perf_counter_ns()
            self._opens_ns = self._last_answer_ns + self._warmup_ns
            self._ends_ns = self._opens_ns + self._window_ns
            opening = self._at(self._opens_ns, lambda: self._open_window(self._opens_ns))
            with opening, self._at(self._ends_ns, self._close_if_enough):
                await self._run_slots()
        self._close_window()
        return self._result(self._cut(self._end_ns()))

    async def _run_slots(self) -> None:
        await asyncio.gather(*(self._slot(call) for call in self._calls))

    async def _slot(self, call: Sender) -> None:
        job, count = self._job, len(self._job.requests)
        while self._goes_on(now := time.perf_counter_ns()):
            index = self._next
            self._next = index + 1
            self._sent[index] = now
            try:
                request = job.requests[(job.first + index * job.step) % count]
                self._answer(index, await call(request, timeout=job.deadline_s))
            except CALL_ERRORS as error:
                self._fail(index, error, len(self._calls))
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    def _goes_on(self, now: int) -> bool:
        """Whether to send another request at `now`."""
        if now < self._opens_ns:
            self._first_in_window = self._next + 1
        else:
            self._open_window(self._opens_ns)
            if now > self._ends_ns and self._has_enough():
                self._close_window()
                return False
        if self._next >= self._job.most_requests:
            self.stop(f"{self._job.most_requests} requests sent, the most for one cell")
        if self._stopped:
            self._close_window()
        return not self._stopped

    def _has_enough(self) -> bool:
        return self._next - self._first_in_window >= self._job.least_requests

    def _close_if_enough(self) -> None:
        if self._has_enough():
            self._close_window()

    def _end_ns(self) -> int:
        """When the window's time was over and its last request needed was sent."""
        if not self._has_enough():  # it was stopped
            return self._stopped_ns
        last = self._first_in_window + self._job.least_requests - 1
        return max(self._ends_ns, int(self._sent[last])) if self._job.least_requests else self._ends_ns


class Burst(ClosedLoop):
    """All requests are there at the start, and as many as there are slots are in flight: MLPerf's Offline.

    The window reaches from the first request sent to the last answer.
    """

    async def run(self, begin_ns: int = 0) -> LoopResult:
        with no_garbage_collection():
            await asyncio.sleep(max(0, begin_ns - time.perf_counter_ns()) / 1e9)
            self._last_answer_ns = time.perf_counter_ns()
            await self._run_slots()
        self._close_window()
        return self._result(int(self._done[: self._next].max(initial=0)))

    def _goes_on(self, now: int) -> bool:
        self._open_window(now)
        return self._next < self._job.most_requests and not self._stopped
