"""The hot path: a closed loop of `concurrency` slots, each sending its next request when its answer is in.

Inside the window it only takes stamps and keeps bytes: no parsing, no garbage collection, no logging. Answers
are read after the window, by `answers`.

The window opens at the first request sent after the warm-up stretch, without draining what is in flight, and
ends with the last request sent. A closed loop has no arrival schedule: latency is done - sent.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt

from wattserve_loadgen.target.native import Call, cause

_PAUSE_AFTER_FAILURE_SECONDS = 0.05
_FAILURES_TO_STOP = 20
_SILENCE_TO_STOP_NS = 2_000_000_000
_RECENT = 512


@dataclass(frozen=True)
class Failure:
    """A request without an answer: a gRPC status code and what the server said."""

    code: str
    message: str


Outcome = bytes | Failure


@dataclass(frozen=True)
class LoopResult:
    """Everything that was sent, in the order of sending. Stamps are `time.perf_counter_ns`."""

    sent_ns: npt.NDArray[np.int64]
    done_ns: npt.NDArray[np.int64]
    outcomes: tuple[Outcome, ...]
    window_start_ns: int  # both 0: the loop ended before its window opened
    window_end_ns: int
    client_cpu_seconds: float  # of this whole process, during the window
    stopped: str  # why the loop ended before its time, or ""

    @property
    def window_seconds(self) -> float:
        return (self.window_end_ns - self.window_start_ns) / 1e9

    def in_window(self) -> npt.NDArray[np.bool_]:
        """Requests sent within the window: those whose latency, energy and answers count."""
        return (self.window_start_ns > 0) & (self.sent_ns >= self.window_start_ns)

    def done_in_window(self) -> npt.NDArray[np.bool_]:
        """Requests that ended within the window, whenever they were sent: what throughput counts."""
        return (self.done_ns > self.window_start_ns) & (self.done_ns <= self.window_end_ns)


class ClosedLoop:
    """One cell's load. `run` once; `stop` from anywhere in the same event loop."""

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
    ) -> None:
        """`requests` are sent in order and again from the start; `capacity` of them end the loop early."""
        self._calls = calls
        self._requests = requests
        self._warmup_ns = round(warmup_seconds * 1e9)
        self._window_ns = round(seconds * 1e9)
        self._deadline_seconds = deadline_seconds
        self._capacity = capacity
        self._capacity_reason = capacity_reason
        self._sent = np.zeros(capacity, dtype=np.int64)
        self._done = np.zeros(capacity, dtype=np.int64)
        self._outcomes: list[Outcome | None] = [None] * capacity
        self._next = 0
        self._answered = 0
        self._answered_before_window = 0
        self._failures_in_a_row = 0
        self._last_answer_ns = 0
        self._open_at_ns = 0
        self._start_ns = 0
        self._end_ns = 0
        self._closed = False
        self._cpu_at_start = 0.0
        self._cpu_at_end = 0.0
        self._stopped = ""

    def stop(self, reason: str) -> None:
        """Send nothing more; answers in flight are still awaited."""
        self._stopped = self._stopped or reason

    async def run(self) -> LoopResult:
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            self._last_answer_ns = time.perf_counter_ns()
            self._open_at_ns = self._last_answer_ns + self._warmup_ns
            await asyncio.gather(*(self._slot(call) for call in self._calls))
        finally:
            gc.enable()
            gc.unfreeze()
        count = self._next
        outcomes = tuple(outcome for outcome in self._outcomes[:count] if outcome is not None)
        return LoopResult(
            sent_ns=self._sent[:count],
            done_ns=self._done[:count],
            outcomes=outcomes,
            window_start_ns=self._start_ns,
            window_end_ns=int(self._sent[count - 1]) if self._start_ns else 0,
            client_cpu_seconds=self._cpu_at_end - self._cpu_at_start,
            stopped=self._stopped,
        )

    def rate_per_second(self) -> float | None:
        """So far in the window; None before it opens."""
        if not self._start_ns:
            return None
        elapsed = time.perf_counter_ns() - self._start_ns
        return (self._answered - self._answered_before_window) * 1e9 / elapsed

    def recent_p50_ns(self) -> int | None:
        """Of the last few hundred answers: for the screen, not for results."""
        recent = slice(max(0, self._next - _RECENT), self._next)
        answered = self._done[recent] > 0
        if not answered.any():
            return None
        return int(np.median((self._done[recent] - self._sent[recent])[answered]))

    async def _slot(self, call: Call) -> None:
        requests, count = self._requests, len(self._requests)
        sent, done, outcomes = self._sent, self._done, self._outcomes
        while self._goes_on(now := time.perf_counter_ns()):
            index = self._next
            self._next = index + 1
            sent[index] = now
            try:
                outcomes[index] = await call(requests[index % count], timeout=self._deadline_seconds)
                self._last_answer_ns = time.perf_counter_ns()
                done[index] = self._last_answer_ns
                self._answered += 1
                self._failures_in_a_row = 0
            except grpc.aio.AioRpcError as error:
                done[index] = time.perf_counter_ns()
                outcomes[index] = Failure(error.code().name, cause(error))
                await self._after_failure(outcomes[index])

    def _goes_on(self, now: int) -> bool:
        """Whether to send another request at `now`; opens the window when it is time, and closes it."""
        if not self._start_ns and now >= self._open_at_ns and not self._stopped:
            self._start_ns = now
            self._end_ns = now + self._window_ns
            self._answered_before_window = self._answered
            self._cpu_at_start = time.process_time()
        over = self._start_ns > 0 and now >= self._end_ns
        if self._next >= self._capacity:
            self.stop(f"{self._capacity} requests sent, the most for one cell{self._capacity_reason}")
        if not over and not self._stopped:
            return True
        if self._start_ns and not self._closed:
            self._closed = True
            self._cpu_at_end = time.process_time()
        return False

    async def _after_failure(self, failure: Outcome | None) -> None:
        """Pause, so that a refusing server is not hammered; stop when nothing but failures comes."""
        self._failures_in_a_row += 1
        silent = time.perf_counter_ns() - self._last_answer_ns > _SILENCE_TO_STOP_NS
        if self._failures_in_a_row >= _FAILURES_TO_STOP + len(self._calls) and silent:
            text = f"{failure.code} {failure.message}".rstrip() if isinstance(failure, Failure) else ""
            self.stop(f"nothing but failures for 2 seconds, the last: {text}")
        await asyncio.sleep(_PAUSE_AFTER_FAILURE_SECONDS)
