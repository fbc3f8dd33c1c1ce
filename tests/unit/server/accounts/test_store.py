"""Places that hold no account book, or a damaged one: refused with what to do, and left as they are."""

from __future__ import annotations

import socket
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from tests.fixtures.account_books import Bookkeeper
from tests.fixtures.postgres import Postgres
from wattserve_server.accounts.store import default_place, open_book
from wattserve_server.errors import ConfigError

_WELCOME = b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I"  # PostgreSQL's: no password needed, ready


def test_each_port_has_a_file_in_the_state_directory() -> None:
    assert default_place(50051, {"XDG_STATE_HOME": "/state"}) == "/state/wattserve/account-book-50051.sqlite3"
    assert default_place(1, {}).endswith("/.local/state/wattserve/account-book-1.sqlite3")
    with pytest.raises(ConfigError, match="--port is 0"):
        default_place(0, {})


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    place = tmp_path / "new" / "book.sqlite3"
    keeper = Bookkeeper(str(place))
    assert keeper.book.is_new
    keeper.end()
    assert not open_book(str(place), for_writing=False).is_new
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_by_another_name_is_one_file(tmp_path: Path) -> None:
    place = tmp_path / "book.sqlite3"
    keeper = Bookkeeper(str(place))
    (tmp_path / "symbolic").symlink_to(place)
    (tmp_path / "hard").hardlink_to(place)
    for name, why in (("symbolic", "another server writes to it"), ("hard", "several names")):
        with pytest.raises(ConfigError, match=why):
            open_book(str(tmp_path / name), for_writing=True)
    keeper.end()
    (tmp_path / "hard").unlink()
    open_book(str(tmp_path / "symbolic"), for_writing=True).close()


def test_a_database_that_says_nothing_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattserve_server.accounts.postgres.ANSWER_S", 0.2)
    listener = socket.create_server(("127.0.0.1", 0))

    def let_in_and_be_silent() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(_WELCOME)
            while connection.recv(1000):
                pass

    silent = threading.Thread(target=let_in_and_be_silent)
    silent.start()
    place = f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/book?sslmode=disable&gssencmode=disable"
    said = r"--account-book postgresql://me@127\.0\.0\.1.*: the database has not answered for 0\.2 s"
    with listener, pytest.raises(ConfigError, match=said):
        open_book(place, for_writing=True)
    silent.join()


def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "book.sqlite3"
    keeper = Bookkeeper(str(place))
    for _ in range(500):
        keeper.answer(request_id="r" * 100)
    keeper.end()
    content = bytearray(place.read_bytes())
    content[8192:20480] = b"\xff" * 12288
    place.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is damaged|malformed") as caught:
        open_book(str(place), for_writing=True)
    assert ".recover" in str(caught.value)
    assert place.read_bytes() == bytes(content)


@pytest.mark.parametrize("for_writing", [True, False])
def test_files_of_something_else_are_refused(tmp_path: Path, for_writing: bool) -> None:
    text = tmp_path / "text"
    text.write_text("no database at all, and longer than the header of one\n" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        open_book(str(text), for_writing=for_writing)
    other = tmp_path / "other.sqlite3"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE hours (name TEXT)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(ConfigError, match="holds something else"):
        open_book(str(other), for_writing=for_writing)
    assert for_writing or other.read_bytes() == before


def test_reading_makes_no_file_where_the_book_was_removed(tmp_path: Path) -> None:
    place = tmp_path / "a book?mode=memory#1.sqlite3"
    Bookkeeper(str(place)).end()
    book = open_book(str(place), for_writing=False)
    place.unlink()
    with pytest.raises(ConfigError, match="was removed or replaced"), book.reading():
        pass
    with pytest.raises(DBAPIError, match="unable to open"):
        book.engine.connect()
    assert not place.exists()


def test_an_empty_file_that_becomes_a_book_is_its_owners_alone(tmp_path: Path) -> None:
    place = tmp_path / "book.sqlite3"
    place.touch(mode=0o644)
    Bookkeeper(str(place)).end()
    assert place.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("for_writing", [True, False])
@pytest.mark.parametrize(
    ("change", "lost"),
    [("DROP TABLE breaks", "the table breaks"), ("ALTER TABLE hours RENAME tokens TO words", "hours.tokens")],
)
def test_a_book_that_lost_a_part_is_refused(
    tmp_path: Path, change: str, lost: str, for_writing: bool
) -> None:
    place = tmp_path / "book.sqlite3"
    Bookkeeper(str(place)).end()
    with closing(sqlite3.connect(place)) as connection:
        connection.execute(change)
    with pytest.raises(ConfigError, match=f"lacks {lost}: something else has changed it; put a backup"):
        open_book(str(place), for_writing=for_writing)


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        open_book(str(tmp_path / "none"), for_writing=False)
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="holds no account book"):
        open_book(str(tmp_path / "empty"), for_writing=False)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        open_book(str(tmp_path / "file" / "book"), for_writing=True)
    with pytest.raises(ConfigError, match="mysql://"):
        open_book("mysql://somewhere/db", for_writing=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        open_book("://secret@", for_writing=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        open_book("postgresql://me:secret@here:port/db", for_writing=True)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_id_is_refused(postgres: Postgres, encoding: str) -> None:
    with pytest.raises(ConfigError, match=rf"has the encoding {encoding}; give one that was made with"):
        open_book(postgres.new_database(encoding), for_writing=True)


def test_a_database_that_is_away_is_told_without_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        open_book("postgresql://me:secret@127.0.0.1:1/db", for_writing=True)
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
