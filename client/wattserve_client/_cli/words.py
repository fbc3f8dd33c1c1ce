"""What `wattserve-client` prints: figures, errors, and rich's tables of both as plain text. Pure.

An energy that is not known is "unknown", never 0.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattserve_client.errors import Unavailable, WattserveError, in_shared_flags
from wattserve_client.results import EnergySource, Receipt, format_joules, joules

UNKNOWN = "unknown"
NOTHING = "-"
LEAST_WIDTH = 8  # of a column that may be shortened, however narrow the page
_NO_LIMIT = 10**9  # columns, where the output is no terminal
_ARGUMENTS = (
    ("(timeout_s)", "(--timeout)"),
    ("ask for truncate", "give --truncate"),
)


class CommandError(Exception):
    """A mistake that the user can repair, in one line; exit code 1."""


class ArgumentsError(CommandError):
    """A mistake in the arguments or the input; exit code 2."""


@contextmanager
def refusing_arguments() -> Iterator[None]:
    """What the library says of arguments that make no sense is an ArgumentsError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ArgumentsError(str(error)) from None


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int = 0, elide: str = "") -> str:
    """Aligned columns under their titles; one that begins with ">" is of numbers, aligned to the right.

    width: in characters, where 0 is without limit. To keep to it the column `elide` is shortened, with "…"
    for what it loses; no other column ever is.
    """
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    least = -2
    lines = [[title.removeprefix(">") for title in titles], *([flat(cell) for cell in row] for row in rows)]
    for title, cells in zip(titles, zip(*lines, strict=True), strict=True):
        longest = max(map(cell_len, cells))
        least += 2 + (min(LEAST_WIDTH, longest) if title == elide else longest)
        grid.add_column(justify="right" if title.startswith(">") else "left", no_wrap=title != elide)
    for line in lines:
        grid.add_row(*(Text(cell, no_wrap=True) for cell in line))
    return _plain_text(grid, max(width, least) if width else 0)


def facts(pairs: Sequence[tuple[str, str]], width: int = 0) -> str:
    """A line `name  value` for each pair that has a value; a long value goes on below itself."""
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            grid.add_row(name, Text(flat(value)))
    return _plain_text(grid, width)


def _plain_text(grid: Table, width: int) -> str:
    segments = Console(width=width or _NO_LIMIT, color_system=None).render(grid)
    lines = "".join(segment.text for segment in segments).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def flat(text: str) -> str:
    """In one line, without what would move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def in_flags(message: str) -> str:
    """The library's words, with the command's own options in place of its arguments."""
    in_options = in_shared_flags(message)
    for argument, option in _ARGUMENTS:
        in_options = in_options.replace(argument, option)
    return in_options


def error_line(error: WattserveError) -> str:
    """The server's words, the code with its reason, and who said so."""
    message = in_flags(" ".join(flat(error.message).split())) or "no message"
    if isinstance(error, Unavailable) and error.never_sent:
        message = f"out of reach: {message}"
    code = f"{error.code}, {error.reason}" if error.reason not in ("", error.code) else error.code
    later = "" if error.retry_after_s is None else f"; try again after {error.retry_after_s:g} s"
    return f"{error.target}: {message} ({code}{later})"


def as_json(value: Any, indent: int | None = 2) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def error_as_json(error: WattserveError) -> dict[str, Any]:
    return {
        "code": error.code,
        "reason": error.reason,
        "field": error.field,
        "message": error.message,
        "retry_after_seconds": error.retry_after_s,
        "receipt_id": error.receipt_id,
        "target": error.target,
    }


def energy(uj: int | None) -> str:
    """Microjoules in joules, without the unit; large ones in full."""
    return UNKNOWN if uj is None else format_joules(uj)


def ledger_energy(uj: int | None) -> str:
    """Microjoules in joules with three decimals, so that a column of them can be added up by eye."""
    return UNKNOWN if uj is None else f"{uj / 1e6:,.3f}"


def percent(part: int | None, whole: int | None) -> str:
    if part is None or not whole:
        return NOTHING
    return "<0.1 %" if 0 < part / whole < 0.0005 else f"{100 * part / whole:.1f} %"


def watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f} W"


def seconds(value: float | None) -> str:
    """In s, ms or µs."""
    if value is None:
        return UNKNOWN
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def megabytes(count: int) -> str:
    """0 bytes: nothing is loaded."""
    return f"{count / 1e6:,.1f} MB" if count else NOTHING


def moment(unix_ns: int) -> str:
    """In UTC, to the second."""
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def source(of: EnergySource) -> str:
    """Its quality first, then which one, how it becomes a request's, and what must be known of it."""
    text = str(of)
    if of.method not in ("", "none"):
        text += f", {of.method}"
    return f"{text}: {of.note}" if of.note else text


def interval(receipt: Receipt) -> str:
    if receipt.energy_low_uj is None or receipt.energy_high_uj is None:
        return ""
    low, high = energy(receipt.energy_low_uj), energy(receipt.energy_high_uj)
    return f"95 % {low} to {high} J of the apportioning, without the sensor's own error"


def caveats(receipt: Receipt) -> list[tuple[str, str]]:
    """What nobody may miss beside the figure, as (name, words)."""
    proxy = f"{receipt.variant} only stands in for a precision: {receipt.proxy}"
    unverified = f"nobody has checked that {receipt.variant} ran at the precision of its name"
    return [
        *([("PROXY", proxy)] if receipt.proxy else []),
        *([("UNVERIFIED", unverified)] if receipt.unverified else []),
        *(("warning", warning) for warning in receipt.warnings),
    ]


def plain(value: Any) -> Any:
    """A result as JSON holds it: its own fields, whose names end in their units; what is not known is null.

    Where a field `energy_uj` stands, `energy_joules` stands beside it.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if "energy_uj" in fields:
            fields["energy_joules"] = joules(fields["energy_uj"])
        return fields
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
