"""Events to bytes, and back: a block holds the numbers of all its events by column, then words.

An instant, a counter's value or what a step computed for a sequence is told as the difference to what it is
expected to be: mostly to the last one. A receipt or line is told by how many are younger; one that is new is
described. Both are forgotten once the receipt is final.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from operator import add, sub
from typing import Any

from wattserve_server.audit.columns import Columns
from wattserve_server.audit.events import METHODS, Closed, Ended, Event, Heard, Opened, Told
from wattserve_server.energy.inflight import Visit
from wattserve_server.energy.reading import Energy, Reading
from wattserve_server.energy.receipt import Figures, Line, Outcome, Receipt, Role, State, Window, Work

_KINDS = ("ended", "told", "opened", *METHODS, "closed")
_NEW = 0  # in place of how many are younger
_WORK = tuple(f"work.{name}" for name in Work._fields)
_COLUMNS = (
    "kind", "counter", "name", "is_known",
    "reading.at_ns", "reading.uj", "failed.at_ns", "known.at_work", "known.at_ns",
    "visits", "visit.at_ns", "visit.has_left", "visit.ran",
    "windows", "window.since_ns", "window.took_ns", "window.rested_ns", "window.padded", "window.first",
    "window.rows", "window.cpu_ns", "window.loops", "loop_ns",
    "window.lane", "window.lengths", "window.lines", "window.works", "length",
    *_WORK,
    "line", "role", "receipt",
    "outcome", "figures", "state", "energy_uj", "below_uj", "above_uj", "idle_uj",
)  # fmt: skip
_RANDOM = 26  # characters at the end of a receipt's id; those before are the run's
_MOST_NAMES = 1000  # that are known at a time
_NOTHING = Work(0)
_OUTCOMES, _STATES, _ROLES = tuple(Outcome), tuple(State), (None, *Role)


@dataclass(slots=True)
class _Last:
    """What a counter was told last."""

    at_ns: int = 0
    uj: int = 0
    known_ns: int = 0  # up to when no window was missing
    window_end_ns: int = 0

    @property
    def begin_ns(self) -> int:
        """Where the next window is expected to begin: what was running when the counter was read begins
        where what was known ended."""
        return max(self.known_ns, self.window_end_ns)


class _Known:
    """Names that were met before are told by their number. Words that come from a meter's errors may be
    endlessly many, so all are forgotten when they are too many."""

    def __init__(self) -> None:
        self.names: list[Any] = []
        self.numbers: dict[Any, int] = {}

    def learn(self, name: Any) -> None:
        if len(self.names) >= _MOST_NAMES:
            self.names.clear()
            self.numbers.clear()
        self.numbers[name] = len(self.names)
        self.names.append(name)


class Encoder:
    """Encodes one block after another, in order."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}
        self._known = _Known()
        self._receipts: dict[Receipt, int] = {}
        self._lines: dict[Line, int] = {}
        self._works: dict[Line | None, Work] = {}  # the last of each line
        self._next_receipt = self._next_line = 0
        self._out = Columns(_COLUMNS)

    def encode(self, happened: Iterable[Event]) -> bytes:
        """Raises an error for what no server tells."""
        self._out = Columns(_COLUMNS)
        for event in happened:
            self._put(event)
        return self._out.to_bytes()

    def _put(self, event: Event) -> None:
        put = self._out.put
        match event:
            case Ended():
                put("kind", _KINDS.index("ended"))
            case Closed():
                put("kind", _KINDS.index("closed"))
                self._out.say(event)
            case Told(receipt, outcome, figures):
                put("kind", _KINDS.index("told"))
                self._told(receipt, outcome, figures)
            case Opened(counter):
                put("kind", _KINDS.index("opened"))
                self._last[counter] = _Last()
                self._out.say(event)
            case Heard(counter, method, arguments):
                put("kind", _KINDS.index(method))
                put("counter", counter)
                self._heard(method, arguments, self._last[counter])

    def _heard(self, method: str, arguments: tuple[Any, ...], last: _Last) -> None:
        put = self._out.put
        if method == "observe":
            (reading,) = arguments
            put("reading.at_ns", reading.at_ns - last.at_ns)
            put("reading.uj", reading.energy.uj - last.uj)
            last.at_ns, last.uj = reading.at_ns, reading.energy.uj
        elif method == "failed":
            at_ns, reason = arguments
            put("failed.at_ns", at_ns - last.at_ns)
            last.at_ns = at_ns
            self._name(reason)
        elif method == "see_requests":
            put("visits", len(arguments[0]))
            for visit in arguments[0]:
                self._visit(visit, last)
        elif method == "advance":
            windows, known_ns = arguments
            put("windows", len(windows))
            for window in windows:
                self._window(window, last)
            is_at_work = known_ns < last.at_ns
            put("known.at_work", is_at_work)
            put("known.at_ns", known_ns - (last.begin_ns if is_at_work else last.at_ns))
            last.known_ns = known_ns
        else:
            self._out.say(arguments)

    def _visit(self, visit: Visit, last: _Last) -> None:
        put = self._out.put
        self._receipt(visit.receipt)
        put("visit.at_ns", visit.at_ns - last.at_ns)
        put("visit.has_left", visit.has_left)
        put("visit.ran", visit.ran)
        if visit.has_left and not visit.ran:  # no receipt of it is told
            self._receipts.pop(visit.receipt, None)

    def _window(self, window: Window, last: _Last) -> None:
        put = self._out.put
        self._name(window.variant)
        put("window.since_ns", window.start_ns - last.begin_ns)
        put("window.took_ns", window.duration_ns)
        put("window.rested_ns", window.rested_ns - (window.start_ns - last.window_end_ns))
        last.window_end_ns = window.end_ns
        self._maybe("window.cpu_ns", window.cpu_ns, window.duration_ns)
        put("window.loops", len(window.own_ns))
        for own_ns in window.own_ns:
            put("loop_ns", own_ns)
        put("window.first", window.is_first_run)
        put("window.rows", window.packed_rows)
        put("window.lane", window.lane)
        put("window.lines", len(window.lines))
        for line in window.lines:
            self._line(line)
        put("window.works", len(window.work))
        for work, line in zip_longest(window.work, window.lines[: len(window.work)]):
            before, self._works[line] = self._works.get(line, _NOTHING), work
            for column, more in zip(_WORK, map(sub, work, before), strict=True):
                put(column, more)
        put("window.lengths", len(window.lengths) - max(len(window.lines), len(window.work)))
        computed = [work.computed for work in window.work[: len(window.lengths)]]
        for length, expected in zip_longest(window.lengths, computed, fillvalue=0):
            put("length", length - expected)
        put("window.padded", window.padded_length - max(window.lengths, default=0))

    def _line(self, line: Line) -> None:
        if line in self._lines:
            self._out.put("line", self._next_line - self._lines[line])
            return
        self._lines[line] = self._next_line
        self._next_line += 1
        self._out.put("line", _NEW)
        self._out.put("role", _ROLES.index(line.role))
        self._receipt(line.receipt)

    def _receipt(self, receipt: Receipt) -> None:
        if receipt in self._receipts:
            self._out.put("receipt", self._next_receipt - self._receipts[receipt])
            return
        self._receipts[receipt] = self._next_receipt
        self._next_receipt += 1
        self._out.put("receipt", _NEW)
        self._name(receipt.receipt_id[:-_RANDOM])  # of the run
        self._out.say(receipt.receipt_id[-_RANDOM:])
        for name in (receipt.variant, receipt.device, receipt.parts, receipt.idle_policy):
            self._name(name)

    def _told(self, receipt: Receipt, outcome: Outcome, figures: tuple[Figures, ...]) -> None:
        put = self._out.put
        self._receipt(receipt)
        del self._receipts[receipt]
        for line in receipt.lines:
            self._lines.pop(line, None)
            self._works.pop(line, None)
        put("outcome", _OUTCOMES.index(outcome))
        put("figures", len(figures))
        for each in figures:
            energy_uj = each.energy_uj or 0
            put("state", _STATES.index(each.state))
            self._maybe("energy_uj", each.energy_uj)
            low_uj, high_uj = each.interval_uj or (None, None)
            self._maybe("above_uj", high_uj, energy_uj)
            if low_uj is not None and high_uj is not None:
                put("below_uj", 2 * energy_uj - low_uj - high_uj)  # more than above
            self._maybe("idle_uj", each.idle_share_uj)
            self._name(each.reason)

    def _maybe(self, column: str, number: int | None, expected: int = 0) -> None:
        self._out.put("is_known", number is not None)
        if number is not None:
            self._out.put(column, number - expected)

    def _name(self, name: Any) -> None:
        known = self._known
        number = known.numbers.get(name)
        if number is None:
            known.learn(name)
            number = -1
            self._out.say(name)
        self._out.put("name", number)


