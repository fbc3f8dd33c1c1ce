"""Receipts that were changed, taken out or cut off are found by their chain; sums that were changed, by their
receipts; and books that nobody touched raise no alarm."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, delete, func, insert, select, update

from tests.fixtures.account_books import BEGINNING_NS, Bookkeeper, alarms, checked, finished
from wattserve_server.accounts.check import Head, Recounted, check
from wattserve_server.accounts.schema import CHECKPOINTS, HOURS, INSTANCES, MINUTES, RECEIPTS
from wattserve_server.accounts.store import open_book
from wattserve_server.energy.receipt import Outcome
from wattserve_server.errors import ConfigError
from wattserve_server.service.recount import recount

pytestmark = pytest.mark.long

SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS


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


def change(place: str, *statements: Any) -> None:
    book = open_book(place, for_writing=True)
    with book.engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)
    book.close()


def test_a_book_that_nobody_touched(filled: Bookkeeper) -> None:
    Bookkeeper(filled.place, now_ns=filled.now_ns).end()  # an instance without receipts
    head = Head(filled.instance_id, 10, filled.scribe._hash)
    (chain, empty), (sums,) = checked(filled.place, head)
    assert (chain.written, chain.present, chain.removed, chain.wrong) == (10, 7, 3, [])
    assert (empty.written, empty.wrong) == (0, [])
    assert (sums.held, sums.left, sums.wrong) == (1, 1, [])
    assert Head.parse(f"{head.instance_id}:10:{head.hash.hex()}") == head


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (update(RECEIPTS).where(RECEIPTS.c.seq == 6).values(body=b"q cheaper"), "receipt 6 .* was changed"),
        (update(RECEIPTS).where(RECEIPTS.c.seq == 6).values(final_unix_ns=1), "receipt 6 .* was changed"),
        (update(RECEIPTS).where(RECEIPTS.c.seq == 6).values(request_id="p0"), "receipt 6 .* is listed as"),
        (update(RECEIPTS).where(RECEIPTS.c.seq == 6).values(request_id=""), "of request '', which it is not"),
        (update(RECEIPTS).where(RECEIPTS.c.seq == 6).values(receipt_id="r"), "is listed as 'r', of request"),
        (delete(RECEIPTS).where(RECEIPTS.c.seq == 6), "receipt 6 is missing"),
        (delete(RECEIPTS).where(RECEIPTS.c.seq < 6), "receipts 4 to 5 are missing"),
        (delete(RECEIPTS).where(RECEIPTS.c.seq > 8), "receipts 9 to 10 are missing at the end"),
    ],
)
def test_what_was_changed_is_found(filled: Bookkeeper, statement: Any, words: str) -> None:
    change(filled.place, statement)
    ((chain,), _) = checked(filled.place)
    assert chain.wrong
    assert any(re.search(words, each) for each in chain.wrong), chain.wrong


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE book SET schema_version = 'one'", "something else than an account book"),
        ("UPDATE instances SET head = 12", r"instances.head has 1 value that no server writes"),
        ("UPDATE instances SET receipts = 'ten'", "instances.receipts has 1 value"),
        ("UPDATE hours SET tokens = -1", "hours.tokens has 2 values"),
        ("UPDATE hours SET tokens = 1e300", "hours.tokens has 2 values"),
        ("UPDATE minutes SET minute = minute + 9000000000000", "minutes.minute has 2 values"),
        ("UPDATE servers SET name = x'ff'", "servers.name has 1 value"),
        ("UPDATE receipts SET body = 'cheap' WHERE seq > 6", "receipts.body has 4 values"),
        ("UPDATE receipts SET final_unix_ns = 'noon' WHERE seq > 6", "receipts.final_unix_ns has 4 values"),
        ("UPDATE receipts SET request_id = x'ff' WHERE seq > 6", "receipts.request_id has 4 values"),
        ("UPDATE checkpoints SET seq = 'last' WHERE kind = 'retention'", "checkpoints.seq has 1 value"),
    ],
)
def test_values_that_no_server_writes_are_named(tmp_path: Path, statement: str, words: str) -> None:
    place = str(tmp_path / "book.sqlite3")
    keeper = Bookkeeper(place, kept_ns=HOUR_NS)
    for _ in range(2):
        keeper.now_ns += 2 * HOUR_NS
        for _ in range(5):
            keeper.answer()
        keeper.writer.write()
    keeper.end()
    checked(place)
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute(statement).rowcount
        connection.commit()
    with pytest.raises(ConfigError, match=words):
        checked(place)


@pytest.mark.parametrize(
    ("table", "chain_words", "sums_words"),
    [
        ("servers", "it is of server 1, which the book does not name", "they are of server 1, which"),
        ("instances", "receipts of instance 1, and nothing else of it", "of 0 receipts"),
    ],
)
def test_no_row_that_is_taken_out_takes_a_chain_with_it(
    tmp_path: Path, table: str, chain_words: str, sums_words: str
) -> None:
    """Of SQLite's book: PostgreSQL lets nobody take it out."""
    keeper = Bookkeeper(str(tmp_path / "book.sqlite3"))
    for _ in range(5):
        keeper.answer()
    keeper.end()
    with closing(sqlite3.connect(keeper.place)) as connection:
        connection.execute("UPDATE receipts SET body = zeroblob(length(body)) WHERE seq > 3")
        connection.execute(f"DELETE FROM {table}")
        connection.commit()
    (chain,), (sums,) = checked(keeper.place)
    assert chain_words in chain.wrong[0]
    assert sums_words in "; ".join(sums.wrong)


