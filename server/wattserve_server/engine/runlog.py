"""The run log of one device: when it ran a batch, for those who account for it.

The runner's thread writes, the sampler's thread drains. The lock makes one promise: a window that
started before the instant that `drain` returns has been handed over by then.
"""

from __future__ import annotations

import threading
import time

from wattserve_server.energy.window import Window


class RunLog:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running_since_ns: int | None = None
        self._finished: list[Window] = []
        self._busy_ns = 0
        self._resting_since_ns = time.monotonic_ns()

    def start(self) -> tuple[int, int]:
        """A batch starts now: the instant, and for how long nothing had run, in nanoseconds."""
        with self._lock:
            self._running_since_ns = time.monotonic_ns()
            return self._running_since_ns, self._running_since_ns - self._resting_since_ns

    def finish(self, window: Window) -> None:
        """The batch that was started has ended; `window` is its record."""
        with self._lock:
            self._busy_ns += window.duration_ns
            self._running_since_ns = None
            self._resting_since_ns = window.end_ns
            self._finished.append(window)

    def drain(self) -> tuple[list[Window], int]:
        """The windows finished since the last call, and the instant before which none is missing."""
        with self._lock:
            windows, self._finished = self._finished, []
            if self._running_since_ns is not None:
                return windows, self._running_since_ns
            return windows, time.monotonic_ns()

    def busy_ns(self) -> int:
        """For how long batches have run, the running one included."""
        with self._lock:
            if self._running_since_ns is None:
                return self._busy_ns
            return self._busy_ns + time.monotonic_ns() - self._running_since_ns
