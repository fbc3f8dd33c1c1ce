"""Predictions for the lines of a file, as they come: a row for each, in bounded memory, then the sum."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TextIO

from wattserve_client._cli import words
from wattserve_client._cli.errors_told import CliError, told, told_as_json
from wattserve_client._cli.show import sequence
from wattserve_client._cli.table import facts, flat, row_of, shortened
from wattserve_client.client import Client
from wattserve_client.errors import Unavailable, WattserveError
from wattserve_client.results import Prediction

MAX_LINE = 1_000_000
"""Characters; a longer line is not text, and would fill the memory."""

_HEADS = ("line", "label", "score", "tokens", "padded", "joules", "state", "input")
_WIDTHS = (6, 12, 6, 6, 6, 8, 11, 0)
_RIGHT = "rlrrrrll"
_LEAST_INPUT = 8
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
    remarks: dict[tuple[str, str], None] = field(default_factory=dict)  # a set that keeps its order
    has_more_remarks: bool = False

    def add(self, answer: Prediction) -> None:
        receipt = answer.receipt
        self.answered += 1
        self.states[receipt.state] += 1
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
        known = self.answered - self.unknown
        total = (
            f"{words.energy(self.energy_uj)} J above idle for {words.counted(known, 'line')}"
            if known
            else words.UNKNOWN
        )
        states = ", ".join(f"{number} {state}" for state, number in sorted(self.states.items()))
        return facts(
            [
                ("energy", total + (f" ({states})" if states else "")),
                (
                    "unknown",
                    f"for {words.counted(self.unknown, 'line')}, not in the sum" if self.unknown else "",
                ),
                *self.remarks,
                (
                    "more",
                    "there were more remarks than these; --json has all" if self.has_more_remarks else "",
                ),
                (
                    "failed",
                    f"{self.failed} of {words.counted(self.answered + self.failed, 'line')}"
                    if self.failed
                    else "",
                ),
                ("skipped", words.counted(self.empty, "empty line") if self.empty else ""),
            ],
            width,
        )


def predict_lines(
    client: Client,
    file: TextIO,
    name: str,
    *,
    variant: str,
    settled: bool,
    priority: int,
    as_json: bool,
    width: int,
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

    try:
        answers = client.predict_many(
            inputs(), variant=variant, wait_for_settled_energy=settled, priority=priority
        )
        for answer in answers:
            number, text = open_lines.pop(answer.index)
            if not total.answered and not as_json and answer.prediction:
                print(row_of(_HEADS, _WIDTHS, _RIGHT))
            _show(number, text, answer.value, total, as_json, width)
            sys.stdout.flush()
    except (WattserveError, CliError, KeyboardInterrupt) as error:
        if open_lines and not (isinstance(error, Unavailable) and error.never_sent):
            numbers = ", ".join(str(number) for number, _ in [*open_lines.values()][:_MOST_REMARKS])
            more = ", ..." if len(open_lines) > _MOST_REMARKS else ""
            print(f"wattserve-client: {name}: sent, and not answered: lines {numbers}{more}", file=sys.stderr)
        _show_sum(total, as_json, width)
        raise
    if not total.answered and not total.failed:
        raise CliError(f"{name}: there is no text in it")
    _show_sum(total, as_json, width)
    return 1 if total.failed else 0


def lines(file: TextIO, name: str) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line. `CliError` for what is not text."""
    for number in count(1):
        try:
            line = file.readline(MAX_LINE + 1)
        except UnicodeDecodeError as error:
            raise CliError(
                f"{name}: not UTF-8 text, at line {number} or soon after ({error.reason})"
            ) from None
        except OSError as error:
            raise CliError(f"{name}: cannot be read ({error.strerror})") from None
        if not line:
            return
        if "\0" in line:
            raise CliError(f"{name}: line {number} holds a null character: this is no text file")
        if len(line) > MAX_LINE:
            raise CliError(f"{name}: line {number} has more than {MAX_LINE} characters")
        yield number, line.rstrip("\r\n")


def _show(
    number: int, text: str, value: Prediction | WattserveError, total: Sum, as_json: bool, width: int
) -> None:
    if isinstance(value, Prediction):
        total.add(value)
        if as_json:
            print(json.dumps({"line": number, **words.plain(value)}, ensure_ascii=False))
            return
        room = max(_LEAST_INPUT, width - sum(_WIDTHS) - 2 * len(_WIDTHS) + 2)
        cells = [flat(each) for each in (str(number), *sequence(value, 0), text)]
        if width:
            cells[-1] = shortened(cells[-1], room)
        print(row_of(cells, _WIDTHS, _RIGHT))
        return
    total.failed += 1
    if as_json:
        print(json.dumps({"line": number, "error": told_as_json(value)}, ensure_ascii=False))
    sys.stdout.flush()
    print(f"wattserve-client: line {number}: {told(value)}", file=sys.stderr)


def _show_sum(total: Sum, as_json: bool, width: int) -> None:
    if not as_json and (total.answered or total.failed):
        print(f"\n{total.text(width)}")
