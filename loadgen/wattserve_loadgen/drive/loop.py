"""What every load has in common: stamps, answers, the window, and the reasons to stop.

A window begins and ends on the clock and not with a request: one that began with the first request after a
batch would hold almost a whole batch too many. Inside it a loop only takes stamps and keeps bytes: no
parsing, no garbage collection, no logging.
"""

from __future__ import annotations

import asyncio
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from wattserve_loadgen.drive.job import Job, LoopResult, Outcome, Progress, Stamps
from wattserve_loadgen.target.wire import CallError, Sender, failure_of

_FAILURES_TO_STOP = 20
_SILENCE_TO_STOP_NS = 2_000_000_000
_RECENT = 512


class Loop(ABC):
    """One job, sent over `calls`: a loop runs once; `stop` may come from anywhere in the same event loop."""

    def __init__(self, job: Job, calls: Sequence[Sender]) -> None:
        self._job, self._calls = job, calls
        self._warmup_ns, self._window_ns = round(job.warmup_s * 1e9), round(job.window_s * 1e9)
        self._sent = np.zeros(job.capacity, dtype=np.int64)
        self._done = np.zeros(job.capacity, dtype=np.int64)
        self._outcomes: list[Outcome | None] = [None] * job.capacity
        self._next = 0  # the entry to be sent next
        self._answered = 0
        self._answered_before_window = 0
        self._failures_in_a_row = 0
        self._last_answer_ns = 0
        self._start_ns = 0
        self._cpu_at_start_s = self._cpu_s = 0.0
        self._closed = False
        self._stopped = ""
        self._stopped_ns = 0

    @abstractmethod
    async def run(self, begin_ns: int = 0) -> LoopResult:
        """`begin_ns`: instant 0 of the load; 0: now."""

    def stop(self, reason: str) -> None:
        """Send nothing more; answers in flight are still awaited. A window that is open ends here."""
        if not self._stopped:
            self._stopped, self._stopped_ns = reason, time.perf_counter_ns()

    def progress(self) -> Progress:
        recent = slice(max(0, self._next - _RECENT), self._next)
        sent, done = self._sent[recent], self._done[recent]
        rate = None
        if self._start_ns:
            elapsed_ns = max(1, time.perf_counter_ns() - self._start_ns)
            rate = (self._answered - self._answered_before_window) * 1e9 / elapsed_ns
        return Progress(rate, (done - sent)[done > 0])

    def _answer(self, index: int, answer: bytes) -> None:
        self._last_answer_ns = self._done[index] = time.perf_counter_ns()
        self._outcomes[index] = answer
        self._answered += 1
        self._failures_in_a_row = 0

    def _fail(self, index: int, error: CallError, in_flight: int) -> None:
        """Stop when nothing but failures comes, of more requests than those that `in_flight` lost at once."""
        self._done[index] = now = time.perf_counter_ns()
        self._outcomes[index] = failure = failure_of(error)
        self._failures_in_a_row += 1
        silent = now - self._last_answer_ns > _SILENCE_TO_STOP_NS
        if self._failures_in_a_row >= _FAILURES_TO_STOP + in_flight and silent:
            text = f"{failure.code} {failure.message}".rstrip()
            self.stop(f"nothing but failures for 2 seconds, the last: {text}")

    @contextmanager
    def _at(self, instant_ns: int, action: Callable[[], None]) -> Iterator[None]:
        """Calls `action` at an instant, to a millisecond, when the block still runs then."""
        wait_s = (instant_ns - time.perf_counter_ns()) / 1e9
        handle = asyncio.get_running_loop().call_later(max(0.0, wait_s), action)
        try:
            yield
        finally:
            handle.cancel()

    def _open_window(self, start_ns: int) -> None:
        """At `start_ns` or soon after it; a second call does nothing, nor does one to a stopped loop."""
        if self._start_ns or self._stopped:
            return
        self._start_ns = start_ns
        self._answered_before_window = self._answered
        self._cpu_at_start_s = time.process_time()

    def _close_window(self) -> None:
        """Once, when the window is over: what the client used of the CPU until now."""
        if self._start_ns and not self._closed:
            self._closed = True
            self._cpu_s = time.process_time() - self._cpu_at_start_s

    def _cut(self, end_ns: int) -> int:
        """The end of a window that was to last until `end_ns`."""
        return min(end_ns, self._stopped_ns) if self._stopped else end_ns

    def _result(self, end_ns: int, scheduled_ns: Stamps | None = None) -> LoopResult:
        """Once everything in flight has ended. `end_ns`: of the window, if it was opened."""
        job, count = self._job, self._next
        window_ns = end_ns - self._start_ns if self._start_ns else 0
        return LoopResult(
            sent_ns=self._sent[:count],
            done_ns=self._done[:count],
            outcomes=tuple(outcome for outcome in self._outcomes[:count] if outcome is not None),
            window_start_ns=self._start_ns,
            window_end_ns=end_ns if self._start_ns else 0,
            client_cpu_s=self._cpu_s,
            stopped=self._stopped,
            scheduled_ns=scheduled_ns,
            request_index=(job.first + np.arange(count, dtype=np.int64) * job.step) % len(job.requests),
            client_cpu_share_max=self._cpu_s * 1e9 / window_ns if window_ns > 0 else None,
        )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """What exists is left alone, and nothing is collected until the end."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
