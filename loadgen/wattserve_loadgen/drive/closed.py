"""A closed loop: `concurrency` slots, each sending its next request when its answer is in.

The window opens a stretch of warm-up after the start, without draining what is in flight, and nothing is sent
after it. A closed loop has no arrival schedule: latency is done - sent.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence

from wattserve_loadgen.drive.loop import Loop, no_garbage_collection
from wattserve_loadgen.drive.outcome import LoopResult
from wattserve_loadgen.target.channel import Call
from wattserve_loadgen.target.failures import CALL_ERRORS

_PAUSE_AFTER_FAILURE_SECONDS = 0.05  # so that a refusing server is not hammered


class _Slots(Loop):
    """A slot for each of `calls`, which has at most one request in flight."""

    def __init__(
        self,
        calls: Sequence[Call],
        requests: Sequence[bytes],
        *,
        deadline_seconds: float,
        capacity: int,
        first: int,
        step: int,
    ) -> None:
        super().__init__(requests, capacity, first, step)
        self._calls = calls
        self._deadline_seconds = deadline_seconds
        self._capacity = capacity

    @abstractmethod
    def _goes_on(self, now: int) -> bool:
        """Whether to send another request at `now`."""

    async def _run_slots(self) -> None:
        await asyncio.gather(*(self._slot(call) for call in self._calls))

    async def _slot(self, call: Call) -> None:
        requests, count, first, step = self._requests, len(self._requests), self._first, self._step
        while self._goes_on(now := time.perf_counter_ns()):
            index = self._next
            self._next = index + 1
            self._sent[index] = now
            try:
                request = requests[(first + index * step) % count]
                self._answer(index, await call(request, timeout=self._deadline_seconds))
            except CALL_ERRORS as error:
                self._fail(index, error, len(self._calls))
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_SECONDS)


class ClosedLoop(_Slots):
    """One cell's load."""

    def __init__(
        self,
        calls: Sequence[Call],
        requests: Sequence[bytes],
        *,
        warmup_seconds: float,
        seconds: float,
        deadline_seconds: float,
        capacity: int,
        least_requests: int = 0,
        first: int = 0,
        step: int = 1,
    ) -> None:
        """The window lasts `seconds`, and until `least_requests` are sent in it, whichever is later;
        `capacity` requests, warm-up included, end the loop early.
        """
        super().__init__(
            calls, requests, deadline_seconds=deadline_seconds, capacity=capacity, first=first, step=step
        )
        self._warmup_ns = round(warmup_seconds * 1e9)
        self._window_ns = round(seconds * 1e9)
        self._least_requests = least_requests
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

    def _goes_on(self, now: int) -> bool:
        if now < self._opens_ns:
            self._first_in_window = self._next + 1
        else:
            self._open_window(self._opens_ns)
            if now > self._ends_ns and self._has_enough():
                self._close_window()
                return False
        if self._next >= self._capacity:
            self.stop(f"{self._capacity} requests sent, the most for one cell")
        if self._stopped:
            self._close_window()
        return not self._stopped

    def _has_enough(self) -> bool:
        return self._next - self._first_in_window >= self._least_requests

    def _close_if_enough(self) -> None:
        if self._has_enough():
            self._close_window()

    def _end_ns(self) -> int:
        """When the window's time was over and its last request needed was sent."""
        if not self._has_enough():  # it was stopped
            return self._stopped_ns
        last = self._first_in_window + self._least_requests - 1
        return max(self._ends_ns, int(self._sent[last])) if self._least_requests else self._ends_ns


class Burst(_Slots):
    """All requests are there at the start, and as many as there are slots are in flight: MLPerf's Offline.

    The window reaches from the first request sent to the last answer.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        requests: Sequence[bytes],
        *,
        count: int,
        deadline_seconds: float,
        first: int = 0,
        step: int = 1,
    ) -> None:
        super().__init__(
            calls, requests, deadline_seconds=deadline_seconds, capacity=count, first=first, step=step
        )

    async def run(self, begin_ns: int = 0) -> LoopResult:
        with no_garbage_collection():
            await asyncio.sleep(max(0, begin_ns - time.perf_counter_ns()) / 1e9)
            self._last_answer_ns = time.perf_counter_ns()
            await self._run_slots()
        self._close_window()
        return self._result(int(self._done[: self._next].max(initial=0)))

    def _goes_on(self, now: int) -> bool:
        self._open_window(now)
        return self._next < self._capacity and not self._stopped
