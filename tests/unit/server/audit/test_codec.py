"""What is read from an audit file is what was written: events of all kinds, block by block."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattserve_server.audit.codec import Decoder, Encoder
from wattserve_server.audit.columns import Columns
from wattserve_server.audit.events import Ended, Event, Heard, Opened, Told, closed
from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import Energy, Reading
from wattserve_server.energy.receipt import Figures, Line, Outcome, Receipt, Role, State, Window, Work

NS = st.integers(0, 2**62)
UJ = st.integers(0, 2**63)
COUNTS = st.integers(0, 5000)
WORDS = st.text(max_size=20)
MADE_IDS = st.from_regex(r"[0-9a-f]{12}-[a-z2-7]{26}", fullmatch=True)
FIGURES = st.builds(
    lambda state, energy_uj, around, idle_uj, reason: Figures(
        state,
        energy_uj,
        None if around is None else (max(0, (energy_uj or 0) - around[0]), (energy_uj or 0) + around[1]),
        idle_uj,
        None,
        reason,
    ),
    st.sampled_from(State), st.none() | UJ, st.none() | st.tuples(COUNTS, COUNTS), st.none() | UJ, WORDS,
)  # fmt: skip
SETTINGS = {"declared_idle_w": 12.5, "wraps_at": Energy(2**40), "split_rule": "shapley", "most_watts": None}


@st.composite
def windows(draw: st.DrawFn, lines: list[Line]) -> Window:
    ran = draw(st.lists(st.sampled_from(lines), max_size=4, unique_by=id)) if lines else []
    lengths = tuple(draw(st.lists(COUNTS, min_size=max(1, len(ran)), max_size=max(1, len(ran)))))
    work = tuple(
        Work(length, draw(COUNTS), draw(COUNTS), draw(COUNTS), draw(st.booleans())) for length in lengths
    )
    start_ns = draw(NS)
    return Window(
        draw(WORDS), start_ns, start_ns + draw(COUNTS), lengths, draw(COUNTS), tuple(ran),
        draw(st.booleans()), draw(NS), draw(COUNTS), None, draw(st.none() | NS),
        tuple(draw(st.lists(NS, max_size=3))), draw(COUNTS), work if draw(st.booleans()) else (),
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """Counters 0 and 1; receipts are told once at the most, and their lines run in no window from then on."""
    events: list[Event] = [
        Opened(number, draw(WORDS), part, draw(WORDS), SETTINGS) for number, part in enumerate(("a", "b"))
    ]
    receipts: list[Receipt] = []
    for _ in range(draw(st.integers(0, 12))):
        counter = draw(st.integers(0, 1))
        kind = draw(st.sampled_from(["observe", "failed", "see", "advance", "advance", "request", "told"]))
        if kind == "observe":
            events.append(Heard(counter, kind, (Reading(draw(NS), Energy(draw(UJ))),)))
        elif kind == "failed":
            events.append(Heard(counter, kind, (draw(NS), draw(WORDS))))
        elif kind == "see":
            seen = draw(st.none() | COUNTS)
            events.append(Heard(counter, draw(st.sampled_from(["see_neighbours", "see_clock"])), (seen,)))
            share = draw(st.none() | st.floats(allow_nan=False))
            events.append(Heard(counter, "see_others", (share,)))
        elif kind == "advance":
            lines = [line for receipt in receipts for line in receipt.lines]
            events.append(Heard(counter, kind, (draw(st.lists(windows(lines), max_size=3)), draw(NS))))
        elif kind == "request":
            parts = draw(st.sampled_from([("a",), ("a", "b")]))
            receipt = Receipt(draw(MADE_IDS | WORDS), "", draw(WORDS), draw(WORDS), 0, parts)
            roles = draw(st.lists(st.none() | st.sampled_from(Role), min_size=1, max_size=3))
            receipt.lines.extend(Line(receipt, 0, role=role) for role in roles)
            receipts.append(receipt)
        elif receipts:
            receipt = receipts.pop(draw(st.integers(0, len(receipts) - 1)))
            several = 1 + len(receipt.parts) * (len(receipt.parts) > 1)
            figures = tuple(draw(FIGURES) for _ in range(several))
            events.append(Told(receipt, draw(st.sampled_from(Outcome)), figures))
    return [*events, closed(draw(st.integers(0, 1)), Ledger(measured_uj=draw(UJ))), Ended()]


class Plain:
    """Events without identities: receipts and lines are told by the order in which they were first met."""

    def __init__(self) -> None:
        self._lines: dict[Line, int] = {}

    def event(self, event: Event) -> Any:
        match event:
            case Heard(counter, "advance", (ran, known_until_ns)):
                return counter, known_until_ns, [self._window(window) for window in ran]
            case Told(receipt, outcome, figures):
                return self._receipt(receipt), outcome, figures
            case _:
                return event

    def _window(self, window: Window) -> Any:
        names = [name for name in Window.__slots__ if name != "lines"]
        lines = [
            (self._lines.setdefault(line, len(self._lines)), line.role, self._receipt(line.receipt))
            for line in window.lines
        ]
        return [getattr(window, name) for name in names], lines

    def _receipt(self, receipt: Receipt) -> Any:
        return receipt.receipt_id, receipt.variant, receipt.device, receipt.parts


@given(runs(), st.integers(1, 5))
@settings(max_examples=50)
def test_events_come_back_as_they_were(events: list[Event], size: int) -> None:
    encoder, decoder = Encoder(), Decoder()
    read: list[Event] = []
    for begin in range(0, len(events), size):
        read += decoder.decode(encoder.encode(events[begin : begin + size]))
    written, got = Plain(), Plain()
    assert [got.event(event) for event in read] == [written.event(event) for event in events]
    assert [type(event) for event in read] == [type(event) for event in events]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | WORDS
    | st.sampled_from(["observe", "told", "opened"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=12,
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_events_or_refused(block: bytes) -> None:
    with suppress(ValueError, LookupError, TypeError, AttributeError, OverflowError):
        list(Decoder().decode(block))


def test_numbers_of_numpy_are_told_too() -> None:
    """Lengths of images and ids may come as such."""
    ran = Window("fp32", 10, 20, (np.int64(8),), np.int32(8))  # type: ignore[arg-type]
    written: list[Event] = [
        Opened(0, "counter", "a", "simulated", SETTINGS),
        Heard(0, "advance", ([ran], 30)),
    ]
    _, heard = Decoder().decode(Encoder().encode(written))
    assert isinstance(heard, Heard)
    assert heard.arguments[0][0].lengths == (8,)


def test_nothing_of_a_receipt_is_kept_once_it_is_final() -> None:
    """A server runs for months."""
    encoder, decoder = Encoder(), Decoder()
    figures = (Figures(State.SETTLED, 5, (4, 6), 1, None, ""),)
    list(decoder.decode(encoder.encode([Opened(0, "counter", "a", "simulated", SETTINGS)])))
    for index in range(5):
        receipt = Receipt(f"r-{index}", "", "fp32", "cpu", 0, ("a",))
        receipt.lines.append(Line(receipt, 8))
        ran = Window("fp32", 10, 20, (8,), 8, tuple(receipt.lines), work=(Work(8),))
        told = Told(receipt, Outcome.COMPLETED, figures)
        list(decoder.decode(encoder.encode([Heard(0, "advance", ([ran], 30)), told])))
    for each in (encoder, decoder):
        assert [*each._receipts, *each._lines, *each._works] == []
    assert not decoder._lines_of


@given(
    st.lists(st.integers(-(2**70), 2**70) | st.integers(-9, 9)),
    st.integers(1, 2**40),
    st.lists(JSON, max_size=3),
)
def test_numbers_of_any_size_come_back_and_what_divides_all_is_told_once(
    numbers: list[int], divisor: int, words: list[Any]
) -> None:
    written = Columns(("few", "none", "many"))
    for number in numbers:
        written.put("many", number * divisor)
    written.put("few", 5)
    for each in words:
        written.say(each)
    read = Columns.from_bytes(("few", "none", "many"), written.to_bytes())
    assert [read.take("many") for _ in numbers] == [number * divisor for number in numbers]
    assert (read.take("few"), [repr(read.hear()) for _ in words]) == (5, [*map(repr, words)])
    assert read.is_empty


def test_a_block_that_would_fill_the_memory_with_zeros_is_refused() -> None:
    block = bytearray(Columns(("zeros",)).to_bytes())
    block[9] = 0xFF  # the fourth byte of how many there are, behind the first three of three numbers
    with pytest.raises(ValueError, match="more than 33554432 numbers"):
        Columns.from_bytes(("zeros",), bytes(block))


def test_reasons_without_end_do_not_fill_the_memory_and_come_back() -> None:
    """A meter's errors may name a time."""
    encoder, decoder = Encoder(), Decoder()
    list(decoder.decode(encoder.encode([Opened(0, "counter", "a", "simulated", SETTINGS)])))
    for begin in range(0, 3000, 100):
        failed: list[Event] = [
            Heard(0, "failed", (at_ns, f"at {at_ns}")) for at_ns in range(begin, begin + 100)
        ]
        assert list(decoder.decode(encoder.encode(failed))) == failed
    assert len(encoder._known.names) <= 1000
    assert len(decoder._known.names) <= 1000
