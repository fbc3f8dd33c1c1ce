"""What a server's account book holds after answers, kills, faults and long outages."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import Table, func, select

from tests.fixtures.account_books import BEGINNING_NS, COUNTER, Bookkeeper, body_of, finished, reader
from wattserve_server.accounts import schema
from wattserve_server.accounts.batch import LEFT_OUT, NOT_ENDED
from wattserve_server.accounts.rollups import count
from wattserve_server.accounts.schema import (
    ACCOUNT_HOURS,
    ACCOUNT_MINUTES,
    AMOUNTS,
    BREAKS,
    CHECKPOINTS,
    FIGURES,
    HOURS,
    INSTANCES,
    MINUTES,
    RECEIPTS,
)
from wattserve_server.accounts.store import open_book
from wattserve_server.energy.receipt import Outcome
from wattserve_server.errors import ConfigError

SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


def rows(place: str, table: Table) -> list[Any]:
    book = open_book(place, for_writing=False)
    try:
        with book.reading() as connection:
            return list(connection.execute(select(table)).all())
    finally:
        book.close()


def sums(place: str, table: Table) -> dict[str, int]:
    book = open_book(place, for_writing=False)
    names = FIGURES if table in (MINUTES, HOURS) else AMOUNTS
    try:
        with book.reading() as connection:
            found = connection.execute(select(*(func.sum(table.c[name]) for name in names))).one()
            return {name: int(value or 0) for name, value in zip(names, found, strict=True)}
    finally:
        book.close()


def test_receipts_are_found_after_a_restart(place: str) -> None:
    first = Bookkeeper(place)
    mine = first.answer(request_id="order-7")
    other = first.answer(tenant="", request_id="order-7")
    first.end()
    second = Bookkeeper(place, now_ns=first.now_ns + HOUR_NS)
    lookup = reader(place)
    stored = lookup.receipt(mine.receipt_id)
    assert stored == ("shop", body_of(mine))
    assert lookup.receipt("none") is None
    assert lookup.receipt("\0") is None
    both = lookup.of_request("order-7", 10, lambda tenant: True)
    assert [each.body for each in both] in ([body_of(mine), body_of(other)], [body_of(other), body_of(mine)])
    assert len(lookup.of_request("order-7", 1, lambda tenant: True)) == 1
    assert lookup.of_request("order-7", 10, lambda tenant: tenant == "shop") == [("shop", body_of(mine))]
    lookup.close()
    second.end()


def test_receipts_are_found_on_every_shelf(place: str) -> None:
    """Of two instances, the first of which begins behind what retention took out."""
    first = Bookkeeper(place)
    first.scribe.written = 3 * schema.SHELF_SIZE - 2  # two on that shelf, two on the next
    for _ in range(4):
        first.answer(request_id="order-7")
    first.end()
    second = Bookkeeper(place, now_ns=first.now_ns + HOUR_NS)
    newest = second.answer(request_id="order-7")
    second.end()
    lookup = reader(place)
    for keeper in (first, second):
        for receipt in keeper.receipts:
            assert lookup.receipt(receipt.receipt_id) == ("shop", body_of(receipt))
    assert lookup.receipt(f"{first.instance_id}-none") is None
    found = lookup.of_request("order-7", 10, lambda tenant: True)
    assert len(found) == 5
    assert found[0].body == body_of(newest)
    lookup.close()


def test_rollups_and_ledgers_agree_with_the_receipts(place: str) -> None:
    keeper = Bookkeeper(place)
    for at in range(20):
        keeper.answer(uj=100 + at, tenant=f"tenant-{at % 3}", variant=("fp32", "int8")[at % 2])
        keeper.now_ns += 17 * SECOND_NS
        if at % 4 == 0:
            keeper.writer.write()
    keeper.ledger.meter(77)  # what is pending when it ends
    keeper.end()
    amounts = sums(place, ACCOUNT_HOURS)
    assert amounts == sums(place, ACCOUNT_MINUTES)
    assert amounts["measured_uj"] == keeper.ledger.measured_uj
    figures = sums(place, HOURS)
    assert figures == sums(place, MINUTES)
    assert figures["accelerator_uj"] == amounts["active_uj"] == keeper.ledger.active_uj
    assert figures["accelerator_idle_uj"] == amounts["idle_shared_uj"] == 200
    assert (figures["requests"], figures["sequences"], figures["tokens"]) == (20, 20, 100)
    assert len(rows(place, HOURS)) == 6
    assert {row.counter for row in rows(place, ACCOUNT_HOURS)} == {f"{COUNTER}: simulated"}


def by_hour(place: str) -> dict[int, tuple[int, int]]:
    """Of each hour that the test has lived through: what receipts hold, and what the counters charged."""
    hours = range(BEGINNING_NS // HOUR_NS, BEGINNING_NS // HOUR_NS + 3)
    charged = {row.hour: row.active_uj for row in rows(place, ACCOUNT_HOURS)}
    held = {row.hour: row.accelerator_uj for row in rows(place, HOURS)}
    return {at: (held.get(hour, 0), charged.get(hour, 0)) for at, hour in enumerate(hours)}


@pytest.mark.parametrize("is_away", [False, True])
def test_receipts_and_ledgers_agree_hour_by_hour(
    place: str, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """Also where an hour ends between two transactions, or while the book is away."""

    def away(*given: object) -> None:
        raise OSError("away")

    keeper = Bookkeeper(place, now_ns=BEGINNING_NS + HOUR_NS - 500 * 10**6)
    with monkeypatch.context() as broken:
        if is_away:
            broken.setattr(keeper.scribe, "_put", away)
        keeper.answer(uj=100)
        keeper.writer.write()
        keeper.answer(uj=20)
        keeper.now_ns += SECOND_NS
        keeper.answer(uj=3)
        keeper.writer.write()
        keeper.now_ns += HOUR_NS
        keeper.answer(uj=4)
    keeper.end()
    assert by_hour(place) == {0: (120, 120), 1: (3, 3), 2: (4, 4)}


def test_gains_are_of_their_hour_while_the_database_does_not_answer(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody asks for anything: the counters go on."""
    keeper, hangs, is_back = Bookkeeper(place), threading.Event(), threading.Event()
    write = keeper.scribe.write

    def hang(attempt: Any) -> None:
        hangs.set()
        is_back.wait(10)
        write(attempt)

    monkeypatch.setattr(keeper.scribe, "write", hang)
    keeper.writer.start()
    assert hangs.wait(10)
    for uj in (7, 11):
        keeper.ledger.meter(uj)
        keeper.ledger.to_idle(uj)
        keeper.now_ns += HOUR_NS
        time.sleep(1.2)  # the edge is seen
    is_back.set()
    keeper.writer.close()
    assert [(row.hour - BEGINNING_NS // HOUR_NS, row.idle_uj) for row in rows(place, ACCOUNT_HOURS)] == [
        (0, 7),
        (1, 11),
    ]


def test_figures_of_receipts_of_all_kinds() -> None:
    def figures(uj: int | None = 100, **given: Any) -> dict[str, int]:
        counted = [0] * len(FIGURES)
        count(counted, finished("r", uj, 10, **given))
        return {name: value for name, value in zip(FIGURES, counted, strict=True) if value}

    plain = {"requests": 1, "sequences": 1, "tokens": 5, "accelerator_uj": 100, "accelerator_idle_uj": 10}
    assert figures() == plain
    assert figures(outcome=Outcome.FAILED) == plain | {"failed": 1}
    assert figures(outcome=Outcome.CANCELLED) == plain | {"cancelled": 1}
    assert figures(output_tokens=7) == plain | {"tokens": 12, "output_tokens": 7}
    assert figures(output_tokens=1) == plain | {"tokens": 6, "output_tokens": 1}
    assert figures(host_uj=30) == plain | {"host_uj": 30, "host_idle_uj": 10}
    # One counter's joules are on the bill, although the sum is not known.
    known = {"requests": 1, "unknown": 1, "sequences": 1, "tokens": 5}
    assert figures(uj=None, host_uj=30) == known | {"host_uj": 30, "host_idle_uj": 10}


def test_what_tenants_spent_is_told_by_hour_and_server(place: str) -> None:
    keeper = Bookkeeper(place)
    for _ in range(3):
        keeper.answer(uj=100, idle_uj=10)
        keeper.answer(uj=5, idle_uj=0, tenant="other")
        keeper.now_ns += 40 * MINUTE_NS
        keeper.writer.write()
    keeper.end()
    lookup, hour = reader(place), BEGINNING_NS // HOUR_NS
    assert lookup.spent_by(hour, hour + 1) == {("server", "shop"): 220, ("server", "other"): 10}
    assert lookup.spent_by(hour + 1, hour + 2) == {("server", "shop"): 110, ("server", "other"): 5}
    assert lookup.spent_by(hour + 2, hour + 9) == {}
    lookup.close()


def test_a_server_that_is_killed_leaves_a_break_with_its_bounds(place: str) -> None:
    first = Bookkeeper(place)
    first.answer()
    first.now_ns += SECOND_NS
    first.writer.write()
    first.answer()  # never written
    first.vanish()
    second = Bookkeeper(place, now_ns=first.now_ns + MINUTE_NS)
    second.end()
    (found,) = rows(place, BREAKS)
    bounds = first.now_ns, first.now_ns + MINUTE_NS
    assert (found.from_unix_ns, found.until_unix_ns, found.reason) == (*bounds, NOT_ENDED)
    assert len(rows(place, RECEIPTS)) == 1
    Bookkeeper(place).end()
    assert len(rows(place, BREAKS)) == 1  # both ended by themselves


def test_a_clock_that_was_set_back_is_told_and_keeps_the_sums(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = Bookkeeper(place)
    first.answer()
    first.end()
    second = Bookkeeper(place, now_ns=BEGINNING_NS - HOUR_NS)
    second.answer()
    second.now_ns -= HOUR_NS  # it falls on
    second.answer()
    second.end()
    assert "the clock was set back" in caplog.text
    assert sums(place, HOURS)["accelerator_uj"] == 300
    written = [row.written_unix_ns for row in rows(place, INSTANCES)]
    assert written[1] == BEGINNING_NS - 2 * HOUR_NS


def test_what_cannot_be_written_waits_and_is_written_once(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Bookkeeper(place)
    keeper.answer()

    def away(*given: object) -> None:
        raise OSError("the disk is full")

    def unwritten() -> list[str]:
        return [row.receipt_id for row in keeper.writer.unwritten(lambda each: each.tenant == "shop")]

    with monkeypatch.context() as broken:
        broken.setattr(keeper.scribe, "_insert_receipts", away)
        keeper.writer.write()
        keeper.answer()
        assert sorted(unwritten()) == sorted(receipt.receipt_id for receipt in keeper.receipts)
        keeper.writer.write()
        assert sorted(unwritten()) == sorted(receipt.receipt_id for receipt in keeper.receipts)
    status = keeper.writer.status
    assert (status.is_writing, status.written, status.waiting) == (False, 0, 2)
    assert "the disk is full" in caplog.text
    keeper.writer.write()
    assert (keeper.writer.status.is_writing, keeper.writer.status.written) == (True, 2)
    assert unwritten() == []
    assert "is written again" in caplog.text
    keeper.end()
    assert sums(place, HOURS)["accelerator_uj"] == keeper.ledger.active_uj == 200
    assert [row.seq for row in rows(place, RECEIPTS)] == [1, 2]


def test_a_transaction_of_unknown_fate_is_not_written_twice(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Bookkeeper(place)
    keeper.answer()

    def lost(attempt: object) -> None:
        raise OSError("the connection was lost after the commit")

    with monkeypatch.context() as broken:
        broken.setattr(keeper.scribe, "_wrote", lost)
        keeper.writer.write()
    assert not keeper.writer.status.is_writing
    keeper.answer()
    while not keeper.writer.status.is_writing:  # the lost connection may hold the name a moment
        keeper.writer.write()
    keeper.end()
    assert sums(place, HOURS)["accelerator_uj"] == 200
    assert [row.seq for row in rows(place, RECEIPTS)] == [1, 2]


def test_what_finds_no_room_to_wait_is_in_the_sums_and_told(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Bookkeeper(place, most_waiting=3)

    def away(*given: object) -> None:
        raise OSError("away")

    with monkeypatch.context() as broken:
        broken.setattr(keeper.scribe, "_put", away)
        for _ in range(5):
            keeper.answer()
            keeper.writer.write()
            keeper.now_ns += SECOND_NS
    status = keeper.writer.status
    assert (status.waiting, status.left_out) == (3, 2)
    keeper.end()
    assert len(rows(place, RECEIPTS)) == 3
    assert sums(place, HOURS)["accelerator_uj"] == 500
    (found,) = rows(place, BREAKS)
    assert (found.reason, found.receipts) == (LEFT_OUT, 2)
    assert found.from_unix_ns == BEGINNING_NS + 3 * SECOND_NS


def test_old_receipts_leave_and_their_sums_stay(place: str) -> None:
    keeper = Bookkeeper(place, kept_ns=HOUR_NS)
    keeper.answer()
    keeper.now_ns += 50 * MINUTE_NS
    keeper.answer()
    keeper.writer.write()
    keeper.now_ns += 20 * MINUTE_NS
    keeper.writer.write()
    assert keeper.writer.status.removed == 1
    keeper.end()
    assert [row.seq for row in rows(place, RECEIPTS)] == [2]
    assert {(row.seq, row.kind) for row in rows(place, CHECKPOINTS)} >= {(1, "retention"), (2, "head")}
    assert sums(place, HOURS)["requests"] == 2


def test_no_more_receipts_are_kept_than_there_is_room_for(place: str) -> None:
    keeper = Bookkeeper(place, kept_bytes=4000)
    for _ in range(50):
        keeper.answer()
    keeper.now_ns += MINUTE_NS
    keeper.writer.write()
    kept = len(rows(place, RECEIPTS))
    assert 0 < kept < 15
    assert keeper.writer.status.removed == 50 - kept
    assert keeper.writer.status.kept_bytes <= 4000
    keeper.end()
    again = Bookkeeper(place, now_ns=keeper.now_ns, kept_bytes=4000)  # what it counts is what is there
    assert again.writer.status.kept_bytes == keeper.writer.status.kept_bytes
    again.end()


def test_a_clock_that_is_set_back_while_it_runs_keeps_retention_going(place: str) -> None:
    keeper = Bookkeeper(place, now_ns=BEGINNING_NS + 400 * 24 * HOUR_NS, kept_ns=HOUR_NS)
    keeper.answer()
    keeper.writer.write()
    keeper.now_ns = BEGINNING_NS
    removed = []
    for _ in range(3):
        keeper.answer()
        keeper.writer.write()
        removed.append(keeper.scribe.removed)
        keeper.now_ns += 45 * MINUTE_NS
    keeper.end()
    assert removed == [1, 1, 2]
    assert {row.hour for row in rows(place, HOURS)} == {
        BEGINNING_NS // HOUR_NS + hours for hours in (0, 1, 400 * 24)
    }


def test_minutes_leave_after_two_weeks_and_hours_stay(place: str) -> None:
    keeper = Bookkeeper(place)
    keeper.answer()
    keeper.writer.write()
    keeper.now_ns += 15 * 24 * HOUR_NS
    keeper.answer()
    keeper.end()
    assert sums(place, MINUTES)["requests"] == 1
    assert sums(place, HOURS)["requests"] == 2
    assert sums(place, ACCOUNT_MINUTES)["active_uj"] == 100


def test_two_servers_do_not_write_under_one_name(place: str) -> None:
    first = Bookkeeper(place)
    with pytest.raises(ConfigError, match=r"another server writes to it"):
        Bookkeeper(place)
    if place.startswith("postgresql"):
        other = Bookkeeper(place, name="other")
        first.answer()
        other.answer()
        first.end()
        other.end()
        assert sums(place, HOURS)["requests"] == 2
        assert len(rows(place, HOURS)) == 2
    else:
        first.end()
    Bookkeeper(place).end()  # the name is free again


def test_receipts_of_a_book_of_version_1_are_found(place: str) -> None:
    keeper = Bookkeeper(place)
    mine = keeper.answer(request_id="order-7")
    keeper.end()
    book = open_book(place, for_writing=True)
    with book.engine.begin() as connection:  # as that one was
        for statement in (
            "DROP INDEX receipts_by_id",
            "DROP INDEX receipts_by_request",
            "CREATE UNIQUE INDEX receipts_by_id ON receipts (receipt_id)",
            "CREATE INDEX receipts_by_request ON receipts (request_id) WHERE request_id != ''",
            "UPDATE book SET schema_version = 1",
        ):
            connection.exec_driver_sql(statement)
    book.close()
    with pytest.raises(ConfigError, match="is of an older Wattserve"):
        reader(place)
    Bookkeeper(place).end()
    lookup = reader(place)
    assert lookup.receipt(mine.receipt_id) == ("shop", body_of(mine))
    assert [each.body for each in lookup.of_request("order-7", 10, bool)] == [body_of(mine)]
    lookup.close()
    book = open_book(place, for_writing=False)
    named = (
        "sql FROM sqlite_master WHERE name" if book.is_sqlite else "indexdef FROM pg_indexes WHERE indexname"
    )
    with book.reading() as connection:
        made = connection.exec_driver_sql(f"SELECT {named} = 'receipts_by_id'").scalar()
    assert f"seq / {schema.SHELF_SIZE}" in str(made)
    book.close()


def test_an_older_book_is_brought_to_todays_tables(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Bookkeeper(place)
    keeper.answer()
    keeper.end()

    def step(connection: Any) -> None:
        connection.exec_driver_sql("ALTER TABLE servers ADD COLUMN place TEXT")

    with monkeypatch.context() as newer:
        newer.setattr(schema, "STEPS", (*schema.STEPS, step))
        newer.setattr("wattserve_server.accounts.store.STEPS", schema.STEPS)
        with pytest.raises(ConfigError, match="is of an older Wattserve"):
            open_book(place, for_writing=False)
        open_book(place, for_writing=True).close()
        open_book(place, for_writing=False).close()
    with pytest.raises(ConfigError, match="was written by a newer Wattserve"):
        open_book(place, for_writing=True)
    with pytest.raises(ConfigError, match="was written by a newer Wattserve"):
        open_book(place, for_writing=False)
