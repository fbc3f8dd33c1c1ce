"""A device, a front end and requests, in virtual time.

    client -> front end (reads) -> queue -> device, one batch at a time -> front end (answers) -> client

The front end is one core of its own that does one thing at a time. A batch takes a fixed time and a time
per computed token, the longer the row of the token the more.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from wattserve_server.engine.policy import BatchCost, BatchLimits, turn_ns
from wattserve_server.engine.variants.packing import pack
from wattserve_server.errors import OverloadedError

LONGEST = 512
"""Tokens of the longest sequence that the model takes."""


@dataclass(frozen=True)
class Device:
    """overhead_ms: of a batch. token_us: per computed token, less its attention, which adds the length of its
    row / width to that. max_tokens: of a batch."""

    name: str
    overhead_ms: float
    token_us: float
    width: int
    max_tokens: int = 2048

    def computed(self, lengths: Items[int], packs: bool) -> tuple[int, int]:
        """(rows, their length)."""
        layout = pack(lengths, self.width, LONGEST) if packs else None
        return (len(lengths), max(lengths)) if layout is None else (layout.rows, layout.length)

    def batch_ns(self, rows: int, length: int) -> int:
        tokens = rows * length * (1 + length / self.width)
        return round(self.overhead_ms * 1e6 + tokens * self.token_us * 1e3)

    def cost(self, packs: bool) -> BatchCost:
        """What the server learns of it at warm-up."""
        return BatchCost(self.overhead_ms * 1e3 / self.token_us, packs, self.width)

    def sequences_per_s(self, lengths: Items[int], packs: bool, batch: int = 32) -> float:
        """At most: packed in order of arrival, or padded in order of length."""
        ordered = lengths if packs else sorted(lengths)
        spent = sum(
            self.batch_ns(*self.computed(ordered[start : start + batch], packs))
            for start in range(0, len(ordered), batch)
        )
        return len(lengths) / spent * 1e9


@dataclass(slots=True, eq=False)
class Request:
    """As much of a request as the queue looks at, and what became of it. Instants in ns."""

    number: int
    variant: str
    priority: int
    deadline_ns: int | None
    sent_ns: int
    sequences: list[Sequence] = field(default_factory=list)
    queued_ns: int = -1
    started_ns: int = -1
    answered_ns: int = -1
    is_expired: bool = False
    caller: str = ""

    @property
    def tokens(self) -> int:
        return sum(sequence.length for sequence in self.sequences)

    @property
    def leaves_ns(self) -> int | None:
        """When it leaves the queue without having run."""
        return self.deadline_ns


@dataclass(slots=True, eq=False)
class Sequence:
    request: Request
    length: int
    queued_ns: int
    turn_ns: int

    @property
    def deadline_ns(self) -> int | None:
        return self.request.deadline_ns


class Rule(Protocol):
    """What decides: a queue."""

    def put(self, request: Request, now_ns: int) -> object: ...

    def take(self, now_ns: int) -> list[Sequence] | int | None: ...

    def began(self, batch: list[Sequence], now_ns: int) -> None: ...

    def ended(self, now_ns: int) -> None: ...


MakeRule = Callable[[BatchLimits, dict[str, BatchCost], Callable[[Request, int], None]], Rule]


@dataclass
class Run:
    requests: list[Request] = field(default_factory=list)  # in order of their ends
    real_tokens: int = 0
    computed_tokens: int = 0
    batches: int = 0
    end_ns: int = 0


class World:
    """devices: how each variant's batches behave, on the one device that there is. front_ms: what the front
    end spends on a request, half of it before and half after. on_end: called with every request's end."""

    def __init__(
        self,
        devices: dict[str, Device],
        packs: bool,
        limits: BatchLimits,
        make_rule: MakeRule,
        front_ms: float,
        on_end: Callable[[Request], None] = lambda request: None,
    ) -> None:
        self._devices = devices
        self._packs = packs
        costs = {name: device.cost(packs) for name, device in devices.items()}
        self._rule = make_rule(limits, costs, self._expire)
        self._half_front_ns = round(front_ms * 1e6 / 2)
        self._on_end = on_end
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = count()
        self._front_free_ns = 0
        self._device_free_ns = 0
        self.now_ns = 0
        self.run = Run()

    def send(self, request: Request, length: int) -> None:
        """To be called before `until_quiet`, or by `on_end`."""
        self._at(request.sent_ns, self._read, request, length)

    def until_quiet(self) -> Run:
        while self._events:
            self.now_ns, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)
        self.run.end_ns = self.now_ns
        return self.run

    def _at(self, instant_ns: int, action: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._events, (instant_ns, next(self._order), action, arguments))

    def _by_front_end(self, action: Callable[..., None], *arguments: object) -> None:
        self._front_free_ns = max(self._front_free_ns, self.now_ns) + self._half_front_ns
        self._at(self._front_free_ns, action, *arguments)

    def _read(self, request: Request, length: int) -> None:
        self._by_front_end(self._queue, request, length)

    def _queue(self, request: Request, length: int) -> None:
        request.queued_ns = self.now_ns
        turn = turn_ns(self.now_ns, request.priority)
        request.sequences.append(Sequence(request, length, self.now_ns, turn))
        try:
            self._rule.put(request, self.now_ns)
        except OverloadedError:  # its deadline cannot be met
            self._expire(request, 0)
        self._next_batch()

    def _next_batch(self) -> None:
        if self._device_free_ns > self.now_ns:
            return
        work = self._rule.take(self.now_ns)
        if isinstance(work, int):
            self._at(work, self._next_batch)
        elif work is not None:
            self._rule.began(work, self.now_ns)
            lengths = [sequence.length for sequence in work]
            device = self._devices[work[0].request.variant]
            rows, length = device.computed(lengths, self._packs)
            took_ns = device.batch_ns(rows, length)
            self.run.batches += 1
            self.run.real_tokens += sum(lengths)
            self.run.computed_tokens += rows * length
            for sequence in work:
                sequence.request.started_ns = self.now_ns
            self._device_free_ns = self.now_ns + took_ns
            self._at(self._device_free_ns, self._finish, work)

    def _finish(self, batch: list[Sequence]) -> None:
        self._rule.ended(self.now_ns)
        for sequence in batch:
            self._by_front_end(self._answer, sequence.request)
        self._next_batch()

    def _answer(self, request: Request) -> None:
        request.answered_ns = self.now_ns
        self.run.requests.append(request)
        self._on_end(request)

    def _expire(self, request: Request, waiting: int) -> None:
        request.is_expired = True
        self._by_front_end(self._answer, request)
