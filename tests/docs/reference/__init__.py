"""The generated pages of docs/reference, read from the code.

Not from printed help, which differs between Python's versions and terminals, but from the parsers themselves.
Regenerate with `python -m tests.docs.reference`; `test_reference.py` compares.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
NOTE = "<!-- Made by `python -m tests.docs.reference`; a test compares. -->"


def pages() -> dict[str, str]:
    """File name to content."""
    from tests.docs.reference import commands, protocol, results, settings

    return {
        "cli.md": commands.page(),
        "configuration.md": settings.page(),
        "protocol.md": protocol.page(),
        "results.md": results.page(),
    }


def cell(text: str) -> str:
    """One line, safe within a Markdown table."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]  # not within code
    return "`".join(parts)


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join(cell(each) for each in row) + " |" for row in rows]
