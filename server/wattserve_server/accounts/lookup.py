"""Questions to an account book while its server writes: receipts, and what tenants used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, func, select

from wattserve_server.accounts.schema import (
    HOURS,
    INSTANCES,
    RECEIPTS,
    SERVERS,
    SHELF,
    SHELF_SIZE,
    TENANTS,
)
from wattserve_server.accounts.store import Book


class Stored(NamedTuple):
    """A receipt of the book. body: what `Encode` of the writer made of it."""

    tenant: str
    body: bytes


class Lookup:
    """Each question waits for the database: ask off the event loop. Raises ConfigError, in words, where it
    does not answer."""

    def __init__(self, book: Book) -> None:
        """book: opened for reading."""
        self._book = book

    def receipt(self, receipt_id: str) -> Stored | None:
        if "\0" in receipt_id:  # of which PostgreSQL takes no question
            return None
        with self._book.reading() as connection:
            on_shelf = _on_shelves(connection, INSTANCES.c.instance_id == receipt_id.partition("-")[0])
            found = connection.execute(_stored().where(on_shelf, RECEIPTS.c.receipt_id == receipt_id)).first()
            return None if found is None else Stored(found.name, bytes(found.body))

    def of_request(self, request_id: str, most: int, sees: Callable[[str], bool]) -> list[Stored]:
        """The newest of those that may be read, the newest first."""
        with self._book.reading() as connection:
            tenants = [row.id for row in connection.execute(select(TENANTS)) if sees(row.name)]
            named = (
                _on_shelves(connection),
                RECEIPTS.c.request_id == request_id,
                RECEIPTS.c.request_id != "",
                RECEIPTS.c.tenant.in_(tenants),
            )
            newest = _stored().where(*named).order_by(RECEIPTS.c.final_unix_ns.desc()).limit(most)
            return [Stored(row.name, bytes(row.body)) for row in connection.execute(newest)]

    def spent_by(self, first_hour: int, end_hour: int) -> dict[tuple[str, str], int]:
        """By server and tenant: active and shared idle joules, in microjoules, of all parts that were charged
        in these unix hours, the last of which is not in them."""
        c = HOURS.c
        spent = func.sum(c.accelerator_uj + c.host_uj + c.accelerator_idle_uj + c.host_idle_uj)
        within = (c.hour >= first_hour, c.hour < end_hour)
        with self._book.reading() as connection:
            servers = {row.id: row.name for row in connection.execute(select(SERVERS))}
            tenants = {row.id: row.name for row in connection.execute(select(TENANTS))}
            asked = select(c.server, c.tenant, spent).where(*within).group_by(c.server, c.tenant)
            found = connection.execute(asked).all()
        return {(servers[server], tenants[tenant]): int(uj) for server, tenant, uj in found}

    def close(self) -> None:
        self._book.close()


def _on_shelves(connection: Connection, *of: ColumnElement[bool]) -> ColumnElement[bool]:
    """That a receipt stands on a shelf on which these instances have any: see `schema.SHELF`."""
    ends = [
        select(end(RECEIPTS.c.seq)).where(RECEIPTS.c.instance == INSTANCES.c.id).scalar_subquery()
        for end in (func.min, func.max)
    ]
    shelves: set[int] = set()
    for _, first, last in connection.execute(select(INSTANCES.c.id, *ends).where(*of)):
        if first is not None:
            shelves.update(range(first // SHELF_SIZE, last // SHELF_SIZE + 1))
    return SHELF.in_(sorted(shelves))


def _stored() -> Select[Any]:
    return select(TENANTS.c.name, RECEIPTS.c.body).join(TENANTS, TENANTS.c.id == RECEIPTS.c.tenant)
