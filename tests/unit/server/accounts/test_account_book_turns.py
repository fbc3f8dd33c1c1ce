"""Who asks an account book often waits for himself, and others wait for one of his questions."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from wattserve_server.account_book import AccountBook
from wattserve_server.config import ServerConfig
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
