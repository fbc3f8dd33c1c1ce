"""Where an account book lies: opened, checked, brought to today's tables, locked for the one who writes.

SQLite: a file, in WAL mode, which others may read meanwhile. PostgreSQL: a URL; several servers write to one,
each under a name of its own.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Table,
    case,
    create_engine,
    event,
    false,
    func,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from wattserve_common.words import counted
from wattserve_server.accounts.schema import METADATA, RECEIPTS, STEPS, migrate, version_of
from wattserve_server.errors import ConfigError

BUSY_S = 5.0  # for which a writer waits while another program holds the file

_STORED = {int: "integer", str: "text", bytes: "blob"}
_LATEST = {"minute": 2**63 // (60 * 10**9), "hour": 2**63 // (3600 * 10**9)}  # as unix nanoseconds reach

RECOVER = (
    "stop whatever writes to it, keep a copy, and either put a backup in its place, or save what can be read "
    "with `sqlite3 FILE .recover | sqlite3 NEW_FILE`; or give another --account-book to begin a new one"
)

CHANGED = "something else has changed it; put a backup in its place"


def default_place(port: int, environment: Mapping[str, str] = os.environ) -> str:
    """Raises ConfigError where a port says nothing."""
    if not port:
        raise ConfigError("--account-book without a path: one file is kept for each port, and --port is 0")
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(state) / "wattserve" / f"account-book-{port}.sqlite3")


@dataclass
class Book:
    """An open account book. name: for people; without a password."""

    name: str
    engine: Engine
    is_sqlite: bool
    is_new: bool = False  # its tables were made now
    _lock: int | None = field(default=None, repr=False)  # a file descriptor
    _file: tuple[int, int] | None = field(default=None, repr=False)  # which file it is that was opened

    def close(self) -> None:
        self.engine.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check_place(self) -> None:
        """Raises ConfigError where the file that was opened for writing is gone, or replaced by another.
        SQLite would go on with one that nobody finds, and make an empty one for who asks."""
        if self._file is not None and _file_at(self.name) != self._file:
            raise ConfigError(
                f"--account-book {self.name}: was removed or replaced while in use; put that file back, with "
                "its -wal, or start the server again"
            )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for questions. Raises ConfigError, in words, where the book cannot be read."""
        self.check_place()
        with told(self.name), self.engine.connect() as connection:
            yield connection


def open_book(place: str, *, for_writing: bool) -> Book:
    """place: a path, or a URL of PostgreSQL. Who writes creates what is missing, brings an older book to
    today's tables, and has the file to himself.

    Raises ConfigError, with what to do, for a book that is damaged, newer than this program, of something
    else, or cannot be opened.
    """
    url = _url_of(place)
    is_sqlite = url.get_backend_name() == "sqlite"
    name = place if is_sqlite else url.set(drivername="postgresql").render_as_string(hide_password=True)
    lock = None
    try:
        if is_sqlite:
            path = Path(place)
            if for_writing:
                lock = _prepare(path)
                _check_names(path)
            elif not os.path.isfile(place):
                what = "is no regular file" if os.path.exists(place) else "there is no such file"
                raise ConfigError(f"--account-book {place}: {what}")
        file = _file_at(place) if is_sqlite else None
        book = Book(name, _engine_of(url, is_sqlite, for_writing), is_sqlite, False, lock, file)
        with told(name):
            _check(book, for_writing)
    except BaseException:
        if lock is not None:
            os.close(lock)
        raise
    return book


def _file_at(path: str) -> tuple[int, int]:
    """No file: of none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _url_of(place: str) -> URL:
    if "://" not in place:
        return URL.create("sqlite+pysqlite", database=place)
    try:
        url = make_url(place)
    except (ArgumentError, ValueError):  # ValueError: of a port that is no number
        raise ConfigError("--account-book: this URL cannot be read") from None  # it may hold a password
    if url.get_backend_name() not in ("postgresql", "postgres"):
        scheme = place.partition("://")[0]
        raise ConfigError(f"--account-book {scheme}://...: give the path of a file, or postgresql://...")
    return url.set(drivername="postgresql+psycopg")


def _engine_of(url: URL, is_sqlite: bool, for_writing: bool) -> Engine:
    if not is_sqlite:
        try:
            from wattserve_server.accounts.postgres import engine_of  # with the extra alone
        except ModuleNotFoundError:
            raise ConfigError(
                "--account-book postgresql://...: needs psycopg; pip install 'wattserve[postgres]'"
            ) from None
        return engine_of(url)
    # So that it makes no file where there is none any more: anybody could read that.
    place = f"file:{quote(os.path.abspath(str(url.database)))}?mode=rw"
    engine = create_engine(
        "sqlite+pysqlite://",
        poolclass=NullPool,
        creator=lambda: sqlite3.connect(place, timeout=BUSY_S, check_same_thread=False, uri=True),
    )

    @event.listens_for(engine, "connect")
    def settle(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver's guesses
        if for_writing:
            connection.execute("PRAGMA page_size=8192")  # of a new file: some ten receipts go into one
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # in WAL mode a killed process loses no commit

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if for_writing else "BEGIN")

    return engine


def _prepare(path: Path) -> int:
    """Make the folder and lock the file, by whichever symbolic link it is named; the lock. It lies beside the
    file: by NFS a lock of the file itself would lock SQLite out."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(f"{os.path.realpath(path)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"--account-book {path}: cannot be written ({error.strerror})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        book = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not os.fstat(book).st_size:
            os.fchmod(book, 0o600)
        os.close(book)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f"--account-book {path}: another server writes to it; give each one its own file, or one "
            "PostgreSQL to all"
        ) from None
    except OSError as error:
        os.close(lock)
        raise ConfigError(f"--account-book {path}: cannot be written ({error.strerror})") from None
    return lock


