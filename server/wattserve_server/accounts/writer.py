"""The writer: a thread that puts final receipts and what the ledgers gained into the account book.

Receipts and gains count in the minute in which they come about: a second thread, which no database holds up,
has the ledgers counted at each minute's edge. Requests never wait for either. What was handed over is written
together, in one transaction, so that receipts, rollups and ledgers in the book agree whenever the process
ends. While the book cannot be written, receipts wait in a bounded buffer; what finds no room in it is still
in the rollups, and a break in the book says how many receipts there are of which it holds no more than that.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from wattserve_common.words import counted
from wattserve_server.accounts.batch import Attempt, Row, Scribe, TakenName
from wattserve_server.accounts.rollups import MINUTE_NS, Rollups, amounts_of
from wattserve_server.accounts.store import Book, in_words
from wattserve_server.energy.ledger import Counted
from wattserve_server.energy.receipt import Receipt

log = logging.getLogger(__name__)

PERIOD_S = 0.5  # between two transactions: a process that is killed loses no more
MOST_WAITING = 100_000  # receipts, of about 600 bytes each
CLOSING_S = 10.0  # for which the last transaction may take
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 10.0

# The message that a receipt's caller is told, in bytes.
Encode = Callable[[Receipt], bytes]


class Status(NamedTuple):
    """For metrics. Any thread."""

    is_writing: bool
    written: int  # receipts, since the start
    waiting: int  # receipts
    left_out: int  # receipts that are in rollups alone, since the start
    removed: int  # receipts that retention has taken out, since the start
    kept_bytes: int  # of receipts in the book, about
    written_unix_ns: int  # until when all is in the book
    last_error: str


@dataclass(slots=True)
class _Waiting:
    """What is to be written next."""

    rows: list[Row] = field(default_factory=list)
    rollups: Rollups = field(default_factory=Rollups)
    left_out: int = 0
    left_out_since_ns: int = 0


class Writer:
    """Hand final receipts to `put`, from one thread. ledgers: of every counter, by its name, as they are now.
    unix_ns: the clock of the run."""

    def __init__(
        self,
        book: Book,
        scribe: Scribe,
        encode: Encode,
        ledgers: Callable[[], Mapping[str, Counted]],
        unix_ns: Callable[[], int],
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._book, self._scribe, self._encode = book, scribe, encode
        self._ledgers, self._unix_ns = ledgers, unix_ns
        self._most_waiting = most_waiting
        self._intake: deque[tuple[Receipt, int]] = deque()
        self._waiting = _Waiting()
        self._attempt: Attempt | None = None  # whose fate is not known
        self._lock = threading.Lock()  # of the next three
        self._minute_ns = unix_ns()  # an instant of the minute to which gains are added
        self._seen: dict[str, list[int]] = {}  # of each ledger, what has been counted
        self._gains = Rollups()  # their accounts alone
        self._left_out = 0
        self._last_error = ""
        self._retry_s = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattserve-accounts", daemon=True)
        self._minutes = threading.Thread(
            target=self._follow_minutes, name="wattserve-account-minutes", daemon=True
        )

    @property
    def status(self) -> Status:
        scribe, attempt = self._scribe, self._attempt
        waiting = len(self._intake) + len(self._waiting.rows) + (0 if attempt is None else len(attempt.rows))
        return Status(
            not self._last_error,
            scribe.written,
            waiting,
            self._left_out,
            scribe.removed,
            scribe.kept_bytes,
            scribe.written_unix_ns,
            self._last_error,
        )

    def put(self, receipt: Receipt) -> None:
        """A receipt is final. Never waits, never raises."""
        self._intake.append((receipt, self.turn()))

    def unwritten(self, is_wanted: Callable[[Receipt | Row], bool]) -> Iterator[Row]:
        """Of what may not be in the book yet, and may be. Any thread: it looks where they come from first, so
        that none slips by."""
        for receipt, at_ns in list(self._intake):
            if is_wanted(receipt):
                yield self._row(receipt, at_ns)
        yield from filter(is_wanted, list(self._waiting.rows))
        if (attempt := self._attempt) is not None:
            yield from filter(is_wanted, attempt.rows)

    def turn(self) -> int:
        """What time it is. In another minute than before, what the ledgers have gained until now is of that
        one. Any thread."""
        with self._lock:
            now_ns = self._unix_ns()
            if now_ns // MINUTE_NS != self._minute_ns // MINUTE_NS:
                self._count()
                self._minute_ns = now_ns
            return now_ns

    def start(self) -> None:
        self._thread.start()
        self._minutes.start()

    def close(self) -> None:
        """Write what is left, say that the instance has ended, and let go of the book."""
        self._stopping.set()
        self._minutes.join()
        self._thread.join(CLOSING_S)
        if self._thread.is_alive():
            self._last_error = f"not within {CLOSING_S:g} s"
        if self._last_error:
            lost = self.status.waiting
            log.error(
                "account book %s: its end could not be written; %s, and what counters gained since, "
                "are a break in it", self._book.name, counted(lost, "receipt"),
            )  # fmt: skip
        self._scribe.close()
        self._book.close()

    def _follow_minutes(self) -> None:
        left_s = 0.0
        while not self._stopping.wait(min(left_s, PERIOD_S)):  # the clock may be set
            left_s = (MINUTE_NS - self.turn() % MINUTE_NS) / 1e9

    def _run(self) -> None:
        while not self._stopping.wait(max(PERIOD_S, self._retry_s)):
            self.write()
        self.write(is_last=True)

    def write(self, is_last: bool = False) -> None:
        """Write what is there. Called by the thread; by tests, instead of it."""
        try:
            self._take()
            if self._attempt is not None:  # first that which may be in the book already
                self._commit(self._attempt)
            waiting = self._waiting
            left_out = waiting.left_out, waiting.left_out_since_ns
            attempt = self._scribe.prepare(waiting.rows, waiting.rollups, self._unix_ns(), left_out, is_last)
            self._attempt = attempt
            self._waiting = _Waiting()
            self._commit(attempt)
        except TakenName as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(in_words(error))

    def _commit(self, attempt: Attempt) -> None:
        self._scribe.write(attempt)
        self._attempt = None
        if self._last_error:
            log.warning("the account book %s is written again", self._book.name)
        self._last_error, self._retry_s = "", 0.0

    def _fail(self, words: str) -> None:
        self._retry_s = min(max(2 * self._retry_s, FIRST_RETRY_S), LAST_RETRY_S)
        self._last_error = words
        log.error(
            "the account book %s cannot be written: %s; %d receipts wait, of %d at the most",
            self._book.name, words, self.status.waiting, self._most_waiting,
        )  # fmt: skip

    def _take(self) -> None:
        """From the event loop and the ledgers into what waits."""
        for _ in range(len(self._intake)):  # what comes meanwhile is for the next time
            receipt, at_ns = self._intake[0]
            try:
                self._add(receipt, at_ns)
            finally:
                self._intake.popleft()  # for `unwritten` no sooner
        self.turn()
        with self._lock:
            self._count()
            gains, self._gains = self._gains, Rollups()
        self._waiting.rollups.add_all_accounts(gains)

    def _add(self, receipt: Receipt, at_ns: int) -> None:
        waiting = self._waiting
        waiting.rollups.add(receipt, at_ns)
        held = len(waiting.rows) + (0 if self._attempt is None else len(self._attempt.rows))
        if held < self._most_waiting:
            waiting.rows.append(self._row(receipt, at_ns))
            return
        waiting.left_out_since_ns = waiting.left_out_since_ns or at_ns
        waiting.left_out += 1
        self._left_out += 1

    def _row(self, receipt: Receipt, at_ns: int) -> Row:
        body = self._encode(receipt)
        return Row(receipt.receipt_id, receipt.request_id, receipt.tenant, at_ns, body)

    def _count(self) -> None:
        """What the ledgers have gained is of the minute that began last. With the lock."""
        gained: dict[str, list[int]] = {}
        for counter, (source, ledger) in self._ledgers().items():
            now = amounts_of(ledger)
            before = self._seen.get(counter, [0] * len(now))
            gained[f"{counter}: {source}"] = [
                amount - known for amount, known in zip(now, before, strict=True)
            ]
            self._seen[counter] = now
        self._gains.add_accounts(self._minute_ns, gained)
