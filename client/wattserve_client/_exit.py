"""Ends the streams that a program leaves open, before the interpreter does.

A stream that is cancelled while the interpreter takes itself apart can wait for ever for a lock of grpc's
that a thread, frozen by then, still holds. At this point the threads still run.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")

_streams: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


def closed_at_exit(stream: Generator[T, None, None]) -> Generator[T, None, None]:
    """The same stream, which is closed at the end of the program if it is still there."""
    _streams.add(stream)
    return stream


@atexit.register
def _close() -> None:
    for stream in list(_streams):
        with contextlib.suppress(ValueError):  # another thread is inside it
            stream.close()
