"""The receipt book: every receipt by its id and by its request's, for a stated time; who waits for which.

Lives on the event loop. Final receipts are kept for `retention_s`, and no more than `retention_count` of them
or `retention_bytes`: the oldest leave first.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from wattserve_server.energy.receipt import ACCELERATOR, Charge, Receipt
from wattserve_server.errors import NotFound, OverloadedError

_RECEIPT_ID = re.compile(r"([0-9a-f]{12})-[0-9a-z]+")
RANDOM_BYTES = 16  # of an id: who was not told it does not guess it

Sees = Callable[[str], bool]  # whether the receipts of a tenant may be read


def of_all(tenant: str) -> bool:
    return True


# Of memory, as measured: a receipt, each of its lines, and of a line each of its parts but the first.
RECEIPT_BYTES = 1000
LINE_BYTES = 327
PART_BYTES = 176

WATCH_QUEUE = 100_000  # final receipts that may wait for a slow watcher before its stream is ended


@dataclass(frozen=True, slots=True)
class Run:
    """One start of the server: its name, and the one clock of all that it tells."""

    instance_id: str = field(default_factory=lambda: secrets.token_hex(6))
    started_unix_ns: int = field(default_factory=time.time_ns)
    started_ns: int = field(default_factory=time.monotonic_ns)

    def unix_ns(self, at_ns: int) -> int:
        """An instant of the monotonic clock, told by the wall clock as it was at the start."""
        return self.started_unix_ns + at_ns - self.started_ns

    def __str__(self) -> str:
        begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started_unix_ns / 1e9))
        return f"run {self.instance_id}, started {begun}"


class ReceiptWatch:
    """An async iterator over final receipts; `close` it when done.

    Raises OverloadedError once its caller has fallen too far behind; it then holds nothing more.
    """

    def __init__(self, watches: set[ReceiptWatch], sees: Sees = of_all) -> None:
        self._sees = sees
        self._queue: asyncio.Queue[Receipt | None] = asyncio.Queue()
        self._watches = watches
        self._is_overrun = False
        watches.add(self)

    def put(self, receipt: Receipt) -> None:
        if not self._sees(receipt.tenant):
            return
        if self._queue.qsize() < WATCH_QUEUE:
            self._queue.put_nowait(receipt)
        else:
            self._is_overrun = True

    def end(self) -> None:
        self._queue.put_nowait(None)

    def close(self) -> None:
        self._watches.discard(self)

    def __aiter__(self) -> ReceiptWatch:
        return self

    async def __anext__(self) -> Receipt:
        if self._is_overrun:
            raise OverloadedError(f"this watcher fell {WATCH_QUEUE} receipts behind; it was ended")
        receipt = await self._queue.get()
        if receipt is None:
            raise StopAsyncIteration
        return receipt


class ByRequest:
    """The receipts of each request id, which callers choose: it need not be unique, and one that is empty is
    none. Holds what it was given until that is removed."""

    def __init__(self) -> None:
        self._by_id: dict[str, Receipt | dict[Receipt, None]] = {}  # most ids have one, which needs no dict

    def __len__(self) -> int:
        """How many request ids there are."""
        return len(self._by_id)

    def put(self, receipt: Receipt) -> None:
        if not receipt.request_id:
            return
        known = self._by_id.setdefault(receipt.request_id, receipt)
        if known is receipt:
            return
        if isinstance(known, Receipt):
            known = self._by_id[receipt.request_id] = {known: None}
        known[receipt] = None

    def remove(self, receipt: Receipt) -> None:
        known = self._by_id.get(receipt.request_id)
        if isinstance(known, dict):
            del known[receipt]
        if known is receipt or known == {}:
            del self._by_id[receipt.request_id]

    def newest_first(self, request_id: str) -> Iterator[Receipt]:
        known = self._by_id.get(request_id, {})
        return iter((known,)) if isinstance(known, Receipt) else reversed(known)


class ReceiptBook:
    """on_final is called with every receipt of which something ran, once it is final."""

    def __init__(
        self,
        retention_s: float,
        retention_count: int,
        on_final: Callable[[Receipt], None],
        clock: Callable[[], float] = time.monotonic,
        retention_bytes: float = float("inf"),
        max_watchers: float = float("inf"),
    ) -> None:
        self.retention_s = retention_s
        self.retention_count = retention_count
        self._retention_bytes = retention_bytes
        self._max_watchers = max_watchers
        self.kept_bytes = 0  # of final receipts, about
        self.run = Run()
        self._on_final = on_final
        self._clock = clock
        self._receipts: dict[str, Receipt] = {}
        self._by_request = ByRequest()  # the same ones
        self._final: deque[tuple[float, str]] = deque()
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._watches: set[ReceiptWatch] = set()
        self._is_closed = False
        self._charged_uj: dict[str, int] = {}  # by counter; receipts are forgotten, this is not
        self._residuals_uj: dict[str, int] = {}

    @property
    def pending(self) -> int:
        """Receipts that are not final yet."""
        return len(self._receipts) - len(self._final)

    def open(
        self,
        request_id: str,
        variant: str,
        device: str,
        parts: tuple[str, ...] = (ACCELERATOR,),
        tenant: str = "",
    ) -> Receipt:
        """A new receipt with an id that no other receipt of any server has. parts: of the machine, which will
        charge it. tenant: whose it is."""
        random = base64.b32encode(secrets.token_bytes(RANDOM_BYTES)).decode().rstrip("=").lower()
        receipt_id = f"{self.run.instance_id}-{random}"
        receipt = Receipt(receipt_id, request_id, variant, device, time.time_ns(), parts, tenant=tenant)
        self._receipts[receipt_id] = receipt
        self._by_request.put(receipt)
        return receipt

    def ended(self, receipt: Receipt) -> None:
        """Its request has ended, one way or another. One of which nothing ran is forgotten."""
        if not receipt.ran:
            self._forget(receipt.receipt_id)
            self._wake(receipt)
            receipt.lines.clear()  # each refers back to it: a cycle would stay until Python looks for garbage
        elif receipt.is_final:
            self._keep(receipt)

    def residual_uj(self, counter: str) -> int:
        """A counter's active account, less all that its receipts were ever charged: 0, always. Both are as of
        the last settlement that has arrived here, so that one which is under way makes no difference."""
        return self._residuals_uj.get(counter, 0)

    def settle(self, counter: str, part: str, charges: Sequence[Charge], active_uj: int) -> None:
        """What the accountant of one counter has settled, and what its active account holds with it. part:
        of the machine, which it counts."""
        try:
            self._charge(counter, part, charges)
        finally:
            self._residuals_uj[counter] = active_uj - self._charged_uj.get(counter, 0)

    def _charge(self, counter: str, part: str, charges: Sequence[Charge]) -> None:
        """Write charges on their receipts."""
        for charge in charges:
            receipt = charge.line.receipt
            receipt.charge(charge, part)
            self._charged_uj[counter] = self._charged_uj.get(counter, 0) + (charge.energy_uj or 0)
            if receipt.is_final:
                self._keep(receipt)

    def get(self, receipt_id: str, sees: Sees = of_all) -> Receipt:
        """Raises NotFound for an id that never was, is of another run, or whose retention is over; and in the
        same words for one that may not be read."""
        self._forget_old(self._clock())
        receipt = self._receipts.get(receipt_id)
        if receipt is None or not sees(receipt.tenant):
            raise NotFound(f"no receipt {receipt_id[:80]!r}: {self._why_not(receipt_id)}", "receipt_id")
        return receipt

    def find(self, request_id: str, most: int, sees: Sees = of_all) -> list[Receipt]:
        """The receipts of a caller's own id of which something runs or ran, newest first; the newest `most`.

        Raises NotFound where there are none.
        """
        self._forget_old(self._clock())
        named = self._by_request.newest_first(request_id)
        found = list(islice((receipt for receipt in named if receipt.ran and sees(receipt.tenant)), most))
        if not found:
            raise NotFound(
                f"no receipt of a request {request_id[:80]!r}: nothing of one ran, it is {self._bounds}, or "
                f"of another run; this server is {self.run}",
                "request_id",
            )
        return found

    @property
    def _bounds(self) -> str:
        size = "" if self._retention_bytes == float("inf") else f" or {self._retention_bytes / 1e6:g} MB"
        return f"older than {self.retention_s:g} s or the last {self.retention_count} receipts{size}"

    def _why_not(self, receipt_id: str) -> str:
        named = _RECEIPT_ID.fullmatch(receipt_id)
        if named and named[1] != self.run.instance_id:
            return (
                f"it is of run {named[1]}; this server is {self.run}, and receipts do not outlive their run"
            )
        return f"it never existed, nothing of its request ran, or it is {self._bounds}"

    async def until_final(self, receipt: Receipt) -> None:
        """Wait until nothing of the receipt will change any more."""
        while not receipt.is_final:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(receipt.receipt_id, []).append(waiter)
            await waiter

    def watch(self, sees: Sees = of_all) -> ReceiptWatch:
        """Every receipt that `sees` lets pass and that becomes final from now on, until the watch or the book
        is closed. Raises OverloadedError where too many watch already: each costs the event loop a message
        for each receipt."""
        if self.watchers >= self._max_watchers:
            raise OverloadedError(
                f"{self.watchers} watch all receipts already, and no more may (--max-watchers); watch "
                "receipts by their ids",
                "watchers",
            )
        watch = ReceiptWatch(self._watches, sees)
        if self._is_closed:
            watch.end()
        return watch

    @property
    def watchers(self) -> int:
        """How many watch all receipts."""
        return len(self._watches)

    def close(self) -> None:
        """End every watch after what it has still to be sent."""
        self._is_closed = True
        for watch in self._watches:
            watch.end()

    def _keep(self, receipt: Receipt) -> None:
        now_s = self._clock()
        self._final.append((now_s, receipt.receipt_id))
        self.kept_bytes += _bytes_of(receipt)
        self._on_final(receipt)
        self._wake(receipt)
        for watch in self._watches:
            watch.put(receipt)
        self._forget_old(now_s)

    def _wake(self, receipt: Receipt) -> None:
        for waiter in self._waiters.pop(receipt.receipt_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _forget_old(self, now_s: float) -> None:
        oldest_s = now_s - self.retention_s
        while self._final and (
            self._final[0][0] < oldest_s
            or len(self._final) > self.retention_count
            or self.kept_bytes > self._retention_bytes
        ):
            self.kept_bytes -= _bytes_of(self._forget(self._final.popleft()[1]))

    def _forget(self, receipt_id: str) -> Receipt:
        receipt = self._receipts.pop(receipt_id)
        self._by_request.remove(receipt)
        return receipt


def _bytes_of(receipt: Receipt) -> int:
    line_bytes = LINE_BYTES + PART_BYTES * (len(receipt.parts) - 1)
    return RECEIPT_BYTES + len(receipt.request_id) + line_bytes * len(receipt.lines)
