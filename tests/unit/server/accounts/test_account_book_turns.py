"""Who asks an account book often waits for himself, and others wait for one of his questions. What waits to
be written is found, too."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from tests.fixtures.account_books import body_of, finished
from wattserve_server.account_book import AccountBook
from wattserve_server.config import ServerConfig
from wattserve_server.engine.book import Run
from wattserve_server.service.caller import CALLER, Caller


async def test_a_caller_waits_for_one_question_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = AccountBook(ServerConfig(account_book=str(tmp_path / "book.sqlite3")))
    may_answer, asked = threading.Semaphore(0), list[str]()

    def find(receipt_id: str) -> None:
        assert may_answer.acquire(timeout=30)
        asked.append(receipt_id)

    monkeypatch.setattr(book.lookup, "receipt", find)

    async def ask(caller: str, receipt_id: str) -> None:
        CALLER.set(Caller(caller))
        await book.receipt(receipt_id, lambda tenant: True)

    often = [asyncio.create_task(ask("often", f"often {number}")) for number in range(5)]
    await asyncio.sleep(0)
    seldom = asyncio.create_task(ask("seldom", "seldom"))
    await asyncio.sleep(0)
    for _ in range(6):
        may_answer.release()
    await asyncio.gather(*often, seldom)
    assert asked.index("seldom") == 1
    assert asked == ["often 0", "seldom", *(f"often {number}" for number in range(1, 5))]
    often = [asyncio.create_task(ask("often", f"again {number}")) for number in range(3)]
    await asyncio.sleep(0)
    for task in often[:2]:  # one runs, one waits
        task.cancel()
    may_answer.release()
    may_answer.release()
    await often[2]
    assert asked[-1] == "again 2"
    book.close()


async def test_a_receipt_that_waits_to_be_written_is_found(tmp_path: Path) -> None:
    place = str(tmp_path / "book.sqlite3")
    book = AccountBook(ServerConfig(account_book=place))
    book.begin(Run("0123456789ab", 0, 0), body_of, dict)
    CALLER.set(Caller("shop"))
    with sqlite3.connect(place, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        bodies = []
        for number in range(3):
            receipt = finished(f"0123456789ab-{number}", 7, 1, "shop", request_id="order")
            book.put(receipt)
            bodies.append(body_of(receipt))
        for sees, is_found in ((lambda tenant: tenant == "shop", True), (lambda tenant: False, False)):
            assert await book.receipt("0123456789ab-1", sees) == (bodies[1] if is_found else None)
            newest = await book.of_request("order", 2, sees)
            assert newest == (bodies[:0:-1] if is_found else [])
        other.execute("ROLLBACK")
    book.close()
    assert book.state is not None
    assert book.state.written == 3
