"""Events to bytes, and back: a block is a JSON array of events, each an array that begins with its kind.

An instant or a counter's value is told as the difference to the counter's last one, and what a step computed
for a sequence as the difference to its last step. A receipt or line is told by how many are younger; one that
is new is described. Both are forgotten once the receipt is final.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from operator import add, sub
from typing import Any

from wattserve_server.audit.events import Ended, Event, Heard, Opened, Told
from wattserve_server.energy.inflight import Visit
from wattserve_server.energy.reading import Energy, Reading
from wattserve_server.energy.receipt import Figures, Line, Outcome, Receipt, Role, State, Window, Work

_NOTHING = Work(0)
_OUTCOMES, _STATES = tuple(Outcome), tuple(State)


@dataclass(slots=True)
class _Last:
    """What a counter was told last."""

    at_ns: int = 0
    uj: int = 0
    window_end_ns: int = 0


class Encoder:
    """Encodes one block after another, in order."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}
        self._receipts: dict[Receipt, int] = {}
        self._lines: dict[Line, int] = {}
        self._works: dict[Line | None, Work] = {}  # the last of each line
        self._next_receipt = self._next_line = 0

    def encode(self, happened: Iterable[Event]) -> bytes:
        """Raises an error for what no server tells."""
        rows = (_to_json(self._row(event)) for event in happened)
        return f"[{','.join(rows)}]".encode()

    def _row(self, event: Event) -> list[Any]:
        match event:
            case Ended():
                return ["ended"]
            case Told(receipt, outcome, figures):
                return self._told(receipt, outcome, figures)
            case Opened(counter):
                self._last[counter] = _Last()
                return ["opened", *event]
            case Heard(counter, method, arguments):
                return [method, counter, *self._heard(method, arguments, self._last[counter])]

    def _heard(self, method: str, arguments: tuple[Any, ...], last: _Last) -> Iterable[Any]:
        if method == "observe":
            (reading,) = arguments
            before_ns, before_uj = last.at_ns, last.uj
            last.at_ns, last.uj = reading.at_ns, reading.energy.uj
            return last.at_ns - before_ns, last.uj - before_uj
        if method == "failed":
            at_ns, reason = arguments
            before_ns, last.at_ns = last.at_ns, at_ns
            return at_ns - before_ns, reason
        if method == "see_requests":
            return [[self._visit(visit, last) for visit in arguments[0]]]
        if method == "advance":
            windows, known_until_ns = arguments
            return known_until_ns - last.at_ns, [self._window(window, last) for window in windows]
        return arguments

    def _visit(self, visit: Visit, last: _Last) -> list[Any]:
        row = [self._receipt(visit.receipt), visit.at_ns - last.at_ns, int(visit.has_left), int(visit.ran)]
        if visit.has_left and not visit.ran:  # no receipt of it is told
            self._receipts.pop(visit.receipt, None)
        return row

    def _window(self, window: Window, last: _Last) -> list[Any]:
        since_ns, last.window_end_ns = window.start_ns - last.window_end_ns, window.end_ns
        return [
            window.variant, since_ns, window.duration_ns, window.rested_ns - since_ns, window.lengths,
            window.padded_length, int(window.is_first_run), window.packed_rows, window.cpu_ns, window.lane,
            [self._line(line) for line in window.lines],
            [self._work(work, line) for work, line in _side_by_side(window.work, window.lines)],
        ]  # fmt: skip

    def _work(self, work: Work, line: Line | None) -> list[int]:
        before, self._works[line] = self._works.get(line, _NOTHING), work
        return list(map(sub, work, before))

    def _line(self, line: Line) -> Any:
        if line in self._lines:
            return self._next_line - self._lines[line]
        self._lines[line] = self._next_line
        self._next_line += 1
        return [line.role.value if line.role else None, self._receipt(line.receipt)]

    def _receipt(self, receipt: Receipt) -> Any:
        if receipt in self._receipts:
            return self._next_receipt - self._receipts[receipt]
        self._receipts[receipt] = self._next_receipt
        self._next_receipt += 1
        return [receipt.receipt_id, receipt.variant, receipt.device, receipt.parts, receipt.idle_policy]

    def _told(self, receipt: Receipt, outcome: Outcome, figures: tuple[Figures, ...]) -> list[Any]:
        named = self._receipt(receipt)
        del self._receipts[receipt]
        for line in receipt.lines:
            self._lines.pop(line, None)
            self._works.pop(line, None)
        return ["told", named, _OUTCOMES.index(outcome), [_amounts(each) for each in figures]]


