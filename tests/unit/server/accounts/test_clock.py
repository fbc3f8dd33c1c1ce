"""The wall clock is set while a server keeps an account book: hours and budgets follow it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fixtures.account_books import body_of, finished
from wattserve_server.account_book import AccountBook
from wattserve_server.accounts.schema import HOURS
from wattserve_server.accounts.store import open_book
from wattserve_server.config import ServerConfig
from wattserve_server.engine.book import Run
from wattserve_server.service.keys import ApiKey, Keys

HOUR_NS = 3600 * 10**9


async def test_what_is_used_counts_in_the_hour_that_the_clock_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = str(tmp_path / "book.sqlite3")
    begun_ns = 1_800_000_000 * 10**9
    now_ns = begun_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    book = AccountBook(ServerConfig(account_book=place))
    book.begin(Run(started_unix_ns=begun_ns, started_ns=0), body_of, dict)
    key = ApiKey("0" * 12, "0" * 64, "shop", ("predict",), budgets=("hard 500 J/hour",))
    budgets = await book.budgets(lambda: Keys([key]))
    book.put(finished("one", 100, 0, "shop"))
    assert budgets.spent_uj("shop", "hour") == 100
    now_ns += 3 * HOUR_NS
    book.put(finished("two", 50, 0, "shop"))
    assert "the clock was set forward by 10800.0 s" in caplog.text
    assert budgets.spent_uj("shop", "hour") == 50
    now_ns -= HOUR_NS
    book.put(finished("three", 7, 0, "shop"))
    assert "the clock was set back by 3600.0 s" in caplog.text
    book.close()
    read = open_book(place, for_writing=False)
    with read.reading() as connection:
        found = {row.hour: row.accelerator_uj for row in connection.execute(HOURS.select())}
    read.close()
    assert found == {begun_ns // HOUR_NS + hours: uj for hours, uj in ((0, 100), (3, 50), (2, 7))}