class Decoder:
    """Decodes one block after another, in order."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}
        self._known = _Known()
        self._receipts: dict[int, Receipt] = {}
        self._lines: dict[int, Line] = {}
        self._lines_of: dict[Receipt, list[int]] = {}
        self._works: dict[Line | None, Work] = {}
        self._next_receipt = self._next_line = 0
        self._in = Columns(_COLUMNS)

    def decode(self, block: bytes) -> Iterator[Event]:
        """Raises ValueError, LookupError, TypeError, AttributeError or OverflowError for what no `Encoder`
        wrote."""
        self._in = Columns.from_bytes(_COLUMNS, block)
        while not self._in.is_empty:
            yield self._event()

    def _event(self) -> Event:
        take = self._in.take
        kind = _KINDS[take("kind")]
        if kind == "ended":
            return Ended()
        if kind == "closed":
            counter, accounts = self._in.hear()
            return Closed(counter, accounts)
        if kind == "told":
            return self._told()
        if kind == "opened":
            counter, name, part, origin, settings = self._in.hear()
            self._last[counter] = _Last()
            if settings["wraps_at"] is not None:
                settings["wraps_at"] = Energy(settings["wraps_at"])
            return Opened(counter, name, part, origin, settings)
        counter = take("counter")
        return Heard(counter, kind, self._heard(kind, self._last[counter]))

    def _heard(self, method: str, last: _Last) -> tuple[Any, ...]:
        take = self._in.take
        if method == "observe":
            last.at_ns += take("reading.at_ns")
            last.uj += take("reading.uj")
            return (Reading(last.at_ns, Energy(last.uj)),)
        if method == "failed":
            last.at_ns += take("failed.at_ns")
            return last.at_ns, self._name()
        if method == "see_requests":
            return ([self._visit(last) for _ in range(take("visits"))],)
        if method == "advance":
            windows = [self._window(last) for _ in range(take("windows"))]
            last.known_ns = last.begin_ns if take("known.at_work") else last.at_ns
            last.known_ns += take("known.at_ns")
            return windows, last.known_ns
        return tuple(self._in.hear())

    def _visit(self, last: _Last) -> Visit:
        take = self._in.take
        number, receipt = self._receipt()
        at_ns = last.at_ns + take("visit.at_ns")
        has_left, ran = bool(take("visit.has_left")), bool(take("visit.ran"))
        if has_left and not ran:
            self._lines_of.pop(self._receipts.pop(number), None)
        return Visit(receipt, at_ns, has_left, ran)

    def _window(self, last: _Last) -> Window:
        take = self._in.take
        variant = self._name()
        start_ns = last.begin_ns + take("window.since_ns")
        end_ns = start_ns + take("window.took_ns")
        rested_ns = start_ns - last.window_end_ns + take("window.rested_ns")
        last.window_end_ns = end_ns
        cpu_ns = self._maybe("window.cpu_ns", end_ns - start_ns)
        own_ns = tuple([take("loop_ns") for _ in range(take("window.loops"))])
        is_first_run = bool(take("window.first"))
        rows, lane = take("window.rows"), take("window.lane")
        lines = tuple([self._line() for _ in range(take("window.lines"))])
        count = take("window.works")
        work = tuple([self._work(line) for _, line in zip_longest(range(count), lines[:count])])
        count = max(len(lines), len(work)) + take("window.lengths")
        computed = [each.computed for each in work[:count]]
        lengths = tuple(
            [take("length") + expected for _, expected in zip_longest(range(count), computed, fillvalue=0)]
        )
        padded_length = max(lengths, default=0) + take("window.padded")
        return Window(
            variant, start_ns, end_ns, lengths, padded_length, lines, is_first_run, rested_ns, rows,
            cpu_ns=cpu_ns, own_ns=own_ns, lane=lane, work=work,
        )  # fmt: skip

    def _work(self, line: Line | None) -> Work:
        more = [self._in.take(column) for column in _WORK]
        computed, pairs, logits, read, begins = map(add, self._works.get(line, _NOTHING), more)
        work = self._works[line] = Work(computed, pairs, logits, read, bool(begins))
        return work

    def _line(self) -> Line:
        if younger := self._in.take("line"):
            return self._lines[self._next_line - younger]
        role = _ROLES[self._in.take("role")]
        _, receipt = self._receipt()
        line = self._lines[self._next_line] = Line(receipt, 0, role=role)
        receipt.lines.append(line)
        self._lines_of[receipt].append(self._next_line)
        self._next_line += 1
        return line

    def _receipt(self) -> tuple[int, Receipt]:
        """With its number."""
        if younger := self._in.take("receipt"):
            number = self._next_receipt - younger
            return number, self._receipts[number]
        number = self._next_receipt
        receipt_id = self._name() + self._in.hear()
        variant, device, parts, idle_policy = [self._name() for _ in range(4)]
        receipt = self._receipts[number] = Receipt(
            receipt_id, "", variant, device, 0, tuple(parts), idle_policy=idle_policy
        )
        self._lines_of[receipt] = []
        self._next_receipt += 1
        return number, receipt

    def _told(self) -> Told:
        take = self._in.take
        number, receipt = self._receipt()
        del self._receipts[number]
        for line in self._lines_of.pop(receipt):
            self._works.pop(self._lines.pop(line), None)
        outcome = _OUTCOMES[take("outcome")]
        return Told(receipt, outcome, tuple([self._figures() for _ in range(take("figures"))]))

    def _figures(self) -> Figures:
        take = self._in.take
        state, energy_uj = _STATES[take("state")], self._maybe("energy_uj")
        interval_uj, high_uj = None, self._maybe("above_uj", energy_uj or 0)
        if high_uj is not None:
            interval_uj = 2 * (energy_uj or 0) - high_uj - take("below_uj"), high_uj
        return Figures(state, energy_uj, interval_uj, self._maybe("idle_uj"), None, self._name())

    def _maybe(self, column: str, expected: int = 0) -> int | None:
        return expected + self._in.take(column) if self._in.take("is_known") else None

    def _name(self) -> Any:
        known, number = self._known, self._in.take("name")
        if number >= 0:
            return known.names[number]
        name = self._in.hear()
        known.learn(tuple(name) if isinstance(name, list) else name)
        return name
