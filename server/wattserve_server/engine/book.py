"""The receipt book: every receipt by its id and by its request's, for a stated time; who waits for which.

Lives on the event loop. Final receipts are kept for `retention_s`, and no more than `retention_count` of them
or `retention_bytes`: the oldest leave first.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from wattserve_server.energy.receipt import ACCELERATOR, Charge, IdleShare, Receipt
from wattserve_server.errors import NotFound, OverloadedError

_RECEIPT_ID = re.compile(r"([0-9a-f]{12})-[0-9a-z]+")
# An id's random end, of 130 bits: who was not told it does not guess it. Each byte becomes a character;
# asking the kernel for many takes hardly longer than for one.
RANDOM_CHARACTERS, POOL = 26, 64
_CHARACTERS = bytes(b"abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in range(256))

Sees = Callable[[str], bool]  # whether the receipts of a tenant may be read
OnOverrun = Callable[[OverloadedError], object]


def of_all(tenant: str) -> bool:
    return True


def random_ends() -> Iterator[str]:
    """As many as are asked for."""
    while True:
        pool = secrets.token_bytes(POOL * RANDOM_CHARACTERS).translate(_CHARACTERS).decode()
        for begin in range(0, len(pool), RANDOM_CHARACTERS):
            yield pool[begin : begin + RANDOM_CHARACTERS]


# Of memory, as measured: a receipt, each of its lines, and of a line each of its parts but the first.
RECEIPT_BYTES = 1000
LINE_BYTES = 327
PART_BYTES = 176

# Final receipts that may wait for a slow watcher, and memory of them, before its stream is ended.
WATCH_QUEUE = 100_000
WATCH_BYTES = 64 * 1024 * 1024

PART_OF_WATCHERS = 4  # no caller may have more than one of so many of their places


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
    """An async iterator over final receipts; `close` it when done. who: watches.

    Once its caller has fallen too far behind it holds nothing more, and on_overrun is called with the error
    that he is to be told: he may never ask for the next one.
    """

    def __init__(
        self,
        watches: set[ReceiptWatch],
        sees: Sees,
        who: str,
        on_overrun: OnOverrun,
    ) -> None:
        self.who = who
        self._sees = sees
        self._on_overrun = on_overrun
        self._queue: asyncio.Queue[Receipt | None] = asyncio.Queue()
        self._bytes = 0  # of what waits
        self._watches = watches
        self._is_overrun = False
        watches.add(self)

    def put(self, receipt: Receipt) -> None:
        if self._is_overrun or not self._sees(receipt.tenant):
            return
        self._bytes += _bytes_of(receipt)
        self._queue.put_nowait(receipt)
        if self._queue.qsize() > WATCH_QUEUE or self._bytes > WATCH_BYTES:
            self._is_overrun = True
            self._queue = asyncio.Queue()
            behind = f"{WATCH_QUEUE} receipts or {WATCH_BYTES >> 20} MiB of them behind"
            self._on_overrun(OverloadedError(f"this watcher fell {behind}; it was ended", "watchers"))

    def end(self) -> None:
        self._queue.put_nowait(None)

    def close(self) -> None:
        self._watches.discard(self)

    def __aiter__(self) -> ReceiptWatch:
        return self

    async def __anext__(self) -> Receipt:
        receipt = await self._queue.get()
        if receipt is None:
            raise StopAsyncIteration
        self._bytes -= _bytes_of(receipt)
        return receipt


class ByRequest:
    """The receipts of each request id, which callers choose: it need not be unique, and one that is empty is
    none. Each tenant's apart: who looks for his own passes nobody else's. Holds what it was given until that
    is removed."""

    def __init__(self) -> None:
        # By id and tenant; most have one, which needs no dict.
        self._by_id: dict[tuple[str, str], Receipt | dict[Receipt, None]] = {}
        self._tenants: Counter[str] = Counter()  # of which there are any

    def __len__(self) -> int:
        """How many request ids there are, of all tenants."""
        return len(self._by_id)

    def put(self, receipt: Receipt) -> None:
        if not receipt.request_id:
            return
        at = receipt.request_id, receipt.tenant
        self._tenants[receipt.tenant] += 1
        known = self._by_id.setdefault(at, receipt)
        if known is receipt:
            return
        if isinstance(known, Receipt):
            known = self._by_id[at] = {known: None}
        known[receipt] = None

    def remove(self, receipt: Receipt) -> None:
        at = receipt.request_id, receipt.tenant
        known = self._by_id.get(at)
        if known is None:
            return
        self._tenants[receipt.tenant] -= 1
        if isinstance(known, dict):
            del known[receipt]
        if known is receipt or known == {}:
            del self._by_id[at]

    def newest_first(self, request_id: str, sees: Sees) -> Iterator[Receipt]:
        """Of the tenants whose receipts may be read."""
        seen = (tenant for tenant, count in self._tenants.items() if count and sees(tenant))
        found = (self._by_id.get((request_id, tenant), {}) for tenant in seen)
        orders = [iter((each,)) if isinstance(each, Receipt) else reversed(each) for each in found if each]
        return heapq.merge(*orders, key=lambda receipt: -receipt.created_unix_ns)


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
        self._random_ends = random_ends()
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
        receipt_id = f"{self.run.instance_id}-{next(self._random_ends)}"
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
        """Write charges on their receipts. Whether one is final is asked once for all of its lines."""
        charged: dict[Receipt, None] = {}
        try:
            for charge in charges:
                receipt = charge.line.receipt
                receipt.charge(charge, part)
                charged[receipt] = None
                if not charge.line.is_overhead:
                    self._charged_uj[counter] = self._charged_uj.get(counter, 0) + (charge.energy_uj or 0)
        finally:
            for receipt in charged:
                if receipt.is_final:
                    self._keep(receipt)

    def share_idle(self, part: str, shares: Sequence[IdleShare]) -> None:
        """What requests that have ended are told of a counter's idle draw, where that is shared by time."""
        for receipt, amount_uj in shares:
            receipt.share_idle(amount_uj, part)
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
        named = self._by_request.newest_first(request_id, sees)
        found = list(islice((receipt for receipt in named if receipt.ran), most))
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

    def watch(self, sees: Sees = of_all, who: str = "", on_overrun: OnOverrun = bool) -> ReceiptWatch:
        """Every receipt that `sees` lets pass and that becomes final from now on, until the watch or the book
        is closed. who: the caller, if any. on_overrun: see `ReceiptWatch`. Raises
        OverloadedError where too many watch already: each costs the event loop a message for each receipt."""
        if self.watchers >= self._max_watchers:
            raise OverloadedError(
                f"{self.watchers} watch all receipts already, and no more may (--max-watchers); watch "
                "receipts by their ids",
                "watchers",
            )
        own = sum(watch.who == who for watch in self._watches)
        if who and own >= max(1, self._max_watchers / PART_OF_WATCHERS):
            raise OverloadedError(
                f"{who} watches all receipts that he may {own} times already, which is its part of "
                "--max-watchers; watch receipts by their ids",
                "watchers",
            )
        watch = ReceiptWatch(self._watches, sees, who, on_overrun)
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
