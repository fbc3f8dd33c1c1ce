"""A closed loop: `concurrency` slots, each sending its next request when its answer is in.

The window opens at the first request sent after the warm-up stretch, without draining what is in flight, and
ends with the last request sent. A closed loop has no arrival schedule: latency is done - sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from wattserve_loadgen.drive.loop import Loop, no_garbage_collection
from wattserve_loadgen.drive.outcome import Failure, LoopResult, Outcome
from wattserve_loadgen.target.channel import Call
from wattserve_loadgen.target.failures import CALL_ERRORS

__all__ = ["Burst", "ClosedLoop", "Failure", "LoopResult", "Outcome"]

_PAUSE_AFTER_FAILURE_SECONDS = 0.05  # so that a refusing server is not hammered


class ClosedLoop(Loop):
    """One cell's load: a slot for each of `calls`."""

    def __init__(
        self,
        calls: Sequence[Call],
        requests: Sequence[bytes],
        *,
        warmup_seconds: float,
        seconds: float,
        deadline_seconds: float,
        capacity: int,
        capacity_reason: str = "",
        least_requests: int = 0,
        first: int = 0,
        step: int = 1,
    ) -> None:
        """The window lasts `seconds`, and until `least_requests` are sent in it, whichever is later;
        `capacity` requests, warm-up included, end the loop early.
        """
        super().__init__(requests, capacity, first, step)
        self._calls = calls
        self._warmup_ns = round(warmup_seconds * 1e9)
        self._window_ns = round(seconds * 1e9)
        self._least_requests = least_requests
        self._deadline_seconds = deadline_seconds
        self._capacity = capacity
        self._capacity_reason = capacity_reason
        self._first_in_window = 0
        self._open_at_ns = 0

    async def run(self, begin_ns: int = 0) -> LoopResult:
        """`begin_ns`: when to send the first; 0: now."""
        with no_garbage_collection():
            await asyncio.sleep(max(0, begin_ns - time.perf_counter_ns()) / 1e9)
            self._last_answer_ns = time.perf_counter_ns()
            self._open_at_ns = (begin_ns or self._last_answer_ns) + self._warmup_ns
            await asyncio.gather(*(self._slot(call) for call in self._calls))
        self._close_window()
        return self._result(self._window_end_ns())

    def _window_end_ns(self) -> int:
        return int(self._sent[self._next - 1]) if self._next else 0

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

    def _goes_on(self, now: int) -> bool:
        """Whether to send another request at `now`; opens the window when it is time."""
        if not self._start_ns and now >= self._open_at_ns and not self._stopped:
            self._open_window(now)
            self._first_in_window = self._next
        if self._start_ns and self._is_over(now):
            self._close()
            return False
        if self._next >= self._capacity:
            self.stop(f"{self._capacity} requests sent, the most for one cell{self._capacity_reason}")
        if self._stopped:
            self._close()
        return not self._stopped

    def _is_over(self, now: int) -> bool:
        enough = self._next - self._first_in_window >= self._least_requests
        return enough and now - self._start_ns >= self._window_ns

    def _close(self) -> None:
        self._close_window()


class Burst(ClosedLoop):
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
            calls,
            requests,
            warmup_seconds=0.0,
            seconds=0.0,
            deadline_seconds=deadline_seconds,
            capacity=count,
            least_requests=count,
            first=first,
            step=step,
        )

    def _close(self) -> None:
        """The window is open until the last answer."""

    def _window_end_ns(self) -> int:
        return int(self._done[: self._next].max(initial=0))
