"""Receipts that were changed, taken out or cut off are found by their chain."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import delete, update

from tests.fixtures.account_books import Bookkeeper
from wattserve_server.accounts.check import Chain, Head, check
from wattserve_server.accounts.schema import CHECKPOINTS, INSTANCES, RECEIPTS
from wattserve_server.accounts.store import open_book

HOUR_NS = 3600 * 10**9


@pytest.fixture
def filled(place: str) -> Bookkeeper:
    """Ten receipts, of which retention has taken out three."""
    keeper = Bookkeeper(place, kept_ns=HOUR_NS)
    for _ in range(3):
        keeper.answer(request_id="q")
    keeper.writer.write()
    keeper.now_ns += 2 * HOUR_NS
    for _ in range(7):
        keeper.answer(request_id="q")
    keeper.end()
    return keeper


def checked(place: str, *heads: Head) -> list[Chain]:
    book = open_book(place, for_writing=False)
    try:
        return check(book, heads)
    finally:
        book.close()


def change(place: str, *statements: Any) -> None:
    book = open_book(place, for_writing=True)
    with book.engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)
    book.close()


def test_a_book_that_nobody_touched(filled: Bookkeeper) -> None:
    Bookkeeper(filled.place, now_ns=filled.now_ns).end()  # an instance without receipts
    head = Head(filled.instance_id, 10, filled.scribe._hash)
    chain, empty = checked(filled.place, head)
    assert (chain.written, chain.present, chain.removed, chain.wrong) == (10, 7, 3, [])
    assert (empty.written, empty.wrong) == (0, [])
    assert Head.parse(f"{head.instance_id}:10:{head.hash.hex()}") == head


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (update(RECEIPTS).where(RECEIPTS.c.seq == 6).values(body=b"q cheaper"), "receipt 6 .* was changed"),
        (update(RECEIPTS).where(RECEIPTS.c.seq == 6).values(final_unix_ns=1), "receipt 6 .* was changed"),
        (update(RECEIPTS).where(RECEIPTS.c.seq == 6).values(request_id="p0"), "receipt 6 .* was changed"),
        (delete(RECEIPTS).where(RECEIPTS.c.seq == 6), "receipt 6 is missing"),
        (delete(RECEIPTS).where(RECEIPTS.c.seq < 6), "receipts 4 to 5 are missing"),
        (delete(RECEIPTS).where(RECEIPTS.c.seq > 8), "receipts 9 to 10 are missing at the end"),
    ],
)
def test_what_was_changed_is_found(filled: Bookkeeper, statement: Any, words: str) -> None:
    change(filled.place, statement)
    (chain,) = checked(filled.place)
    assert chain.wrong
    assert any(re.search(words, each) for each in chain.wrong), chain.wrong


def test_who_rewrites_all_of_the_book_is_found_by_the_log(filled: Bookkeeper) -> None:
    logged = Head(filled.instance_id, 10, filled.scribe._hash)
    last = RECEIPTS.c.seq == 10
    change(
        filled.place,
        delete(RECEIPTS).where(last),
        delete(CHECKPOINTS).where(CHECKPOINTS.c.seq == 10),
        update(INSTANCES).values(receipts=9, head=_hash_of(filled, 9)),
    )
    (chain,) = checked(filled.place)
    assert chain.wrong == []
    (chain,) = checked(filled.place, logged)
    assert chain.wrong == ["receipt 10 is missing at the end"]
    unknown = Head("another", 5, b"x")
    assert checked(filled.place, unknown)[1].wrong == [
        "the log tells of this instance, and the book holds nothing of it"
    ]


def _hash_of(filled: Bookkeeper, seq: int) -> bytes:
    book = open_book(filled.place, for_writing=False)
    with book.reading() as connection:
        found = bytes(connection.execute(RECEIPTS.select().where(RECEIPTS.c.seq == seq)).one().hash)
    book.close()
    return found
