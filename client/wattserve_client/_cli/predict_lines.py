"""Predictions for the lines of a file, as they come: a row for each, in bounded memory, then the sum."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TextIO

from rich.cells import cell_len
from rich.text import Text

from wattserve_client._cli import words
from wattserve_client._cli.show import sequence
from wattserve_client._cli.words import ArgumentsError, error_line, facts, flat
from wattserve_client.client import Client
from wattserve_client.errors import Unavailable, WattserveError
from wattserve_client.results import Prediction
from wattserve_common.words import counted

MAX_LINE = 1_000_000  # characters; a longer line is not text, and would fill the memory
# Title and width of each column but the last, `input`, which takes the rest; ">": aligned to the right.
_COLUMNS = (
    (">line", 6),
    ("label", 12),
    (">score", 6),
    (">tokens", 6),
    (">padded", 6),
    (">joules", 8),
    ("state", 11),
)
_MOST_REMARKS = 10


@dataclass
class Sum:
    """What all lines together came to; it does not grow with their number."""

    answered: int = 0
    failed: int = 0
    empty: int = 0
    energy_uj: int = 0
    states: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    cut: int = 0
    cut_tokens: int = 0
    remarks: dict[tuple[str, str], None] = field(default_factory=dict)  # a set that keeps its order
    has_more_remarks: bool = False

    def add(self, answer: Prediction) -> None:
        receipt = answer.receipt
        self.answered += 1
        self.states[receipt.state] += 1
        self.cut += bool(answer.cut_tokens)
        self.cut_tokens += sum(answer.cut_tokens)
        self.remark("source", words.source(receipt.source))
        if receipt.energy_uj is None:
            self.unknown += 1
            self.remark("unknown", receipt.unknown_reason or "the server gave no reason")
        else:
            self.energy_uj += receipt.energy_uj
        for name, remark in words.caveats(receipt):
            self.remark(name, remark)

    def remark(self, name: str, text: str) -> None:
        if len(self.remarks) < _MOST_REMARKS or (name, text) in self.remarks:
            self.remarks[name, text] = None
        else:
            self.has_more_remarks = True

    def text(self, width: int) -> str:
        known, asked = self.answered - self.unknown, self.answered + self.failed
        total = words.UNKNOWN
        if known:
            total = f"{words.energy(self.energy_uj)} J above idle for {counted(known, 'line')}"
        states = ", ".join(f"{number} {state}" for state, number in sorted(self.states.items()))
        missing = f"for {counted(self.unknown, 'line')}, not in the sum"
        cut = f"{counted(self.cut_tokens, 'token')} of {counted(self.cut, 'line')} cut off and not read"
        more = "there were more remarks than these; --json has all"
        return facts(
            [
                ("energy", total + (f" ({states})" if states else "")),
                ("unknown", missing if self.unknown else ""),
                *self.remarks,
                ("cut", cut if self.cut else ""),
                ("more", more if self.has_more_remarks else ""),
                ("failed", f"{self.failed} of {counted(asked, 'line')}" if self.failed else ""),
                ("skipped", counted(self.empty, "empty line") if self.empty else ""),
            ],
            width,
        )


def predict_lines(
    client: Client, asked: dict[str, Any], file: TextIO, name: str, as_json: bool, width: int
) -> int:
    """Print all answers, errors on stderr among them; the exit code. name: of the file, for errors."""
    total = Sum()
    open_lines: dict[int, tuple[int, str]] = {}  # number and text, by the place among the inputs

    def inputs() -> Iterator[str]:
        places = count()
        for number, text in lines(file, name):
            if text.strip():
                open_lines[next(places)] = number, text
                yield text
            else:
                total.empty += 1

    with words.refusing_arguments():
        answers = client.predict_many(inputs(), **asked)
    try:
        for answer in answers:
            number, text = open_lines.pop(answer.index)
            if not total.answered and not as_json and answer.prediction:
                print(row_of([title.removeprefix(">") for title, _ in _COLUMNS], "input", 0))
            _show(number, text, answer.value, total, as_json, width)
            sys.stdout.flush()
    except (WattserveError, ArgumentsError, KeyboardInterrupt) as error:
        if open_lines and not (isinstance(error, Unavailable) and error.never_sent):
            numbers = ", ".join(str(number) for number, _ in [*open_lines.values()][:_MOST_REMARKS])
            more = ", ..." if len(open_lines) > _MOST_REMARKS else ""
            print(f"wattserve-client: {name}: sent, and not answered: lines {numbers}{more}", file=sys.stderr)
        _show_sum(total, as_json, width)
        raise
    if not total.answered and not total.failed:
        raise ArgumentsError(f"{name}: there is no text in it")
    _show_sum(total, as_json, width)
    return 1 if total.failed else 0


def lines(file: TextIO, name: str) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line. `ArgumentsError` for what is not text."""
    for number in count(1):
        try:
            line = file.readline(MAX_LINE + 1)
        except UnicodeDecodeError as error:
            raise ArgumentsError(
                f"{name}: not UTF-8 text, at line {number} or soon after ({error.reason})"
            ) from None
        except OSError as error:
            raise ArgumentsError(f"{name}: cannot be read ({error.strerror})") from None
        if not line:
            return
        if "\0" in line:
            raise ArgumentsError(f"{name}: line {number} holds a null character: this is no text file")
        if len(line) > MAX_LINE:
            raise ArgumentsError(f"{name}: line {number} has more than {MAX_LINE} characters")
        yield number, line.rstrip("\r\n")


def _show(
    number: int, text: str, value: Prediction | WattserveError, total: Sum, as_json: bool, width: int
) -> None:
    if isinstance(value, Prediction):
        total.add(value)
        if as_json:
            print(words.as_json({"line": number, **words.plain(value)}, None))
            return
        print(row_of([str(number), *sequence(value, 0)], text, width))
        return
    total.failed += 1
    if as_json:
        print(words.as_json({"line": number, "error": words.error_as_json(value)}, None))
    sys.stdout.flush()
    print(f"wattserve-client: line {number}: {error_line(value)}", file=sys.stderr)


def row_of(cells: Sequence[str], text: str, width: int) -> str:
    """One line, without those after it: a cell that is too long for its column pushes the others aside."""
    line = ""
    for cell, (title, least) in zip(map(flat, cells), _COLUMNS, strict=True):
        blank = " " * (least - cell_len(cell))
        line += (blank + cell if title.startswith(">") else cell + blank) + "  "
    rest = Text(flat(text))
    if width:
        rest.truncate(max(words.LEAST_WIDTH, width - cell_len(line)), overflow="ellipsis")
    return line + rest.plain


def _show_sum(total: Sum, as_json: bool, width: int) -> None:
    if not as_json and (total.answered or total.failed):
        print(f"\n{total.text(width)}")
