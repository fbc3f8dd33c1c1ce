"""A report: tables for people, JSON for programs, and the machine that it was made on."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from wattserve_common.machine import governor, load_average, usable_cores, version_of
from wattserve_server.console import wide_console
from wattserve_server.engine.device import describe_device
from wattserve_server.errors import ConfigError
from wattserve_tools.inspect.figures import LayerChart

STANDARD_OUTPUT = "-"
SCHEMA_VERSION = 1
_PACKAGES = ("wattserve", "torch", "transformers", "numpy")


@dataclass
class Report:
    schema: str  # the command
    body: dict[str, Any]  # plain JSON values, units in their names, None for what is not known
    tables: list[Table]
    notes: list[str] = field(default_factory=list)  # what a reader must know besides the figures
    chart: LayerChart | None = None

    def as_json(self) -> dict[str, Any]:
        head = {"schema": f"wattserve.{self.schema}", "schema_version": SCHEMA_VERSION}
        return head | self.body | {"notes": self.notes}


def emit(report: Report, json_file: str | None) -> None:
    """Print the tables and the notes; write the JSON to a file, or print it alone for ``-``.
    Raises ConfigError for a file that cannot be written."""
    if json_file is not None:
        text = plain_json(report.as_json())
        if json_file == STANDARD_OUTPUT:
            print(text)
            return
        write_text(Path(json_file), text + "\n", "--json")
    console = wide_console()
    for table in report.tables:
        console.print(table)
    for note in report.notes:
        console.print(f"- {note}", markup=False, highlight=False)


def plain_json(value: dict[str, Any]) -> str:
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null, as everything that is no number."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
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


def empty_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """`left` are headings of columns of words, `right` of columns of figures."""
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(left):
        table.add_column(heading, overflow="fold", no_wrap=index == 0)
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def figure(value: float | None, form: str = ".3g", unit: str = "") -> str:
    """A figure for a table; a dash for what is not known."""
    return "-" if value is None or not math.isfinite(value) else f"{value:{form}}{unit}"


def share_words(share: Mapping[str, float]) -> str:
    """Of a proportion with its interval, as JSON has it: in per cent."""
    return f"{100 * share['share']:.2f} [{100 * share['low']:.2f}, {100 * share['high']:.2f}]"


def environment(devices: Sequence[torch.device], seed: int | None) -> dict[str, Any]:
    """Where an inspection ran: enough to repeat it, or to refuse to compare two. No host names and no paths;
    what cannot be read is None."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "versions": {
            "python": platform.python_version(),
            **{package: version_of(package) for package in _PACKAGES},
        },
        "hardware": {str(device): describe_device(device) for device in (torch.device("cpu"), *devices)},
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "usable_cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "governor": governor(),
        "load_average_1min": load_average(),
    }
