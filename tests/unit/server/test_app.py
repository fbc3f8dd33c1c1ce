"""What the server's start decides by itself."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from wattserve_server.app import _budgets_need, draining_signals
from wattserve_server.config import ServerConfig


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def do_something(number: int, frame: FrameType | None) -> None:
    raise AssertionError


@pytest.mark.parametrize("handled", [signal.SIG_DFL, do_something])
def test_a_closed_terminal_drains_the_server(handled: signal.Handlers) -> None:
    signal.signal(signal.SIGHUP, handled)
    assert draining_signals() == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def test_under_nohup_it_does_not() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert draining_signals() == [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "--account-book"),
        ({"account_book": "b", "meter": "none"}, "--meter"),
        ({"account_book": "b"}, ""),
    ],
)
def test_budgets_need_a_book_and_a_meter(settings: dict[str, Any], words: str) -> None:
    assert words in (needed := _budgets_need(ServerConfig(**settings)))
    assert bool(needed) == bool(words)
