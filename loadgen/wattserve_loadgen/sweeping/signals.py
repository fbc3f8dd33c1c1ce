"""What Ctrl-C and SIGTERM do to a sweep."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does. Of the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def first_signal(then: Callable[[], None]) -> Iterator[None]:
    """The first signal calls `then` in the running event loop; the next one raises KeyboardInterrupt."""
    loop = asyncio.get_running_loop()

    def release() -> None:
        for number in _NUMBERS:
            if loop.remove_signal_handler(number):
                signal.signal(number, signal.default_int_handler)

    def on_first() -> None:
        release()
        then()

    for number in _NUMBERS:
        loop.add_signal_handler(number, on_first)
    try:
        yield
    finally:
        release()
