"""Whether the receipts of an account book are those that its servers wrote: by their chains of hashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from wattserve_server.accounts.chain import BEGINNING, link
from wattserve_server.accounts.schema import (
    CHECKPOINTS,
    INSTANCES,
    RECEIPTS,
    RETENTION,
    SERVERS,
    TENANTS,
)
from wattserve_server.accounts.store import Book


class Head(NamedTuple):
    """What the log of a server said of its chain, which nobody can change who has only the book."""

    instance_id: str
    seq: int
    hash: bytes

    @classmethod
    def parse(cls, text: str) -> Head:
        """INSTANCE:NUMBER:HASH. Raises ValueError."""
        instance_id, seq, digits = text.split(":")
        return cls(instance_id, int(seq), bytes.fromhex(digits))


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


def check(book: Book, heads: Sequence[Head] = ()) -> list[Chain]:
    """Recompute the chain of every instance, in the order in which they began."""
    with book.reading() as connection:
        instances = connection.execute(
            select(INSTANCES, SERVERS.c.name).join(SERVERS).order_by(INSTANCES.c.id)
        ).all()
        chains = [_chain(connection, each, heads) for each in instances]
    known = {each.instance_id for each in chains}
    for head in heads:
        if head.instance_id not in known:
            missing = Chain("", head.instance_id, head.seq)
            missing.wrong.append("the log tells of this instance, and the book holds nothing of it")
            chains.append(missing)
    return chains


def _chain(connection: Connection, instance: Any, heads: Sequence[Head]) -> Chain:
    found = Chain(instance.name, instance.instance_id, instance.receipts)
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
        ids = (row.receipt_id.encode(), row.request_id.encode())
        if before is not None:
            made = link(before, instance.instance_id, seq, row.tenant_name, row.final_unix_ns, body)
            if made != noted or not all(each in body for each in ids):
                found.wrong.append(f"receipt {seq} ({row.receipt_id}) was changed, or one before it")
        found.compared += seq in expected
        if noted not in expected.get(seq, {noted}):
            found.wrong.append(f"receipt {seq} ({row.receipt_id}) has not the hash that was noted of it")
        before = noted
    last = max([instance.receipts, *expected])
    if seq < last:
        found.wrong.append(f"{_named(seq + 1, last)} missing at the end")
    return found


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
