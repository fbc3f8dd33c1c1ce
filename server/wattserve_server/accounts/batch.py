"""One transaction of an account book, and all that its writer must know of what is in it already."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, delete, func, insert, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from wattserve_server.accounts import chain
from wattserve_server.accounts.rollups import Rollups
from wattserve_server.accounts.schema import (
    ACCOUNT_HOURS,
    ACCOUNT_MINUTES,
    AMOUNTS,
    BREAKS,
    CHECKPOINTS,
    FIGURES,
    HEAD,
    HOURS,
    INSTANCES,
    MINUTES,
    RECEIPTS,
    RETENTION,
    SERVERS,
    TENANTS,
    VARIANTS,
)
from wattserve_server.accounts.store import Book, told
from wattserve_server.errors import ConfigError

log = logging.getLogger(__name__)

MINUTE_NS = 60 * 10**9
HOUR_NS = 60 * MINUTE_NS

MINUTES_KEPT = 14 * 24 * 60
RECEIPT_KEPT_NS = 24 * HOUR_NS
RECEIPT_KEPT_BYTES = 10**9
ROW_BYTES = 250  # of a receipt beside its body and its ids: keys, hash, indices
AT_ONCE = 10_000  # receipts that retention takes out in one transaction

NOT_ENDED = "the server did not end by itself: what was pending is on no receipt, and nothing was written"
LEFT_OUT = "the book could not be written for too long: these receipts are in its sums, and not in it"


class TakenName(Exception):
    """Another server has come to write under this one's name."""


class Row(NamedTuple):
    """A receipt to be written."""

    receipt_id: str
    request_id: str
    tenant: str
    final_unix_ns: int
    body: bytes

    @property
    def size(self) -> int:
        return len(self.body) + len(self.receipt_id) + len(self.request_id) + ROW_BYTES


@dataclass(frozen=True, slots=True)
class Attempt:
    """A transaction whose content no longer changes: where it is not known whether it was committed, it is
    looked up by its instant, which no other of its instance has."""

    rows: Sequence[Row]
    hashes: Sequence[bytes]
    first_seq: int
    rollups: Rollups
    unix_ns: int
    left_out: tuple[int, int]  # receipts that are in the rollups alone, and since when
    is_last: bool

    @property
    def receipts(self) -> int:
        """How many the instance has written with it."""
        return self.first_seq + len(self.rows) - 1


NAME_TRIES, NAME_PAUSE_S = 11, 0.2  # a server that starts again may find its own name still taken


def default_name(port: int) -> str:
    """Of a server among those that write to one PostgreSQL."""
    return f"{socket.gethostname()}:{port}"