def _check_names(path: Path) -> None:
    if path.stat().st_nlink > 1:
        raise ConfigError(
            f"--account-book {path}: has several names (hard links), and SQLite would keep a journal of its "
            "own for each; leave it one"
        )


def _check(book: Book, for_writing: bool) -> None:
    if book.is_sqlite and for_writing:
        with book.engine.connect() as connection:
            _check_file(book, connection)
    with book.engine.begin() as connection:
        if not book.is_sqlite and for_writing:
            _check_encoding(book, connection)
            # of two that start at once, one makes the tables
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('wattserve account book'))"))
        version = version_of(connection)
        if version < 0 or (version == 0 and not for_writing):
            what = "holds no account book" if version == 0 else "holds something else than an account book"
            raise ConfigError(f"--account-book {book.name}: {what}")
        if version > len(STEPS):
            raise ConfigError(
                f"--account-book {book.name}: was written by a newer Wattserve (its tables are of version "
                f"{version}, this one knows {len(STEPS)}); install that one, or give another book"
            )
        if version < len(STEPS):
            if not for_writing:
                raise ConfigError(
                    f"--account-book {book.name}: is of an older Wattserve; the server that writes to it "
                    "brings it to today's tables when it starts"
                )
            migrate(connection, version)
            book.is_new = version == 0
        _check_tables(book, connection)
        if not for_writing:
            check_values(book, connection, [each for each in METADATA.sorted_tables if each is not RECEIPTS])


def _check_tables(book: Book, connection: Connection) -> None:
    found = {
        name: {each["name"] for each in has}
        for (_, name), has in inspect(connection).get_multi_columns().items()
    }
    for table in METADATA.sorted_tables:
        lost = [column.name for column in table.c if column.name not in found.get(table.name, ())]
        if lost:
            what = f"{table.name}.{lost[0]}" if table.name in found else f"the table {table.name}"
            raise ConfigError(f"--account-book {book.name}: lacks {what}: {CHANGED}")


def check_values(book: Book, connection: Connection, tables: Iterable[Table]) -> None:
    """Raises ConfigError where a value is none that a server writes. SQLite takes any in any column."""
    for table in tables:
        odd = {column.name: func.sum(case((_is_odd(book, column), 1), else_=0)) for column in table.c}
        for name, count in zip(odd, connection.execute(select(*odd.values())).one(), strict=True):
            if count:
                values = f"{table.name}.{name} has {counted(int(count), 'value')} that no server writes"
                raise ConfigError(f"--account-book {book.name}: {values}: {CHANGED}")


def _is_odd(book: Book, column: Column[Any]) -> ColumnElement[bool]:
    kind = column.type.python_type
    odd: ColumnElement[bool] = false()
    if kind is int:
        odd = column < 0
        if column.name in _LATEST:
            odd |= column > _LATEST[column.name]
    if book.is_sqlite:
        other = func.typeof(column) != _STORED[kind]
        odd |= (other & column.is_not(None)) if column.nullable else other
    return odd


def _check_encoding(book: Book, connection: Connection) -> None:
    """Callers choose ids in any script: one that the database cannot hold would keep all from it."""
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if encoding != "UTF8":
        raise ConfigError(
            f"--account-book {book.name}: has the encoding {encoding}; give one that was made with "
            "`createdb --encoding UTF8 --template template0`"
        )


def _check_file(book: Book, connection: Connection) -> None:
    found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise ConfigError(f"--account-book {book.name}: is damaged ({found}); {RECOVER}")


@contextmanager
def told(name: str) -> Iterator[None]:
    """What a database complains of as a ConfigError, in words."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        words = in_words(error)
        remedy = ""
        if "malformed" in words or "not a database" in words:
            remedy = f"; {RECOVER}"
        elif "disk I/O error" in words:  # SQLite says no more of a disk that is full at the start
            remedy = "; make sure that its disk has room, and that files may grow (ulimit -f)"
        raise ConfigError(f"--account-book {name}: {words}{remedy}") from None


def in_words(error: Exception) -> str:
    """The first line of what a database says, without its statement; it never holds a password."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
