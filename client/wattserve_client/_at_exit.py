"""Streams that a program leaves open are closed at its end, while its threads still run."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Generator
from typing import Any, TypeVar

R = TypeVar("R")

_streams: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


def closed_at_exit(stream: Generator[R, None, None]) -> Generator[R, None, None]:
    """The same stream, which is closed at the end of the program if it is still open.

    A stream that is cancelled while the interpreter takes itself apart can wait for ever for a lock of
    grpc's that a thread, frozen by then, still holds. When `_close_streams` is called, the threads still run.
    """
    _streams.add(stream)
    return stream


@atexit.register
def _close_streams() -> None:
    for stream in list(_streams):
        with contextlib.suppress(ValueError):  # another thread is inside it
            stream.close()