class Scribe:
    """Writes attempts of one instance, under a server's name. Raises ConfigError where the book cannot be
    written, or another server writes under that name. Belongs to the writer's thread once it is made."""

    def __init__(
        self,
        book: Book,
        server: str,
        instance_id: str,
        version: str,
        started_unix_ns: int,
        kept_ns: int = RECEIPT_KEPT_NS,
        kept_bytes: int = RECEIPT_KEPT_BYTES,
    ) -> None:
        self._book, self._server, self._instance_id = book, server, instance_id
        self._kept_ns, self._most_bytes = kept_ns, kept_bytes
        self.written = self.removed = self.kept_bytes = 0
        self.written_unix_ns = started_unix_ns
        self._hash = chain.BEGINNING
        self._ids: dict[Table, dict[str, int]] = {}
        self._checked_minute = started_unix_ns // MINUTE_NS
        self._connection: Connection | None = None
        with told(book.name):
            try:
                connection = self._connected_soon()
            except TakenName as error:
                raise ConfigError(f"--account-book {book.name}: {error}; give --account-name") from None
            with connection.begin():
                self._begin(connection, version, started_unix_ns)

    def _begin(self, connection: Connection, version: str, started_unix_ns: int) -> None:
        self._server_id = self._id_of(connection, SERVERS, self._server)
        mine = INSTANCES.c.server == self._server_id
        cut = connection.execute(select(INSTANCES).where(mine, INSTANCES.c.ended_unix_ns.is_(None))).all()
        for each in cut:
            until_ns = max(started_unix_ns, each.written_unix_ns)
            self._break(connection, each.written_unix_ns, until_ns, NOT_ENDED, None)
            ended = INSTANCES.c.id == each.id
            connection.execute(update(INSTANCES).where(ended).values(ended_unix_ns=each.written_unix_ns))
            log.warning(
                "account book: instance %s did not end by itself; between its last writing and now there is "
                "a break of %.1f s", each.instance_id, (until_ns - each.written_unix_ns) / 1e9,
            )  # fmt: skip
        latest_ns = connection.execute(select(func.max(INSTANCES.c.written_unix_ns)).where(mine)).scalar()
        if latest_ns is not None and latest_ns > started_unix_ns:
            log.warning(
                "account book: the clock was set back: the last writing was %.1f s after now; what is used "
                "meanwhile is added to the same minutes", (latest_ns - started_unix_ns) / 1e9,
            )  # fmt: skip
        made = insert(INSTANCES).values(
            server=self._server_id,
            instance_id=self._instance_id,
            version=version,
            started_unix_ns=started_unix_ns,
            written_unix_ns=started_unix_ns,
            receipts=0,
            head=chain.BEGINNING,
        )
        (self._instance,) = connection.execute(made.returning(INSTANCES.c.id)).one()
        sizes = func.length(RECEIPTS.c.body) + func.length(RECEIPTS.c.request_id) + (ROW_BYTES + 39)
        own = select(func.coalesce(func.sum(sizes), 0)).where(RECEIPTS.c.instance.in_(self._own_instances()))
        self.kept_bytes = int(connection.execute(own).scalar() or 0)

    def _own_instances(self) -> Any:
        return select(INSTANCES.c.id).where(INSTANCES.c.server == self._server_id)

    def prepare(
        self, rows: Sequence[Row], rollups: Rollups, unix_ns: int, left_out: tuple[int, int], is_last: bool
    ) -> Attempt:
        """The next transaction. The one before it is in the book."""
        hashes, before = [], self._hash
        for seq, row in enumerate(rows, self.written + 1):
            before = chain.link(before, self._instance_id, seq, row.tenant, row.final_unix_ns, row.body)
            hashes.append(before)
        at_ns = unix_ns + (unix_ns == self.written_unix_ns)  # the clock may have been set back, by hours
        return Attempt(rows, hashes, self.written + 1, rollups, at_ns, left_out, is_last)

    def write(self, attempt: Attempt) -> None:
        """Put it into the book, unless it is there already. Raises what the database does, and TakenName."""
        self._book.check_place()
        try:
            connection = self._connected()
            with connection.begin():
                me = INSTANCES.c.id == self._instance
                written_ns = connection.execute(select(INSTANCES.c.written_unix_ns).where(me)).scalar()
                if written_ns != attempt.unix_ns:
                    self._put(connection, attempt)
            self._wrote(attempt)
            if attempt.unix_ns // MINUTE_NS != self._checked_minute or attempt.is_last:
                self._each_minute(connection, attempt.unix_ns)
        except BaseException:
            self._ids.clear()  # some may have been made by what was not committed
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connection, and with it of the name."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _connected_soon(self) -> Connection:
        """PostgreSQL lets go of a name a moment after the connection of who had it has ended."""
        for _ in range(NAME_TRIES - 1):
            try:
                return self._connected()
            except TakenName:
                time.sleep(NAME_PAUSE_S)
        return self._connected()

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._book.engine.connect()
            if not self._book.is_sqlite:
                with connection.begin():
                    own = text("SELECT pg_try_advisory_lock(hashtext('wattserve'), hashtext(:name))")
                    is_mine = connection.execute(own, {"name": self._server}).scalar()
                if not is_mine:
                    connection.close()
                    raise TakenName(f"another server writes to it under the name {self._server!r}")
            self._connection = connection
        return self._connection

    def _put(self, connection: Connection, attempt: Attempt) -> None:
        tenants = {
            name: self._id_of(connection, TENANTS, name) for name in {row.tenant for row in attempt.rows}
        }
        if attempt.rows:
            linked = zip(attempt.rows, attempt.hashes, strict=True)
            rows = [
                (self._instance, seq, row.receipt_id, row.request_id, tenants[row.tenant], row.final_unix_ns,
                 row.body, link)
                for seq, (row, link) in enumerate(linked, attempt.first_seq)
            ]  # fmt: skip
            self._insert_receipts(connection, rows)
        for rollups, usage, accounts in (
            (attempt.rollups, MINUTES, ACCOUNT_MINUTES),
            (attempt.rollups.by_hour(), HOURS, ACCOUNT_HOURS),
        ):
            period = usage.c[0].name
            self._add(
                connection,
                usage,
                [
                    {
                        period: at,
                        "server": self._server_id,
                        "tenant": self._id_of(connection, TENANTS, tenant),
                        "variant": self._id_of(connection, VARIANTS, variant),
                        **dict(zip(FIGURES, figures, strict=True)),
                    }
                    for (at, tenant, variant), figures in rollups.usage.items()
                ],
            )
            self._add(
                connection,
                accounts,
                [
                    {
                        period: at,
                        "server": self._server_id,
                        "counter": counter,
                        **dict(zip(AMOUNTS, amounts, strict=True)),
                    }
                    for (at, counter), amounts in rollups.accounts.items()
                ],
            )
        receipts, since_ns = attempt.left_out
        if receipts:
            self._break(connection, since_ns, attempt.unix_ns, LEFT_OUT, receipts)
        head = attempt.hashes[-1] if attempt.hashes else self._hash
        values: dict[str, Any] = {
            "written_unix_ns": attempt.unix_ns,
            "receipts": attempt.receipts,
            "head": head,
        }
        if attempt.is_last:
            values["ended_unix_ns"] = attempt.unix_ns
        connection.execute(update(INSTANCES).where(INSTANCES.c.id == self._instance).values(values))

    def _insert_receipts(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """The one statement that costs something for each receipt: by the driver itself."""
        names = [column.name for column in RECEIPTS.columns]
        if self._book.is_sqlite:
            marks = ", ".join("?" * len(names))
            connection.exec_driver_sql(
                f"INSERT INTO receipts ({', '.join(names)}) VALUES ({marks})", list(rows)
            )
            return
        cursor: Any = connection.connection.cursor()
        with cursor, cursor.copy(f"COPY receipts ({', '.join(names)}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "int8", "text", "text", "int4", "int8", "bytea", "bytea"])
            for row in rows:
                copy.write_row(row)

    def _add(self, connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        """Add these to what the rollup holds."""
        if not rows:
            return
        connection.execute(_adding(table, self._book.is_sqlite), list(rows))

    def _id_of(self, connection: Connection, table: Table, name: str) -> int:
        known = self._ids.setdefault(table, {})
        if name not in known:
            maker: Any = sqlite.insert if self._book.is_sqlite else postgresql.insert
            connection.execute(maker(table).values(name=name).on_conflict_do_nothing())
            found = connection.execute(select(table.c.id).where(table.c.name == name)).scalar()
            assert found is not None
            known[name] = int(found)
        return known[name]

    def _break(
        self, connection: Connection, from_ns: int, until_ns: int, reason: str, receipts: int | None
    ) -> None:
        connection.execute(
            insert(BREAKS).values(
                server=self._server_id,
                from_unix_ns=from_ns,
                until_unix_ns=until_ns,
                reason=reason,
                receipts=receipts,
            )
        )

    def _wrote(self, attempt: Attempt) -> None:
        if self.written_unix_ns == attempt.unix_ns:  # known already: something failed behind it
            return
        self.written = attempt.receipts
        self.written_unix_ns = attempt.unix_ns
        self._hash = attempt.hashes[-1] if attempt.hashes else self._hash
        self.kept_bytes += sum(row.size for row in attempt.rows)

    # -- once a minute

    def _each_minute(self, connection: Connection, unix_ns: int) -> None:
        self._checked_minute = unix_ns // MINUTE_NS
        if self.written:
            self._checkpoint(connection, unix_ns)
        while self._forget(connection, unix_ns):
            pass
        with connection.begin():
            for table in (MINUTES, ACCOUNT_MINUTES):
                old = table.c.minute < self._checked_minute - MINUTES_KEPT
                connection.execute(delete(table).where(old, table.c.server == self._server_id))

    def _checkpoint(self, connection: Connection, unix_ns: int) -> None:
        with connection.begin():
            added = self._mark(connection, self._instance, self.written, self._hash, unix_ns, HEAD)
        if added:
            log.info(
                "account book: receipt %d of instance %s has the hash %s",
                self.written, self._instance_id, self._hash.hex(),
            )  # fmt: skip

    def _forget(self, connection: Connection, unix_ns: int) -> bool:
        """Take out the oldest receipts, some at a time; whether there may be more."""
        own = RECEIPTS.c.instance.in_(self._own_instances())
        in_order = (RECEIPTS.c.instance, RECEIPTS.c.seq)
        size = (func.length(RECEIPTS.c.body) + func.length(RECEIPTS.c.request_id)).label("size")
        columns = (*in_order, RECEIPTS.c.final_unix_ns, RECEIPTS.c.hash, size)
        with connection.begin():
            oldest = connection.execute(select(*columns).where(own).order_by(*in_order).limit(AT_ONCE)).all()
            leaving = list(self._leaving(oldest, unix_ns))
            if not leaving:
                return False
            last = {row.instance: row for row in leaving}  # the last of each instance
            for instance, row in last.items():
                gone = (RECEIPTS.c.instance == instance, RECEIPTS.c.seq <= row.seq)
                connection.execute(delete(RECEIPTS).where(*gone))
                self._mark(connection, instance, row.seq, row.hash, unix_ns, RETENTION)
        self.removed += len(leaving)
        self.kept_bytes -= sum(row.size + ROW_BYTES + 39 for row in leaving)
        return len(leaving) == AT_ONCE

    def _leaving(self, oldest: Iterable[Any], unix_ns: int) -> Iterable[Any]:
        left_bytes = self.kept_bytes
        for row in oldest:
            # By a clock that was set back one may be of a time to come.
            if abs(unix_ns - row.final_unix_ns) <= self._kept_ns and left_bytes <= self._most_bytes:
                return
            left_bytes -= row.size + ROW_BYTES + 39
            yield row

    def _mark(
        self, connection: Connection, instance: int, seq: int, link: bytes, unix_ns: int, kind: str
    ) -> bool:
        """A checkpoint, which outlives the receipts; whether it is new."""
        maker: Any = sqlite.insert if self._book.is_sqlite else postgresql.insert
        row = {"instance": instance, "seq": seq, "hash": link, "unix_ns": unix_ns, "kind": kind}
        return bool(connection.execute(maker(CHECKPOINTS).values(row).on_conflict_do_nothing()).rowcount)


@cache
def _adding(table: Table, is_sqlite: bool) -> Any:
    """The statement that adds rows to what a rollup holds. Making it takes longer than running it."""
    statement: Any = (sqlite.insert if is_sqlite else postgresql.insert)(table)
    keys = [column.name for column in table.primary_key]
    sums = {
        column.name: column + statement.excluded[column.name]
        for column in table.columns
        if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=sums)
