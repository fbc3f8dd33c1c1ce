"""A full disk, a database that goes away, a writer that is killed: what is lost is bounded, and told."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from tests.fixtures.account_books import Bookkeeper, alarms, checked
from tests.fixtures.postgres import Postgres
from wattserve_server.accounts.schema import ACCOUNT_HOURS, BREAKS, HOURS, RECEIPTS
from wattserve_server.accounts.store import open_book
from wattserve_server.errors import ConfigError

KILLS = 10
OPENED_WITHOUT_ROOM = """
import resource, sys
from wattserve_server.accounts.store import open_book
from wattserve_server.errors import ConfigError
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
try:
    open_book(sys.argv[1], for_writing=True)
except ConfigError as error:
    print(error)
"""


def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = str(tmp_path / "book.sqlite3")
    keeper = Bookkeeper(place)
    keeper.answer()
    keeper.writer.write()
    connection = keeper.scribe._connected()
    with connection.begin():
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    for _ in range(200):
        keeper.answer(request_id="r" * 100)
    keeper.writer.write()
    assert not keeper.writer.status.is_writing
    assert "disk is full" in caplog.text
    assert keeper.writer.status.waiting == 200
    keeper.writer.write()  # with a new connection, which has no bound: there is room again
    assert (keeper.writer.status.waiting, keeper.writer.status.written) == (0, 201)
    keeper.end()
    assert holds(place) == (201, 20100, 20100)


def test_no_room_at_the_start(tmp_path: Path) -> None:
    opened = subprocess.run(
        [sys.executable, "-c", OPENED_WITHOUT_ROOM, str(tmp_path / "book.sqlite3")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "make sure that its disk has room" in opened.stdout


@pytest.mark.parametrize("other", ["nothing", "an older copy"])
def test_a_file_that_is_away_while_it_is_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    path, away = tmp_path / "book.sqlite3", tmp_path / "away"
    keeper = Bookkeeper(str(path))
    keeper.answer()
    keeper.writer.write()
    path.rename(away)
    if other == "an older copy":
        shutil.copy(away, path)
    keeper.answer()
    keeper.writer.write()
    status = keeper.writer.status
    assert (status.is_writing, status.written, status.waiting) == (False, 1, 1)
    assert "was removed or replaced while in use" in caplog.text
    with pytest.raises(ConfigError, match="was removed or replaced"), keeper.book.reading():
        pass
    assert path.exists() == (other == "an older copy")  # nobody made an empty one
    away.rename(path)
    keeper.end()
    assert holds(str(path)) == (2, 200, 200)


def holds(place: str) -> tuple[int, int, int]:
    """Receipts, and microjoules of tenants and of counters."""
    book = open_book(place, for_writing=False)
    with book.reading() as connection:
        asked = (
            func.count(RECEIPTS.c.seq),
            func.sum(HOURS.c.accelerator_uj),
            func.sum(ACCOUNT_HOURS.c.active_uj),
        )
        found = [connection.execute(select(each)).scalar() or 0 for each in asked]
    book.close()
    assert alarms(checked(place)) == []
    receipts, of_tenants, of_counters = map(int, found)
    return receipts, of_tenants, of_counters


def writing_to(place: str) -> Bookkeeper:
    """One answer is in the book."""
    keeper = Bookkeeper(place)
    keeper.writer.start()
    keeper.answer()
    while not keeper.writer.status.written:
        time.sleep(0.05)
    return keeper


def test_a_database_that_is_killed_and_comes_back(postgres: Postgres) -> None:
    place = postgres.new_database()
    keeper = writing_to(place)
    postgres.kill()
    try:
        for _ in range(100):
            keeper.answer()
        while keeper.writer.status.is_writing:
            time.sleep(0.05)
        assert keeper.writer.status.waiting == 100
    finally:
        postgres.start()
    while keeper.writer.status.waiting:
        time.sleep(0.05)
    keeper.writer.close()
    assert holds(place) == (101, 10100, 10100)


def test_a_database_that_freezes_and_comes_back(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("wattserve_server.accounts.postgres.ANSWER_S", 0.5)
    place = postgres.new_database()
    keeper = writing_to(place)
    with postgres.frozen():
        keeper.answer()
        while keeper.writer.status.is_writing:
            time.sleep(0.05)
        assert "the database has not answered for 0.5 s" in caplog.text
        assert keeper.writer.status.waiting == 1
    while keeper.writer.status.waiting:
        time.sleep(0.05)
    keeper.writer.close()
    assert holds(place) == (2, 200, 200)


def test_who_lost_the_name_meanwhile_writes_no_more(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    place = postgres.new_database()
    first = Bookkeeper(place)
    first.answer()
    first.scribe.close()  # its connection was lost
    second = Bookkeeper(place)
    first.writer.write()
    assert "another server writes to it under the name" in caplog.text
    second.end()
    first.writer.write()
    assert first.writer.status.written == 1
    first.end()


LOADED = """
import sys, time
from tests.fixtures.account_books import Bookkeeper

keeper = Bookkeeper(sys.argv[1], now_ns=time.time_ns())
keeper.writer._unix_ns = time.time_ns
keeper.writer.start()
while True:
    keeper.answer()
    written = keeper.writer.status.written
    print(len(keeper.receipts), written, flush=True)
    time.sleep(0.0005)
"""


@pytest.mark.long
def test_a_writer_that_is_killed_ten_times_under_load(tmp_path: Path) -> None:
    place = str(tmp_path / "book.sqlite3")
    told = 0  # receipts of which a writer said that they are in the book
    for at in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", LOADED, place], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        written = 0
        for line in child.stdout:
            put, written = map(int, line.split())
            if written and put > written + 100 + 37 * at:  # somewhere between two transactions
                break
        child.kill()
        rest = child.stdout.read().splitlines()
        child.wait()
        told += max([written, *(int(line.split()[1]) for line in rest if line.count(" ") == 1)])
    receipts, of_tenants, of_counters = holds(place)
    assert receipts >= told
    assert of_tenants == 100 * receipts
    assert of_counters >= of_tenants  # a ledger may be a moment ahead of the receipts
    Bookkeeper(place, now_ns=time.time_ns()).end()
    book = open_book(place, for_writing=False)
    with book.reading() as connection:
        assert len(connection.execute(select(BREAKS)).all()) == KILLS
    book.close()