def test_who_rewrites_all_of_the_book_is_found_by_the_log(filled: Bookkeeper) -> None:
    logged = Head(filled.instance_id, 10, filled.scribe._hash)
    last = RECEIPTS.c.seq == 10
    change(
        filled.place,
        delete(RECEIPTS).where(last),
        delete(CHECKPOINTS).where(CHECKPOINTS.c.seq == 10),
        update(INSTANCES).values(receipts=9, head=_hash_of(filled, 9)),
    )
    ((chain,), _) = checked(filled.place)
    assert chain.wrong == []
    ((chain,), _) = checked(filled.place, logged)
    assert chain.wrong == ["receipt 10 is missing at the end"]
    unknown = Head("another", 5, b"x")
    assert checked(filled.place, unknown)[0][1].wrong == [
        "the log tells of this instance, and the book holds nothing of it"
    ]


def _hash_of(filled: Bookkeeper, seq: int) -> bytes:
    book = open_book(filled.place, for_writing=False)
    with book.reading() as connection:
        found = bytes(connection.execute(RECEIPTS.select().where(RECEIPTS.c.seq == seq)).one().hash)
    book.close()
    return found


def tripled(*tables: Table) -> list[Any]:
    return [update(table).values(accelerator_uj=3 * table.c.accelerator_uj) for table in tables]


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (tripled(HOURS, MINUTES), "shop, fp32: not as its receipts: accelerator_uj 2,100 for 700"),
        (tripled(HOURS), "not as its minutes: accelerator_uj 900 for 300"),
        (tripled(MINUTES), "not as its minutes: accelerator_uj 300 for 900"),
        ([update(HOURS).values(requests=20)], "its hours add up 40 requests, of 10 receipts"),
        ([update(HOURS).values(host_idle_uj=1)], "host_idle_uj 1 for 0"),
        ([update(HOURS).values(tokens=0)], "not as its receipts: tokens 0 for 35"),
        ([delete(HOURS)], "not as its receipts: requests 0 for 7"),
        ([update(HOURS).values(requests=0)], "not as its receipts: requests 0 for 7"),
    ],
)
def test_sums_that_were_changed_are_found(filled: Bookkeeper, statements: Sequence[Any], words: str) -> None:
    change(filled.place, *statements)
    (chain,), (sums,) = checked(filled.place)
    assert chain.wrong == []
    assert any(words in each for each in sums.wrong), sums.wrong


@pytest.mark.parametrize("of_nobody", [{"server": 9}, {"tenant": 9}, {"variant": 9}])
def test_a_sum_of_nobody_that_is_known_is_found(tmp_path: Path, of_nobody: dict[str, int]) -> None:
    """SQLite lets it in; a bill would count it."""
    keeper = Bookkeeper(str(tmp_path / "book.sqlite3"))
    keeper.answer()
    keeper.end()
    row = {column.name: 1 for column in HOURS.columns} | {"requests": 0} | of_nobody
    change(keeper.place, insert(HOURS).values(row))
    found = checked(keeper.place)[1]
    assert any("accelerator_uj 1 for 0" in words for sums in found for words in sums.wrong)


def test_joules_that_were_moved_to_another_minute_are_found(filled: Bookkeeper) -> None:
    """Bills of the last days are made of minutes."""
    last = select(func.max(MINUTES.c.minute)).scalar_subquery()
    change(filled.place, update(MINUTES).where(MINUTES.c.minute == last).values(minute=MINUTES.c.minute + 1))
    _, (sums,) = checked(filled.place)
    assert len(sums.wrong) == 1
    assert re.fullmatch(
        r"minute .* UTC, shop, fp32: not as its receipts: requests 7 for 0, .*", sums.wrong[0]
    )


