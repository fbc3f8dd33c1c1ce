"""What a report is, and where it goes: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from wattserve_server.errors import ConfigError

STANDARD_OUTPUT = "-"
PIPED_WIDTH = 160
SCHEMA_VERSION = 1


class Printable(Protocol):
    def as_json(self) -> dict[str, Any]: ...

    def tables(self) -> Sequence[Table]: ...


@dataclass
class Report:
    """schema: the command. body: plain JSON values, units in their names, None for what is not known.
    notes: what a reader must know besides the figures."""

    schema: str
    body: dict[str, Any]
    shown: list[Table]
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        head = {"schema": f"wattserve.{self.schema}", "schema_version": SCHEMA_VERSION}
        return head | self.body | {"notes": self.notes}

    def tables(self) -> list[Table]:
        return self.shown


def emit(report: Printable, json_file: str | None) -> None:
    """Print the tables and the notes; write the JSON to a file, or print it alone for ``-``.
    Raises ConfigError for a file that cannot be written."""
    if json_file is not None:
        text = plain_json(report.as_json())
        if json_file == STANDARD_OUTPUT:
            print(text)
            return
        write_text(Path(json_file), text + "\n", "--json")
    console = wide_console()
    for table in report.tables():
        console.print(table)
    for note in getattr(report, "notes", ()):
        console.print(f"- {note}", markup=False, highlight=False)


def wide_console() -> Console:
    """As wide as the terminal, or as COLUMNS says; a pipe has no width, and gets enough for tables."""
    terminal = Console()
    is_sized = terminal.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return terminal if is_sized else Console(width=PIPED_WIDTH)


def plain_json(value: dict[str, Any]) -> str:
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null, as everything that is no number."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_writable(path: str | None, flag: str) -> None:
    """Before hours of work: raises ConfigError for a file whose folder is not there."""
    if path is not None and path != STANDARD_OUTPUT and not Path(path).resolve().parent.is_dir():
        raise ConfigError(f"{flag} {path}: its folder does not exist")


def write_text(path: Path, text: str, flag: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be written ({error.strerror})") from None


def table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """An empty table; `left` are headings of columns of words, `right` of columns of figures."""
    made = Table(title=title, title_justify="left")
    for index, heading in enumerate(left):
        made.add_column(heading, overflow="fold", no_wrap=index == 0)
    for heading in right:
        made.add_column(heading, justify="right")
    return made


def figure(value: float | None, form: str = ".3g") -> str:
    """A figure for a table; a dash for what is not known."""
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def say(line: str) -> None:
    print(f"wattserve: {line}", file=sys.stderr, flush=True)
