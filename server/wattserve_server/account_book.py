"""The account book of a server: opened before its model is loaded, written and asked while it runs.

Imported only where there is to be one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TypeVar
from weakref import WeakValueDictionary

from wattserve_server.accounts.batch import Row, Scribe, default_name
from wattserve_server.accounts.lookup import Lookup, Stored
from wattserve_server.accounts.store import default_place, open_book
from wattserve_server.accounts.usage import By, Usage, usage
from wattserve_server.accounts.writer import Encode, Writer
from wattserve_server.config import AUTO_BOOK, ServerConfig, parse_bytes
from wattserve_server.console import say
from wattserve_server.energy.ledger import Counted
from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.book import Run
from wattserve_server.errors import ConfigError, UnavailableError
from wattserve_server.service.budgets import Budgets
from wattserve_server.service.caller import CALLER
from wattserve_server.service.keys import Keys
from wattserve_server.service.stored import Sees
from wattserve_server.telemetry.state import AccountBookState

log = logging.getLogger(__name__)

LOOK_AT_OTHERS_S = 5.0
CLOCK_STEP_NS = 10**9  # by which the wall clock differs at once from what it was: somebody has set it

T = TypeVar("T")


class AccountBook:
    """Implements `stored.StoredAccounts`. Raises ConfigError for a book that cannot be written."""

    def __init__(self, config: ServerConfig) -> None:
        self._kept_s = config.account_receipts_seconds
        self._kept_bytes = parse_bytes(config.account_receipts_bytes, "--account-receipts-bytes")
        place = config.account_book
        if place == AUTO_BOOK:
            place = default_place(config.port)
        self._book = open_book(place, for_writing=True)
        self._name = config.account_name or ("server" if self._book.is_sqlite else default_name(config.port))
        self._readable = open_book(place, for_writing=False)
        self.lookup = Lookup(self._readable)
        # One question of each kind at a time, and of each caller: who asks often waits for himself, and
        # whoever looks for a receipt does not wait for who adds up a year.
        self._finding = ThreadPoolExecutor(1, thread_name_prefix="wattserve-account-book")
        self._adding = ThreadPoolExecutor(1, thread_name_prefix="wattserve-account-sums")
        self._turns: WeakValueDictionary[tuple[str, ThreadPoolExecutor], asyncio.Lock] = WeakValueDictionary()
        self._writer: Writer | None = None
        self._run: Run | None = None
        self._set_by_ns = 0  # the wall clock, since the run began
        self.kept: Budgets | None = None
        self.keeps = f"for {self._kept_s:g} s or up to {config.account_receipts_bytes}"

    def begin(self, run: Run, encode: Encode, ledgers: Callable[[], Mapping[str, Counted]]) -> None:
        """From now on `put` takes receipts. encode, ledgers: see `Writer`."""
        self._run = run
        scribe = Scribe(
            self._book,
            self._name,
            run.instance_id,
            version("wattserve"),
            run.started_unix_ns,
            round(self._kept_s * 1e9),
            self._kept_bytes,
        )
        self._writer = Writer(self._book, scribe, encode, ledgers, self._unix_ns)
        self._writer.start()
        say(f"account book: {self._book.name}{', which is new' if self._book.is_new else ''}")

    async def budgets(self, keys: Callable[[], Keys]) -> Budgets:
        """Those of the tenants of these keys, with what was used of them before now."""
        self.kept = await asyncio.to_thread(
            Budgets, self._name, keys, self.lookup.spent_by, lambda: self._unix_ns() / 1e9
        )
        return self.kept

    async def look_at_others(self) -> None:
        """What other servers of this book use counts too, until cancelled."""
        while self.kept is not None and not self._book.is_sqlite:
            await asyncio.sleep(LOOK_AT_OTHERS_S)
            try:
                self.kept.take(await asyncio.to_thread(self.kept.look))
            except ConfigError as error:
                log.warning("budgets go by what other servers had used before: %s", error)

    def _unix_ns(self) -> int:
        """By the wall clock of now, not of when the run began: hours and budgets are people's."""
        assert self._run is not None
        unix_ns = time.time_ns()
        set_by_ns = unix_ns - self._run.unix_ns(time.monotonic_ns())
        step_ns, which = set_by_ns - self._set_by_ns, "forward" if set_by_ns > self._set_by_ns else "back"
        if abs(step_ns) > CLOCK_STEP_NS:
            self._set_by_ns = set_by_ns
            log.warning(
                "account book: the clock was set %s by %.1f s: what is used from now on is added to the "
                "minutes that it tells", which, abs(step_ns) / 1e9,
            )  # fmt: skip
        return unix_ns

    def put(self, receipt: Receipt) -> None:
        """A receipt is final."""
        if self._writer is not None:
            self._writer.put(receipt)
        if self.kept is not None:
            self.kept.final(receipt)

    @property
    def state(self) -> AccountBookState | None:
        return None if self._writer is None else AccountBookState(*self._writer.status[:-1])

    async def receipt(self, receipt_id: str, sees: Sees) -> bytes | None:
        def found() -> Stored | None:
            for row in self._unwritten(lambda each: each.receipt_id == receipt_id):
                return Stored(row.tenant, row.body)
            return self.lookup.receipt(receipt_id)

        stored = await self._ask(self._finding, found)
        return stored.body if stored is not None and sees(stored.tenant) else None

    async def of_request(self, request_id: str, most: int, sees: Sees) -> Sequence[bytes]:
        def found() -> list[bytes]:
            rows = self._unwritten(lambda each: each.request_id == request_id and sees(each.tenant))
            newest = sorted(rows, key=lambda row: row.final_unix_ns, reverse=True)
            stored = self.lookup.of_request(request_id, most, sees)
            return list(dict.fromkeys([*(row.body for row in newest), *(one.body for one in stored)]))[:most]

        return await self._ask(self._finding, found)

    async def usage(
        self,
        since_unix_s: int,
        until_unix_s: int,
        by: By,
        sees: Sees,
        sees_all: bool,
        tell: Callable[[Usage], T],
    ) -> T:
        def told() -> T:
            return tell(usage(self._readable, since_unix_s, until_unix_s, by, sees, sees_all))

        return await self._ask(self._adding, told)

    def _unwritten(self, is_wanted: Callable[[Receipt | Row], bool]) -> Iterable[Row]:
        return () if self._writer is None else self._writer.unwritten(is_wanted)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
        for executor in (self._finding, self._adding):
            executor.shutdown(wait=False, cancel_futures=True)
        self.lookup.close()
        self._book.close()

    async def _ask(self, executor: ThreadPoolExecutor, question: Callable[[], T]) -> T:
        turn = self._turns.setdefault((CALLER.get().name, executor), asyncio.Lock())
        try:
            async with turn:
                return await asyncio.get_running_loop().run_in_executor(executor, question)
        except ConfigError as error:  # in words, of the database
            raise UnavailableError(f"the account book does not answer: {error}") from error