def test_sums_whose_receipts_are_gone_are_only_counted(filled: Bookkeeper) -> None:
    """What is not protected: an old hour, in both tables."""
    first = BEGINNING_NS // HOUR_NS
    change(
        filled.place,
        update(HOURS).where(HOURS.c.hour == first).values(accelerator_uj=1),
        update(MINUTES).where(MINUTES.c.minute == first * 60).values(accelerator_uj=1),
    )
    _, (sums,) = checked(filled.place)
    assert (sums.held, sums.left, sums.wrong) == (1, 1, [])


def test_a_receipt_of_unknown_energy_holds_what_it_tells(place: str) -> None:
    keeper = Bookkeeper(place)
    keeper.writer.put(finished(f"{keeper.instance_id}-a", None, 10, "shop", host_uj=30, output_tokens=7))
    keeper.end()
    assert [(each.held, each.left, each.wrong) for each in checked(place)[1]] == [(0, 1, [])]
    change(place, update(HOURS).values(host_uj=31, output_tokens=8))
    assert "output_tokens 8 for 7" in checked(place)[1][0].wrong[0]
    change(place, update(HOURS).values(accelerator_uj=5))  # nobody can tell
    assert "accelerator" not in checked(place)[1][0].wrong[0]


def test_a_book_through_all_that_may_happen_raises_no_alarm(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills, restarts, clocks set back and forward by weeks, receipts that found no room, retention by age
    and by room that cuts through minutes, and minutes that left."""
    now_ns, shuffled = BEGINNING_NS, random.Random(7)
    held = left = 0
    for round_ in range(12):
        keeper = Bookkeeper(
            place,
            now_ns=now_ns,
            most_waiting=15,
            kept_ns=(DAY_NS, HOUR_NS)[round_ % 2],
            kept_bytes=(10**9, 9000)[round_ % 4 > 1],
        )
        for at in range(40):
            keeper.answer(
                uj=shuffled.choice((0, 1, 100)),
                tenant=shuffled.choice(("shop", "")),
                variant=shuffled.choice(("fp32", "int8")),
                outcome=shuffled.choice((Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED)),
                host_uj=shuffled.choice((5, None)),
                output_tokens=shuffled.choice((0, 3)),
            )
            with monkeypatch.context() as broken:
                if 10 < at < 30 and round_ % 3 == 1:  # the book is away: the last find no room
                    broken.setattr(keeper.scribe, "_put", _away)
                if at % 3 == 0:
                    keeper.writer.write()
            keeper.now_ns += shuffled.choice((7, 7, 7, 50, 900)) * SECOND_NS
            if at in (13, 27):
                keeper.now_ns += (-3 if at == 13 else 2) * HOUR_NS + (at == 27 and round_ == 5) * 20 * DAY_NS
        if round_ == 5:
            keeper.now_ns -= 20 * DAY_NS
        keeper.vanish() if round_ % 4 == 2 else keeper.end()
        now_ns = keeper.now_ns
        chains, (sums,) = checked(place)
        assert alarms((chains, [sums])) == []
        held, left = held + sums.held, left + sums.left
    assert held > 5
    assert left > 5
    assert any(chain.removed for chain in chains)


def _away(*given: object) -> None:
    raise OSError("away")


def test_a_server_that_writes_meanwhile_raises_no_alarm(place: str) -> None:
    keeper = Bookkeeper(place)
    keeper.answer()
    keeper.writer.write()

    def recounted(body: bytes) -> Recounted:
        keeper.answer()
        keeper.writer.write()
        return recount(body)

    book = open_book(place, for_writing=False)
    (chain,), (sums,) = check(book, recounted)
    assert (chain.present, chain.wrong, sums.held, sums.wrong) == (1, [], 1, [])
    book.close()
    keeper.end()
    assert checked(place)[1][0].wrong == []


def test_the_sums_of_each_server_are_its_own(place: str) -> None:
    if not place.startswith("postgresql"):
        pytest.skip("one file has one writer")
    for name in ("one", "two"):
        keeper = Bookkeeper(place, name=name)
        keeper.answer()
        keeper.end()
    assert [(each.server, each.held, each.wrong) for each in checked(place)[1]] == [
        ("one", 1, []),
        ("two", 1, []),
    ]
    change(place, update(HOURS).where(HOURS.c.server == 2).values(accelerator_uj=1))
    assert [bool(each.wrong) for each in checked(place)[1]] == [False, True]
