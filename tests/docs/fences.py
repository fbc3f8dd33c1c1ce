"""What the documents show: their fenced blocks, and of a shell block its commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"\s+#( .*)?$")
_FILE = re.compile(r"# ([\w-]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The file that the reader is told to save it as: its first line is a comment with that name."""
        found = _FILE.match(self.text)
        return found[1] if found else ""


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        yield Block(found[2], found[3], text.count("\n", 0, found.start()) + 1)


def commands(block: Block) -> Iterator[str]:
    """Each command, without its comment; one that goes on over several lines, or a loop, as one."""
    pending = ""
    for line in block.text.splitlines():
        pending += _COMMENT.sub("", f" {line}").strip()
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip() + " "
        elif pending.startswith("for ") and not pending.endswith("done"):
            pending += "\n"
        else:
            if pending:
                yield pending
            pending = ""
    assert not pending, f"line {block.line}: the block ends within a command"


def program(command: str) -> str:
    """The first word, also of `name=$(word ...)`."""
    return re.sub(r"^\w+=\$\(", "", command).split()[0]
