"""A log that cannot be flooded: of each kind of trouble a few lines a minute, and how many more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

MOST = 5  # of one kind in a period
PERIOD_S = 60.0
KINDS = 500  # that are told apart; then all are forgotten


@dataclass(slots=True)
class _Kind:
    since_s: float
    shown: int = 0
    left_out: int = 0


class RareLines(logging.Filter):
    """For a handler. A kind is who logs which message, before its values are put in, with which error."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.left_out = 0  # lines, since the start
        self._clock = clock
        self._kinds: dict[tuple[str, str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:  # of what the operator does, such as each variant that is loaded
            return True
        now_s = self._clock()
        error = record.exc_info[0] if record.exc_info else None
        key = (record.name, str(record.msg), "" if error is None else error.__name__)
        kind = self._kinds.get(key)
        if kind is None or now_s - kind.since_s >= PERIOD_S:
            if kind is not None and kind.left_out:
                record.msg = f"{record.msg} (and {kind.left_out} more such lines before it)"
            if len(self._kinds) >= KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(now_s)
        if kind.shown >= MOST:
            kind.left_out += 1
            self.left_out += 1
            return False
        kind.shown += 1
        return True


RARE_LINES = RareLines()  # of the process
