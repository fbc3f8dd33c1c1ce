"""Whether the receipts of an account book are those that its servers wrote: by their chains of hashes; and
whether its sums are those of its receipts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, func, select

from wattserve_common.arguments import int_of
from wattserve_common.words import counted
from wattserve_server.accounts.chain import BEGINNING, link
from wattserve_server.accounts.rollups import MINUTE_NS
from wattserve_server.accounts.schema import (
    BREAKS,
    CHECKPOINTS,
    FIGURES,
    HOUR_OF_MINUTE,
    HOUR_S,
    HOURS,
    INSTANCES,
    MINUTES,
    RECEIPTS,
    RETENTION,
    SERVERS,
    TENANTS,
    VARIANTS,
)
from wattserve_server.accounts.store import Book, check_values


class Recounted(NamedTuple):
    """What the body of a receipt tells. figures: what it adds to sums, in the order of `FIGURES`; None: it
    does not tell, as one of unknown energy does not say what of it is known."""

    receipt_id: str
    request_id: str
    variant: str
    figures: Sequence[int | None]


NO_NAME = "(none)"

Recount = Callable[[bytes], Recounted]  # raises ValueError for what is no receipt

# Server, unix hour or minute, tenant, variant; None: of none that is known.
Key = tuple[int, int, str | None, str | None]


class Head(NamedTuple):
    """What the log of a server said of its chain, which nobody can change who has only the book."""

    instance_id: str
    seq: int
    hash: bytes

    @classmethod
    def parse(cls, text: str) -> Head:
        """INSTANCE:NUMBER:HASH. Raises ValueError."""
        instance_id, seq, digits = text.split(":")
        return cls(instance_id, int_of(seq), bytes.fromhex(digits))


@dataclass
class Chain:
    """What is found of one instance's receipts."""

    server: str
    instance_id: str
    written: int  # receipts, as the instance says
    present: int = 0
    removed: int = 0  # by retention
    compared: int = 0  # checkpoints and heads that a receipt was held against
    wrong: list[str] = field(default_factory=list)


@dataclass
class Sums:
    """What is found of one server's sums: rows, each of an hour, a tenant and a variant."""

    server: str
    held: int = 0  # against all of their receipts
    left: int = 0  # not all of whose receipts are here, or tell all
    wrong: list[str] = field(default_factory=list)


@dataclass
class _Here:
    """What is still here of that which a row adds up."""

    figures: list[int] = field(default_factory=lambda: [0] * len(FIGURES))
    untold: set[str] = field(default_factory=set)  # figures to which something is added that is not known

    def add(self, told: Sequence[int | None]) -> None:
        for at, figure in enumerate(told):
            self.figures[at] += figure or 0
            if figure is None:
                self.untold.add(FIGURES[at])

    def is_all_of(self, row: Sequence[int]) -> bool:
        """Every receipt is one request. No time is asked for: clocks are set."""
        return self.figures[0] == row[0]

    def contradictions(self, row: Sequence[int], is_all: bool = False) -> Iterator[str]:
        """Part of a sum is never more than it; all of it is never less. is_all: it is known to be all."""
        is_all = is_all or self.is_all_of(row)
        for name, here, whole in zip(FIGURES, self.figures, row, strict=True):
            if here > whole or (is_all and here < whole and name not in self.untold):
                yield f"{name} {whole:,} for {here:,}"


