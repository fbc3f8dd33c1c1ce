"""Tables and lists of facts as plain text, for a terminal or a file. Pure: strings in, strings out."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

_GAP = "  "
_LEAST_WIDTH = 8
"""No column that may be shortened gets narrower than this, whatever the width of the page."""


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", width: int = 0, elide: int = -1
) -> str:
    """Aligned columns under their titles.

    right: one letter per column, "r" for one aligned to the right (numbers). width: in characters, where 0
    is without limit. To keep to it, the column number `elide` is shortened, with "…" for what it loses; no
    other column ever is.
    """
    lines = [list(titles), *([flat(cell) for cell in row] for row in rows)]
    widths = [max(map(columns, column)) for column in zip(*lines, strict=True)]
    if elide >= 0 and width:
        over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        widths[elide] = min(widths[elide], max(_LEAST_WIDTH, widths[elide] - max(0, over)))
        for line in lines:
            line[elide] = shortened(line[elide], widths[elide])
    return "\n".join(row_of(line, widths, right) for line in lines)


def row_of(cells: Sequence[str], widths: Sequence[int], right: str = "") -> str:
    """One line of a table whose widths are known; a cell that is too long pushes the others aside."""
    sides = right[: len(cells)].ljust(len(cells), "l")
    padded = (_pad(cell, width, side) for cell, width, side in zip(cells, widths, sides, strict=True))
    return _GAP.join(padded).rstrip()


def facts(pairs: Sequence[tuple[str, str]], width: int = 0) -> str:
    """A line `name  value` for each pair that has a value; a long value goes on below itself."""
    told = [(name, flat(value)) for name, value in pairs if value]
    indent = max((columns(name) for name, _ in told), default=0) + len(_GAP)
    room = max(width - indent, 3 * _LEAST_WIDTH)
    lines = []
    for name, value in told:
        parts = (
            textwrap.wrap(value, room, break_on_hyphens=False, break_long_words=False) if width else [value]
        )
        lines.append(_pad(name, indent, "l") + parts[0])
        lines += [" " * indent + part for part in parts[1:]]
    return "\n".join(lines)


def flat(text: str) -> str:
    """In one line, without what would move a terminal's cursor."""
    return "".join(each if each.isprintable() else " " for each in text)


def shortened(text: str, width: int) -> str:
    """At most `width` columns of a terminal."""
    if columns(text) <= width:
        return text
    while columns(text) > width - 1:
        text = text[: -max(1, (columns(text) - width) // 2)]
    return f"{text.rstrip()}…"


def columns(text: str) -> int:
    """How many columns of a terminal it takes: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def _pad(text: str, width: int, side: str) -> str:
    blank = " " * (width - columns(text))
    return blank + text if side == "r" else text + blank
