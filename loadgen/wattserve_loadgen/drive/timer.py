"""Waking a coroutine at an instant, to a tenth of a millisecond, without spinning.

asyncio's own timers are rounded up to whole milliseconds (the resolution of epoll's timeout). Linux has
timers that are file descriptors, which an event loop can wait for like any other; elsewhere asyncio's serve.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time

_CLOCK_MONOTONIC = 1  # what `time.perf_counter_ns` reads on Linux
_ABSOLUTE = 1
_BILLION = 1_000_000_000


class Timer:
    """One coroutine at a time may wait. Belongs to the running event loop; close it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._handle: int | None = None
        if sys.platform == "linux":
            self._handle = _create()
            self._loop.add_reader(self._handle, self._fired)

    async def until(self, instant_ns: int) -> None:
        """Returns at `instant_ns` of `time.perf_counter_ns`, or earlier when woken."""
        self._waiter = self._loop.create_future()
        fallback = None
        if self._handle is not None:
            _set(self._handle, max(1, instant_ns))  # 0 would disarm it
        else:
            wait_s = (instant_ns - time.perf_counter_ns()) / _BILLION
            fallback = self._loop.call_later(max(0.0, wait_s), self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if fallback is not None:
                fallback.cancel()

    def wake(self) -> None:
        """End the wait now."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if self._handle is not None:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = None

    def _fired(self) -> None:
        if self._handle is not None:
            try:
                os.read(self._handle, 8)
            except BlockingIOError:  # set anew since it fired
                return
            self.wake()


if sys.version_info >= (3, 13):

    def _create() -> int:
        return os.timerfd_create(_CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _set(handle: int, instant_ns: int) -> None:
        os.timerfd_settime_ns(handle, flags=_ABSOLUTE, initial=instant_ns)

else:

    class _Timerspec(ctypes.Structure):
        """C's `struct itimerspec`: the period, then the first expiry, each in seconds and nanoseconds."""

        _fields_ = (
            ("period_s", ctypes.c_long),
            ("period_ns", ctypes.c_long),
            ("s", ctypes.c_long),
            ("ns", ctypes.c_long),
        )

    _libc = ctypes.CDLL(None, use_errno=True)

    def _create() -> int:
        handle: int = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        return handle

    def _set(handle: int, instant_ns: int) -> None:
        spec = _Timerspec(0, 0, instant_ns // _BILLION, instant_ns % _BILLION)
        if _libc.timerfd_settime(handle, _ABSOLUTE, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
