"""A log that cannot be flooded."""

from __future__ import annotations

import logging

import pytest

from wattserve_server.rare_lines import KINDS, MOST, PERIOD_S, RareLines


class Log:
    """What a handler with the filter shows, by a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.rare = RareLines(lambda: self.now_s)
        self.shown: list[str] = []

    def say(
        self, message: str, *values: object, error: Exception | None = None, level: int = logging.WARNING
    ) -> None:
        exc_info = (type(error), error, None) if error else None
        record = logging.LogRecord("who", level, "", 0, message, values, exc_info)
        if self.rare.filter(record):
            self.shown.append(record.getMessage())


@pytest.fixture
def log() -> Log:
    return Log()


def test_of_one_kind_a_few_lines_are_shown_and_the_others_counted(log: Log) -> None:
    for number in range(100):
        log.say("call %d failed", number)
    assert log.shown == [f"call {number} failed" for number in range(MOST)]
    assert log.rare.left_out == 100 - MOST
    log.now_s = PERIOD_S
    log.say("call %d failed", 7)
    assert log.shown[-1] == f"call 7 failed (and {100 - MOST} more such lines before it)"


def test_what_is_no_trouble_is_all_shown(log: Log) -> None:
    for number in range(MOST + 1):
        log.say("loaded variant %d", number, level=logging.INFO)
    assert len(log.shown) == MOST + 1


def test_kinds_do_not_hide_each_other(log: Log) -> None:
    for _ in range(MOST + 1):
        log.say("call failed")
    log.say("call failed", error=ValueError())
    log.say("another call failed")
    assert len(log.shown) == MOST + 2


def test_what_is_kept_of_them_is_bounded(log: Log) -> None:
    for number in range(3 * KINDS):
        log.say(f"call {number} failed")
    assert len(log.rare._kinds) <= KINDS
    assert len(log.shown) == 3 * KINDS
