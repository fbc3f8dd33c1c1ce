"""The tables of an account book, alike in SQLite and PostgreSQL, and how an older book becomes today's.

Energies are whole microjoules; instants are unix nanoseconds, but for `minute` and `hour`, which are unix
time in whole minutes and hours. A receipt counts at the instant at which it became final, by the clock of its
server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    inspect,
    literal_column,
    text,
)
from sqlalchemy.schema import DropIndex

METADATA = MetaData()

HOUR_S = 3600

BOOK = Table("book", METADATA, Column("schema_version", Integer, nullable=False))

SERVERS = Table(
    "servers",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),  # of who writes
)

INSTANCES = Table(
    "instances",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("server", ForeignKey("servers.id"), nullable=False),
    Column("instance_id", Text, nullable=False, unique=True),  # one start of it
    Column("version", Text, nullable=False),  # of Wattserve
    Column("started_unix_ns", BigInteger, nullable=False),
    Column("written_unix_ns", BigInteger, nullable=False),  # until when all is in the book
    Column("ended_unix_ns", BigInteger),  # NULL: it did not end by itself, or has not yet
    Column("receipts", BigInteger, nullable=False),  # how many it has written; those too that have left
    Column("head", LargeBinary, nullable=False),  # the hash of the last of them
)

TENANTS = Table(
    "tenants",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),  # empty: nobody's
)

VARIANTS = Table(
    "variants",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)

RECEIPTS = Table(
    "receipts",
    METADATA,
    Column("instance", ForeignKey("instances.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),  # from 1, without a hole
    Column("receipt_id", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("tenant", ForeignKey("tenants.id"), nullable=False),
    Column("final_unix_ns", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),  # as its caller is told it
    Column("hash", LargeBinary, nullable=False),  # see `chain`
    PrimaryKeyConstraint("instance", "seq"),
    sqlite_with_rowid=False,
)
# Ids are random: an index of them all would have each receipt write a page of its own. So they are in order
# within a shelf of receipts that follow each other, and who looks for one goes through the shelves.
SHELF_SIZE = 16384
SHELF = literal_column(f"(seq / {SHELF_SIZE})", Integer)
FINDING = (
    Index("receipts_by_id", SHELF, RECEIPTS.c.receipt_id),
    Index(
        "receipts_by_request",
        SHELF,
        RECEIPTS.c.request_id,
        sqlite_where=RECEIPTS.c.request_id != "",
        postgresql_where=RECEIPTS.c.request_id != "",
    ),
)

# What a rollup counts of the receipts of a tenant and a variant: all of which something ran; of them those
# that failed, were cancelled, are of unknown energy; and their joules by part, above idle and shared idle.
FIGURES = (
    *("requests", "failed", "cancelled", "unknown", "sequences", "tokens", "output_tokens"),
    *("accelerator_uj", "host_uj", "accelerator_idle_uj", "host_idle_uj"),
)

# What a rollup counts of a counter's ledger. The part of idle_uj that receipts show is idle_shared_uj.
# measured less active, warm-up, idle, unattributed and gap: by how much more is pending than before.
AMOUNTS = (
    *("measured_uj", "active_uj", "warmup_uj", "idle_uj", "idle_shared_uj", "unattributed_uj", "gap_uj"),
)


def _rollup(name: str, period: str, keys: Sequence[Column[Any]], figures: Sequence[str]) -> Table:
    return Table(
        name,
        METADATA,
        Column(period, Integer, nullable=False),
        Column("server", ForeignKey("servers.id"), nullable=False),
        *keys,
        *(Column(figure, BigInteger, nullable=False) for figure in figures),
        PrimaryKeyConstraint(period, "server", *(key.name for key in keys)),
        sqlite_with_rowid=False,
    )


def _usage(name: str, period: str) -> Table:
    keys: tuple[Column[int], ...] = (
        Column("tenant", ForeignKey("tenants.id"), nullable=False),
        Column("variant", ForeignKey("variants.id"), nullable=False),
    )
    return _rollup(name, period, keys, FIGURES)


def _accounts(name: str, period: str) -> Table:
    return _rollup(name, period, (Column("counter", Text, nullable=False),), AMOUNTS)


MINUTES, HOURS = _usage("minutes", "minute"), _usage("hours", "hour")
ACCOUNT_MINUTES, ACCOUNT_HOURS = _accounts("account_minutes", "minute"), _accounts("account_hours", "hour")

# A parameter could not be grouped by; and of what is no Integer PostgreSQL would be asked for a float.
HOUR_OF_MINUTE = MINUTES.c.minute // literal_column("60", Integer)

CHECKPOINTS = Table(
    "checkpoints",
    METADATA,
    Column("instance", ForeignKey("instances.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),  # of the receipt with that number
    Column("unix_ns", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),  # HEAD or RETENTION
    PrimaryKeyConstraint("instance", "seq", "kind"),
)
HEAD, RETENTION = "head", "retention"  # the last one then; the last of those that retention has taken out

# Spans in which something was used that is on no receipt of the book.
BREAKS = Table(
    "breaks",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("server", ForeignKey("servers.id"), nullable=False),
    Column("from_unix_ns", BigInteger, nullable=False),
    Column("until_unix_ns", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("receipts", BigInteger),  # that were not written though they are in the rollups; NULL: not known
)


def _first(connection: Connection) -> None:
    METADATA.create_all(connection)
    connection.execute(BOOK.insert().values(schema_version=1))


def _shelve(connection: Connection) -> None:
    """Version 1 had ids in order of all receipts."""
    for index in FINDING:
        connection.execute(DropIndex(index, if_exists=True))
        index.create(connection)


# What makes a book of version n one of n + 1. A book is created by going through all of them: whoever changes
# the tables appends a step, and the first one creates them as they were then.
STEPS: tuple[Callable[[Connection], None], ...] = (_first, _shelve)


def version_of(connection: Connection) -> int:
    """Of the book; 0 where there is none yet. -1: of a database that holds something else."""
    names = set(inspect(connection).get_table_names())
    if BOOK.name in names:
        found = connection.execute(text("SELECT schema_version FROM book")).scalar()
        return found if isinstance(found, int) else -1
    return -1 if names else 0


def migrate(connection: Connection, version: int) -> None:
    """From that version to today's, in the caller's transaction."""
    for step in STEPS[version:]:
        step(connection)
    connection.execute(BOOK.update().values(schema_version=len(STEPS)))
