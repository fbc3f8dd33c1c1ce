"""What an account book says was used: by its keys, also in spans that are no whole hours."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import delete

from tests.fixtures.account_books import BEGINNING_NS, Bookkeeper
from wattserve_server.accounts import usage as module
from wattserve_server.accounts.schema import ACCOUNT_MINUTES, AMOUNTS, FIGURES, MINUTES
from wattserve_server.accounts.store import open_book
from wattserve_server.accounts.usage import By, Sees, Usage, usage
from wattserve_server.errors import InvalidRequest

MINUTE_NS = 60 * 10**9
BEGINNING_S = BEGINNING_NS // 10**9
HOUR = BEGINNING_S // 3600
SUM = By()


def everybody(tenant: str) -> bool:
    return True


def asked(
    place: str, since_s: int, until_s: int, by: By = SUM, sees: Sees = everybody, sees_all: bool = True
) -> Usage:
    book = open_book(place, for_writing=False)
    try:
        return usage(book, since_s, until_s, by, sees, sees_all)
    finally:
        book.close()


def energy(used: Usage) -> dict[tuple[str | None, str | None, int | None], int]:
    at = FIGURES.index("accelerator_uj")
    return {(row.tenant, row.variant, row.hour): row.figures[at] for row in used.rows}


@pytest.fixture
def filled(place: str) -> str:
    """Twelve answers, one each ten minutes."""
    keeper = Bookkeeper(place)
    for at in range(12):
        keeper.answer(uj=2**at, idle_uj=0, tenant=("shop", "ops")[at % 2], variant=("fp32", "int8")[at // 6])
        keeper.writer.write()
        keeper.now_ns += 10 * MINUTE_NS
    keeper.end()
    return place


def test_a_counter_whose_server_is_missing_is_still_counted(tmp_path: Path) -> None:
    keeper = Bookkeeper(str(tmp_path / "book.sqlite3"))
    keeper.answer()
    keeper.end()
    with closing(sqlite3.connect(keeper.place)) as connection:
        connection.execute("UPDATE account_hours SET server = 7")
        connection.commit()
    (counter,) = asked(keeper.place, BEGINNING_S, BEGINNING_S + 3600).counters or ()
    assert (counter.server, counter.amounts[0]) == ("(none)", 130)


def test_rows_by_tenant_variant_and_hour(filled: str) -> None:
    end_s = BEGINNING_S + 7200
    assert energy(asked(filled, BEGINNING_S, end_s)) == {(None, None, None): 2**12 - 1}
    by_hour = asked(filled, BEGINNING_S, end_s, by=By(hour=True))
    assert energy(by_hour) == {(None, None, HOUR): 63, (None, None, HOUR + 1): 4032}
    by_all = asked(filled, BEGINNING_S, end_s, by=By(True, True, True))
    assert energy(by_all) == {
        ("shop", "fp32", HOUR): 21, ("ops", "fp32", HOUR): 42,
        ("shop", "int8", HOUR + 1): 1344, ("ops", "int8", HOUR + 1): 2688,
    }  # fmt: skip
    assert by_all.counters is not None
    (counter,) = by_all.counters
    assert dict(zip(AMOUNTS, counter.amounts, strict=True))["active_uj"] == 4095
    assert (counter.server, counter.counter) == ("server", "accelerator of cpu: simulated")
    assert by_all.sources == ["accelerator of cpu: simulated"]


@pytest.mark.parametrize(
    ("since_min", "until_min", "expected_uj"),
    [(0, 10, 1), (10, 30, 2 + 4), (50, 70, 32 + 64), (5, 120, 4094), (61, 62, 0), (30, 65, 8 + 16 + 32 + 64)],
)
def test_spans_that_are_no_whole_hours(filled: str, since_min: int, until_min: int, expected_uj: int) -> None:
    used = asked(filled, BEGINNING_S + 60 * since_min, BEGINNING_S + 60 * until_min)
    assert sum(energy(used).values()) == expected_uj
    bounds = used.since_unix_s - BEGINNING_S, used.until_unix_s - BEGINNING_S
    assert bounds == (60 * since_min, 60 * until_min)


def test_an_hour_without_minutes_counts_in_the_span_in_which_it_begins(filled: str) -> None:
    later = Bookkeeper(filled, now_ns=BEGINNING_NS + 15 * 24 * 60 * MINUTE_NS)
    later.answer(uj=10**6)
    later.end()
    used = asked(filled, BEGINNING_S + 600, BEGINNING_S + 4000)
    assert (used.since_unix_s, used.until_unix_s) == (BEGINNING_S + 3600, BEGINNING_S + 7200)
    assert sum(energy(used).values()) == 4032
    before = asked(filled, BEGINNING_S - 1800, BEGINNING_S + 600)
    assert sum(energy(before).values()) == 63, "adjoining spans hold it once"
    assert asked(filled, BEGINNING_S + 600, BEGINNING_S + 1200).rows == []


@pytest.mark.parametrize("kept_of", [30, 90])
def test_an_hour_of_which_minutes_have_left_is_a_whole_one(filled: str, kept_of: int) -> None:
    """Whoever else keeps older ones: a server takes out its own, and only while it runs."""
    book = open_book(filled, for_writing=True)
    with book.engine.begin() as connection:
        for table in (MINUTES, ACCOUNT_MINUTES):
            old = table.c.minute < BEGINNING_S // 60 + kept_of
            connection.execute(delete(table).where(old, table.c.minute > BEGINNING_S // 60))
    book.close()
    used = asked(filled, BEGINNING_S + 600, BEGINNING_S + 3600 + 2700)
    until_s = 3600 + 2700 if kept_of == 30 else 7200
    assert (used.since_unix_s, used.until_unix_s) == (BEGINNING_S + 3600, BEGINNING_S + until_s)
    assert sum(energy(used).values()) == (1984 if kept_of == 30 else 4032)


def test_rows_are_bounded_as_they_are_told(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 3)
    used = asked(filled, BEGINNING_S, BEGINNING_S + 3540, by=By(hour=True))
    assert energy(used) == {(None, None, HOUR): 63}
    assert [type(row.hour) for row in used.rows] == [int]


def test_a_tenant_sees_its_own_and_nothing_of_the_meter(filled: str) -> None:
    def sees(tenant: str) -> bool:
        return tenant == "shop"

    used = asked(filled, BEGINNING_S, BEGINNING_S + 7200, by=By(tenant=True), sees=sees, sees_all=False)
    assert set(energy(used)) == {("shop", None, None)}
    assert (used.counters, used.breaks) == (None, [])
    assert used.sources == ["accelerator of cpu: simulated"]
    nobody = asked(filled, BEGINNING_S, BEGINNING_S + 7200, sees=lambda tenant: False, sees_all=False)
    assert nobody.rows == []


def test_breaks_are_told(filled: str) -> None:
    first = Bookkeeper(filled, now_ns=BEGINNING_NS + 300 * MINUTE_NS)
    first.vanish()
    Bookkeeper(filled, now_ns=first.now_ns + MINUTE_NS).end()
    used = asked(filled, BEGINNING_S, BEGINNING_S + 24 * 3600)
    assert [(each.server, each.receipts) for each in used.breaks] == [("server", None)]
    assert asked(filled, BEGINNING_S, BEGINNING_S + 7200).breaks == []


@pytest.mark.parametrize("sees_all", [True, False])
def test_a_bill_says_from_when_on_nothing_was_written(
    place: str, monkeypatch: pytest.MonkeyPatch, sees_all: bool
) -> None:
    """As where the disk is full, or the server was killed and has not come back."""
    keeper = Bookkeeper(place)
    keeper.answer()
    keeper.writer.write()
    keeper.vanish()
    written_s = BEGINNING_S

    def open_breaks(now_s: int, since_s: int = BEGINNING_S) -> list[tuple[str, int, int]]:
        monkeypatch.setattr(module, "time", SimpleNamespace(time_ns=lambda: now_s * 10**9))
        used = asked(place, since_s, BEGINNING_S + 7200, sees_all=sees_all)
        return [
            (each.server, each.from_unix_ns // 10**9, each.until_unix_ns // 10**9)
            for each in used.breaks
            if each.reason == module.NOT_WRITTEN
        ]

    assert open_breaks(written_s + 20) == []
    until_s = written_s + 100
    assert open_breaks(until_s) == [("server", written_s, until_s)]
    assert open_breaks(until_s, until_s + 60) == []
    later_s = BEGINNING_S + 7200
    assert open_breaks(later_s + 50, until_s + 20) == [("server", until_s + 20, later_s)]
    Bookkeeper(place, now_ns=until_s * 10**9).end()
    assert open_breaks(later_s) == []


def test_spans_that_cannot_be(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="not after since_unix_s"):
        asked(filled, BEGINNING_S, BEGINNING_S)
    for since_s, until_s in ((-1, 5), (0, 2**62), (2**62, 2**63 - 1)):
        with pytest.raises(InvalidRequest, match="not between 1970 and 2200"):
            asked(filled, since_s, until_s)
    monkeypatch.setattr(module, "MOST_ROWS", 3)
    with pytest.raises(InvalidRequest, match="more than 3 rows"):
        asked(filled, BEGINNING_S, BEGINNING_S + 7200, by=By(True, True, True))
    assert asked(filled, BEGINNING_S - 10**6, BEGINNING_S - 10**5).rows == []