class Decoder:
    """Decodes one block after another, in order."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}
        self._receipts: dict[int, Receipt] = {}
        self._lines: dict[int, Line] = {}
        self._lines_of: dict[Receipt, list[int]] = {}
        self._works: dict[Line | None, Work] = {}
        self._next_receipt = self._next_line = 0

    def decode(self, block: bytes) -> Iterator[Event]:
        """Raises ValueError, LookupError, TypeError or AttributeError for what no `Encoder` wrote."""
        for kind, *row in json.loads(block):
            if kind == "ended":
                yield Ended()
            elif kind == "told":
                yield self._told(*row)
            elif kind == "opened":
                counter, name, part, origin, settings = row
                self._last[counter] = _Last()
                if settings["wraps_at"] is not None:
                    settings["wraps_at"] = Energy(settings["wraps_at"])
                yield Opened(counter, name, part, origin, settings)
            else:
                counter, *told = row
                yield Heard(counter, kind, self._heard(kind, told, self._last[counter]))

    def _heard(self, method: str, told: list[Any], last: _Last) -> tuple[Any, ...]:
        if method == "observe":
            after_ns, more_uj = told
            last.at_ns += after_ns
            last.uj += more_uj
            return (Reading(last.at_ns, Energy(last.uj)),)
        if method == "failed":
            after_ns, reason = told
            last.at_ns += after_ns
            return last.at_ns, reason
        if method == "see_requests":
            return ([self._visit(*visit, last=last) for visit in told[0]],)
        if method == "advance":
            after_ns, windows = told
            return [self._window(*window, last=last) for window in windows], last.at_ns + after_ns
        return tuple(told)

    def _window(
        self, variant: str, since_ns: int, took_ns: int, rested_ns: int, lengths: list[int], longest: int,
        is_first_run: int, rows: int, cpu_ns: int | None, lane: int, ran: list[Any], steps: list[list[int]],
        *, last: _Last,
    ) -> Window:  # fmt: skip
        start_ns = last.window_end_ns + since_ns
        last.window_end_ns = start_ns + took_ns
        lines = tuple([self._line(line) for line in ran])
        work = tuple([self._work(more, line) for more, line in _side_by_side(steps, lines)])
        return Window(
            variant, start_ns, last.window_end_ns, tuple(lengths), longest, lines, bool(is_first_run),
            rested_ns + since_ns, rows, cpu_ns=cpu_ns, lane=lane, work=work,
        )  # fmt: skip

    def _visit(self, named: Any, after_ns: int, has_left: int, ran: int, *, last: _Last) -> Visit:
        number, receipt = self._receipt(named)
        if has_left and not ran:
            self._lines_of.pop(self._receipts.pop(number), None)
        return Visit(receipt, last.at_ns + after_ns, bool(has_left), bool(ran))

    def _work(self, more: list[int], line: Line | None) -> Work:
        computed, pairs, chosen, read, begins = map(add, self._works.get(line, _NOTHING), more)
        work = self._works[line] = Work(computed, pairs, chosen, read, bool(begins))
        return work

    def _line(self, told: Any) -> Line:
        if isinstance(told, int):
            return self._lines[self._next_line - told]
        role, named = told
        _, receipt = self._receipt(named)
        line = self._lines[self._next_line] = Line(receipt, 0, role=role and Role(role))
        receipt.lines.append(line)
        self._lines_of[receipt].append(self._next_line)
        self._next_line += 1
        return line

    def _receipt(self, named: Any) -> tuple[int, Receipt]:
        """With its number."""
        if isinstance(named, int):
            number = self._next_receipt - named
            return number, self._receipts[number]
        number = self._next_receipt
        receipt_id, variant, device, parts, idle_policy = named
        receipt = self._receipts[number] = Receipt(
            receipt_id, "", variant, device, 0, tuple(parts), idle_policy=idle_policy
        )
        self._lines_of[receipt] = []
        self._next_receipt += 1
        return number, receipt

    def _told(self, named: Any, outcome: int, figures: list[list[Any]]) -> Told:
        number, receipt = self._receipt(named)
        del self._receipts[number]
        for line in self._lines_of.pop(receipt):
            self._works.pop(self._lines.pop(line), None)
        return Told(receipt, _OUTCOMES[outcome], tuple([_figures(*each) for each in figures]))


def _side_by_side(work: Any, lines: tuple[Line, ...]) -> Iterator[tuple[Any, Line | None]]:
    """What a step computed for each sequence, with its line, where it has any."""
    return zip_longest(work, lines[: len(work)])


def _amounts(figures: Figures) -> list[Any]:
    energy_uj = figures.energy_uj or 0
    low_uj, high_uj = figures.interval_uj or (None, None)
    return [
        _STATES.index(figures.state), figures.energy_uj, None if low_uj is None else energy_uj - low_uj,
        None if high_uj is None else high_uj - energy_uj, figures.idle_share_uj, figures.reason,
    ]  # fmt: skip


def _figures(
    state: int, energy_uj: int | None, below_uj: int | None, above_uj: int | None, idle_uj: int | None,
    reason: str,
) -> Figures:  # fmt: skip
    interval_uj = None
    if below_uj is not None and above_uj is not None:
        interval_uj = (energy_uj or 0) - below_uj, (energy_uj or 0) + above_uj
    return Figures(_STATES[state], energy_uj, interval_uj, idle_uj, None, reason)


def _plain(value: Any) -> int:
    """Of what JSON does not know: an energy in microjoules, or a number of numpy's."""
    return value.uj if isinstance(value, Energy) else int(value)


# Of one event at a time: a second's lists, kept together, would have Python look for garbage in them.
_to_json = json.JSONEncoder(separators=(",", ":"), default=_plain).encode
