"""What was used in a span of an account book: by tenant, variant and hour, and what of it is nobody's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, func, select

from wattserve_server.accounts.schema import (
    ACCOUNT_HOURS,
    ACCOUNT_MINUTES,
    AMOUNTS,
    BREAKS,
    FIGURES,
    HOUR_OF_MINUTE,
    HOURS,
    INSTANCES,
    MINUTES,
    SERVERS,
    TENANTS,
    VARIANTS,
)
from wattserve_server.accounts.store import Book
from wattserve_server.errors import ConfigError, InvalidRequest

MINUTE_S = 60

# A server writes twice a second, and tries again after 10 s at the latest.
BEHIND_NS = 30 * 10**9
NOT_WRITTEN = (
    "nothing was written since, and the server has not ended: what it used is not in the book, unless its"
    " clock is behind the reader's"
)

LAST_UNIX_S = 7_258_118_400  # the year 2200: as nanoseconds, databases hold it

MOST_ROWS = 50_000  # in an answer, of about 80 bytes

Sees = Callable[[str], bool]  # whether a tenant's usage may be read


class By(NamedTuple):
    """What rows are told apart by."""

    tenant: bool = False
    variant: bool = False
    hour: bool = False


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What receipts that became final in the span add up to. figures: in the order of `schema.FIGURES`."""

    tenant: str | None  # None: of all
    variant: str | None
    hour: int | None  # unix hours
    figures: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CounterRow:
    """What a counter's ledger gained. amounts: in the order of `schema.AMOUNTS`."""

    server: str
    counter: str  # with the source of its joules
    amounts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Break:
    """A span in which something was used that is on no receipt of the book."""

    server: str
    from_unix_ns: int
    until_unix_ns: int
    reason: str
    receipts: int | None  # that are in the sums all the same; None: not known


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a span in whole minutes, its end not included. `counters` and `breaks` are of all tenants together:
    who may not read of all gets None, and only breaks that are not over."""

    since_unix_s: int
    until_unix_s: int
    rows: Sequence[UsageRow]
    sources: Sequence[str]  # of the joules: "accelerator of cpu: simulated"
    counters: Sequence[CounterRow] | None
    breaks: Sequence[Break]


def usage(book: Book, since_unix_s: int, until_unix_s: int, by: By, sees: Sees, sees_all: bool) -> Usage:
    """Waits for the database. Instants are taken by the minute; where minutes of an hour have left the book,
    it counts in the span in which it begins, and the answer's bounds say so. Raises InvalidRequest for a
    span that is none, or has too many rows; ConfigError where the book does not answer, or is damaged."""
    for name, instant_s in (("since_unix_s", since_unix_s), ("until_unix_s", until_unix_s)):
        if not 0 <= instant_s <= LAST_UNIX_S:
            raise InvalidRequest(f"{instant_s} is not between 1970 and 2200, in seconds", name)
    if until_unix_s <= since_unix_s:
        why = f"is {until_unix_s}, not after since_unix_s, which is {since_unix_s}; give both"
        raise InvalidRequest(why, "until_unix_s")
    with book.reading() as connection:
        names = {row.id: row.name for row in connection.execute(select(TENANTS))}
        tenants = None if sees_all else [at for at, name in names.items() if sees(name)]
        span = _Span.of(connection, since_unix_s // MINUTE_S, -(-until_unix_s // MINUTE_S))
        try:
            rows = _rows(connection, span, by, tenants, names)
        except KeyError as unknown:
            raise ConfigError(
                f"--account-book {book.name}: damaged: it holds sums of a tenant or variant {unknown}, which "
                "it does not name; `wattserve audit check` tells what else is wrong"
            ) from None
        counters = _counters(connection, span)
        breaks = [*(_breaks(connection, span) if sees_all else ()), *_open_breaks(connection, span)]
    sources = list(dict.fromkeys(each.counter for each in counters))
    bounds = span.first * MINUTE_S, span.end * MINUTE_S
    return Usage(*bounds, rows, sources, counters if sees_all else None, breaks)


class _Span(NamedTuple):
    """Minutes: whole hours, and what is before and behind them."""

    first: int
    end: int  # not included

    @classmethod
    def of(cls, connection: Connection, first: int, end: int) -> _Span:
        """An hour of which minutes have left the book counts in the span in which it begins, so that bills of
        adjoining spans hold it once."""
        bounds = (
            bound if not bound % 60 or _has_minutes(connection, bound // 60) else bound - bound % 60 + 60
            for bound in (first, end)
        )
        return cls(*bounds)

    def pieces(self, hours: Table, minutes: Table) -> list[Any]:
        """Of which tables, where."""
        first_hour, end_hour = -(-self.first // 60), self.end // 60
        if first_hour > end_hour:  # within one hour
            return [(minutes, minutes.c.minute >= self.first, minutes.c.minute < self.end)]
        found: list[Any] = [(hours, hours.c.hour >= first_hour, hours.c.hour < end_hour)]
        for begin, end in ((self.first, first_hour * 60), (end_hour * 60, self.end)):
            if begin < end:
                found.append((minutes, minutes.c.minute >= begin, minutes.c.minute < end))
        return found


def _has_minutes(connection: Connection, hour: int) -> bool:
    """Whether its minutes add up to it: each server takes its own out, by its own clock, while it runs."""
    for hours, minutes, names in ((HOURS, MINUTES, FIGURES), (ACCOUNT_HOURS, ACCOUNT_MINUTES, AMOUNTS)):
        of_hour = (hours, hours.c.hour == hour)
        of_minutes = (minutes, minutes.c.minute >= hour * 60, minutes.c.minute < (hour + 1) * 60)
        whole, parts = (
            connection.execute(select(*(func.sum(table.c[name]) for name in names)).where(*within)).one()
            for table, *within in (of_hour, of_minutes)
        )
        if tuple(whole) != tuple(parts):
            return False
    return True


def _rows(
    connection: Connection, span: _Span, by: By, tenants: Sequence[int] | None, names: dict[int, str]
) -> list[UsageRow]:
    variants = {row.id: row.name for row in connection.execute(select(VARIANTS))}
    sums: dict[tuple[int | None, int | None, int | None], list[int]] = {}
    for table, *within in span.pieces(HOURS, MINUTES):
        keys = [table.c[name] for name, told in (("tenant", by.tenant), ("variant", by.variant)) if told]
        if by.hour:
            keys.append(HOURS.c.hour if table is HOURS else HOUR_OF_MINUTE)
        question = (
            select(*keys, *(func.sum(table.c[name]) for name in FIGURES)).where(*within).group_by(*keys)
        )
        if tenants is not None:
            question = question.where(table.c.tenant.in_(tenants))
        for row in connection.execute(question.limit(MOST_ROWS + 1)):
            key, figures = list(row[: len(keys)]), row[len(keys) :]
            if figures[0] is None:  # of nothing there is one row
                continue
            hour = key.pop() if by.hour else None
            variant = key.pop() if by.variant else None
            at = (key.pop() if by.tenant else None, variant, hour)
            known = sums.get(at, [0] * len(FIGURES))
            sums[at] = [one + int(more) for one, more in zip(known, figures, strict=True)]
    if len(sums) > MOST_ROWS:
        raise InvalidRequest(
            f"has more than {MOST_ROWS} rows; ask for a shorter one, or tell it apart by less", "since_unix_s"
        )
    rows = [
        UsageRow(
            None if tenant is None else names[tenant],
            None if variant is None else variants[variant],
            hour,
            tuple(figures),
        )
        for (tenant, variant, hour), figures in sums.items()
    ]
    return sorted(rows, key=lambda row: (row.hour or 0, row.tenant or "", row.variant or ""))


def _counters(connection: Connection, span: _Span) -> list[CounterRow]:
    servers = {row.id: row.name for row in connection.execute(select(SERVERS))}
    sums: dict[tuple[str, str], list[int]] = {}
    for table, *within in span.pieces(ACCOUNT_HOURS, ACCOUNT_MINUTES):
        keys = (table.c.server, table.c.counter)
        question = (
            select(*keys, *(func.sum(table.c[name]) for name in AMOUNTS)).where(*within).group_by(*keys)
        )
        for server, counter, *amounts in connection.execute(question):
            key = servers.get(server, "(none)"), counter
            known = sums.get(key, [0] * len(AMOUNTS))
            sums[key] = [one + int(more) for one, more in zip(known, amounts, strict=True)]
    return [CounterRow(*key, tuple(amounts)) for key, amounts in sorted(sums.items())]


def _breaks(connection: Connection, span: _Span) -> list[Break]:
    first_ns, end_ns = (minute * MINUTE_S * 10**9 for minute in span)
    question = (
        select(BREAKS, SERVERS.c.name)
        .join(SERVERS, SERVERS.c.id == BREAKS.c.server)
        .where(BREAKS.c.until_unix_ns >= first_ns, BREAKS.c.from_unix_ns < end_ns)
        .order_by(BREAKS.c.from_unix_ns)
    )
    return [
        Break(row.name, row.from_unix_ns, row.until_unix_ns, row.reason, row.receipts)
        for row in connection.execute(question)
    ]


def _open_breaks(connection: Connection, span: _Span) -> list[Break]:
    """Of servers that cannot write now, or were killed and have not come back."""
    now_ns = time.time_ns()
    first_ns, end_ns = span.first * MINUTE_S * 10**9, min(span.end * MINUTE_S * 10**9, now_ns)
    c = INSTANCES.c
    question = (
        select(SERVERS.c.name, c.written_unix_ns)
        .join(SERVERS, SERVERS.c.id == c.server)
        .where(c.ended_unix_ns.is_(None), c.written_unix_ns < min(end_ns, now_ns - BEHIND_NS))
        .order_by(c.written_unix_ns)
    )
    return [
        Break(server, max(written_ns, first_ns), end_ns, NOT_WRITTEN, None)
        for server, written_ns in connection.execute(question)
        if first_ns < end_ns
    ]
