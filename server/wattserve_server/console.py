"""What a person reads: progress on standard error, tables as wide as the terminal, amounts."""

from __future__ import annotations

import os
import sys

from rich.console import Console

PIPED_WIDTH = 160


def say(line: str) -> None:
    """Progress, for the operator. Standard output is kept for what scripts wait for."""
    print(f"wattserve: {line}", file=sys.stderr, flush=True)


def wide_console() -> Console:
    """As wide as the terminal, or as COLUMNS says; a pipe has no width, and gets enough for tables."""
    terminal = Console()
    is_sized = terminal.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return terminal if is_sized else Console(width=PIPED_WIDTH)


def amount(value: float | None, unit: str, otherwise: str = "unknown") -> str:
    """Three significant digits with a prefix: "12.3 mJ". otherwise: for what is not known."""
    if value is None:
        return otherwise
    for factor, prefix in ((1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= factor:
            digits = ".3g" if abs(value) < 1000 * factor else ".0f"
            return f"{value / factor:{digits}} {prefix}{unit}"
    return f"0 {unit}"