@dataclass
class _Receipts:
    """What those that are here add up to."""

    by_hour: dict[Key, _Here] = field(default_factory=dict)
    by_minute: dict[Key, _Here] = field(default_factory=dict)

    def add(self, server: int, final_unix_ns: int, tenant: str, told: Recounted) -> None:
        minute = final_unix_ns // MINUTE_NS
        for sums, period in ((self.by_hour, minute // 60), (self.by_minute, minute)):
            sums.setdefault((server, period, tenant, told.variant), _Here()).add(told.figures)


def check(book: Book, recount: Recount, heads: Sequence[Head] = ()) -> tuple[list[Chain], list[Sums]]:
    """Recompute the chain of every instance, in the order in which they began, and hold the sums of every
    server against its receipts. Raises ConfigError for what cannot be read."""
    receipts = _Receipts()
    with book.reading() as connection:
        if not book.is_sqlite:  # whose transactions see one state of the book
            connection.execution_options(isolation_level="REPEATABLE READ")
        check_values(book, connection, [RECEIPTS])
        instances = connection.execute(
            select(INSTANCES, SERVERS.c.name).outerjoin(SERVERS).order_by(INSTANCES.c.id)
        ).all()
        chains = [_chain(connection, each, heads, recount, receipts) for each in instances]
        chains += _without_instance(connection)
        sums = _sums(connection, receipts)
    known = {each.instance_id for each in chains}
    for head in heads:
        if head.instance_id not in known:
            missing = Chain("", head.instance_id, head.seq)
            missing.wrong.append("the log tells of this instance, and the book holds nothing of it")
            chains.append(missing)
    return chains, sums


def _chain(
    connection: Connection,
    instance: Any,
    heads: Sequence[Head],
    recount: Recount,
    receipts: _Receipts,
) -> Chain:
    """receipts: to which those that are here are added."""
    found = Chain(instance.name or NO_NAME, instance.instance_id, instance.receipts)
    if instance.name is None:
        found.wrong.append(f"it is of server {instance.server}, which the book does not name")
    marks = connection.execute(select(CHECKPOINTS).where(CHECKPOINTS.c.instance == instance.id)).all()
    removed = max((mark for mark in marks if mark.kind == RETENTION), key=lambda mark: mark.seq, default=None)
    seq = 0 if removed is None else removed.seq
    before: bytes | None = BEGINNING if removed is None else bytes(removed.hash)  # None: it is missing
    found.removed = seq
    expected: dict[int, set[bytes]] = {}
    for mark in marks:
        expected.setdefault(mark.seq, set()).add(bytes(mark.hash))
    for head in heads:
        if head.instance_id == instance.instance_id:
            expected.setdefault(head.seq, set()).add(head.hash)
    expected.setdefault(instance.receipts, set()).add(bytes(instance.head))
    for at, hashes in expected.items():  # of what retention has taken out, they can only be held together
        if len(hashes) > 1:
            found.wrong.append(f"what was noted of receipt {at} differs: in the book, or from the log")
    for row in _receipts(connection, instance.id):
        if row.seq != seq + 1:
            found.wrong.append(f"{_named(seq + 1, row.seq - 1)} missing")
            before = None
        seq = row.seq
        found.present += 1
        body, noted = bytes(row.body), bytes(row.hash)
        if before is not None:
            made = link(before, instance.instance_id, seq, row.tenant_name, row.final_unix_ns, body)
            if made != noted:
                found.wrong.append(f"receipt {seq} ({row.receipt_id}) was changed, or one before it")
        found.compared += seq in expected
        if noted not in expected.get(seq, {noted}):
            found.wrong.append(f"receipt {seq} ({row.receipt_id}) has not the hash that was noted of it")
        before = noted
        try:
            told = recount(body)
        except ValueError as error:
            found.wrong.append(f"receipt {seq} ({row.receipt_id}) cannot be read: {error}")
            continue
        if (told.receipt_id, told.request_id) != (row.receipt_id, row.request_id):
            found.wrong.append(
                f"receipt {seq} ({told.receipt_id}) is listed as {row.receipt_id!r}, of request "
                f"{row.request_id!r}, which it is not"
            )
        receipts.add(instance.server, row.final_unix_ns, row.tenant_name, told)
    last = max([instance.receipts, *expected])
    if seq < last:
        found.wrong.append(f"{_named(seq + 1, last)} missing at the end")
    return found


def _without_instance(connection: Connection) -> Iterator[Chain]:
    """Receipts that no chain is known of."""
    unknown = RECEIPTS.c.instance.not_in(select(INSTANCES.c.id))
    question = select(RECEIPTS.c.instance, func.count()).where(unknown).group_by(RECEIPTS.c.instance)
    for instance, present in connection.execute(question):
        found = Chain(NO_NAME, NO_NAME, 0)
        told = counted(present, "receipt")
        found.wrong.append(f"the book holds {told} of instance {instance}, and nothing else of it")
        yield found


def _named(first: int, last: int) -> str:
    return f"receipt {first} is" if first == last else f"receipts {first} to {last} are"


def _receipts(connection: Connection, instance: int) -> Iterable[Any]:
    question = (
        select(RECEIPTS, TENANTS.c.name.label("tenant_name"))
        .join(TENANTS, TENANTS.c.id == RECEIPTS.c.tenant)
        .where(RECEIPTS.c.instance == instance)
        .order_by(RECEIPTS.c.seq)
    )
    return connection.execute(question.execution_options(yield_per=1000))


def _sums(connection: Connection, receipts: _Receipts) -> list[Sums]:
    """receipts: those that are here."""
    servers = connection.execute(select(SERVERS).order_by(SERVERS.c.id))
    found, requests = {each.id: Sums(each.name) for each in servers}, Counter[int]()
    by_hour, complete = receipts.by_hour, set[Key]()
    minutes = {key: _Here(row) for key, row in _rows(connection, MINUTES, HOUR_OF_MINUTE)}
    missing = ((key, [0] * len(FIGURES)) for each in (by_hour, minutes) for key in list(each))
    for key, row in chain(_rows(connection, HOURS, HOURS.c.hour), missing):
        server, hour, tenant, variant = key
        sums, here = found.setdefault(server, Sums(NO_NAME)), by_hour.pop(key, _Here())
        for name, parts in (("receipts", here), ("minutes", minutes.pop(key, _Here()))):
            if wrong := ", ".join(parts.contradictions(row)):
                sums.wrong.append(f"{_place(hour * HOUR_S, tenant, variant)}: not as its {name}: {wrong}")
        if here.is_all_of(row):
            complete.add(key)
        is_held = here.is_all_of(row) and not here.untold
        sums.held += is_held
        sums.left += not is_held
        requests[server] += row[0]
    for key, row in _rows(connection, MINUTES, MINUTES.c.minute):
        server, minute, tenant, variant = key
        here = receipts.by_minute.get(key, _Here())
        is_all = (server, minute // 60, tenant, variant) in complete
        if wrong := ", ".join(here.contradictions(row, is_all)):
            sums = found.setdefault(server, Sums(NO_NAME))
            sums.wrong.append(f"minute {_place(minute * 60, tenant, variant)}: not as its receipts: {wrong}")
    written, left_out = _by_server(connection, INSTANCES), _by_server(connection, BREAKS)
    for server, sums in found.items():
        if sums.server == NO_NAME:
            sums.wrong.append(f"they are of server {server}, which the book does not name")
        known = written.get(server, 0) + left_out.get(server, 0)
        if requests[server] != known:
            sums.wrong.append(f"its hours add up {requests[server]:,} requests, of {known:,} receipts")
    return list(found.values())


def _place(unix_s: int, tenant: str | None, variant: str | None) -> str:
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))
    return f"{when}, {tenant or '(none)'}, {variant}"


def _rows(connection: Connection, table: Table, hour: Any) -> Iterator[tuple[Key, list[int]]]:
    keys = (table.c.server, hour, TENANTS.c.name, VARIANTS.c.name)
    question = select(*keys, *(func.sum(table.c[name]) for name in FIGURES)).group_by(*keys)
    question = question.outerjoin_from(table, TENANTS).outerjoin(VARIANTS, VARIANTS.c.id == table.c.variant)
    for row in connection.execute(question.execution_options(yield_per=1000)):
        yield (row[0], row[1], row[2], row[3]), [int(each) for each in row[4:]]


def _by_server(connection: Connection, table: Table) -> dict[int, int]:
    """Receipts that were written, or left out."""
    question = select(table.c.server, func.sum(table.c.receipts)).group_by(table.c.server)
    return {server: int(receipts or 0) for server, receipts in connection.execute(question)}
