"""Reads rows of text and label from CSV, JSONL, Parquet and plain text files.

It knows nothing of tokens. Every error names the file and the line (files of lines, from 1) or the row
(Parquet, from 0).
"""

from __future__ import annotations

import csv
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from wattserve_common.errors import DatasetError
from wattserve_common.strict_json import check_characters, json_of

MOST_CELL_CHARACTERS = 2**30  # the csv module's own is 131,072; of a text only a head is looked at

Records = Iterator[tuple[str, dict[str, Any]]]  # place, and value by column


@dataclass(frozen=True)
class TextRow:
    text: str
    label: str | int | None  # as the file has it; None: the file has no labels
    place: str  # "line 12" or "row 12", for errors


@dataclass(frozen=True)
class TextTable:
    rows: list[TextRow]  # in order; at least one
    columns: tuple[str, ...]  # of the first row
    label_column: str | None  # None: there is none


def read_rows(path: Path, text_column: str, label_column: str | None, limit: int | None = None) -> TextTable:
    """Labels are of the column named, or else of `label` if the first row has one. DatasetError at the first
    bad row."""
    if path.suffix not in _READERS:
        raise DatasetError(f"{path}: unknown kind of file; it must end in {', '.join(_READERS)}")
    if not path.is_file():
        raise DatasetError(f"{path}: no such file")
    rows: list[TextRow] = []
    columns: tuple[str, ...] = ()
    records = _READERS[path.suffix](path, text_column, label_column or "label")
    for place, record in islice(records, limit):
        columns = columns or tuple(record)
        if not rows and label_column is None and "label" in record and text_column != "label":
            label_column = "label"
        where = f"{path}: {place}"
        for column, kind in ((text_column, "text"), (label_column, "label")):
            if column is not None and column not in record:
                there = ", ".join(record) or "none"
                raise DatasetError(
                    f"{where}: no column {column!r}; it has {there}; --{kind}-column names the right one"
                )
        text = record[text_column]
        if not isinstance(text, str):
            raise DatasetError(f"{where}: column {text_column!r} holds no text")
        if not text.strip():
            raise DatasetError(f"{where}: the text is empty; remove the row")
        label = None if label_column is None else _label(where, label_column, record[label_column])
        for value in (text, label):
            if isinstance(value, str):
                try:
                    check_characters(value)
                except ValueError as error:
                    raise DatasetError(f"{where}: {error}; repair or remove the row") from None
        rows.append(TextRow(text, label, place))
    if not rows:
        raise DatasetError(f"{path}: no rows in it")
    return TextTable(rows, columns, label_column)


def _label(where: str, column: str, value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DatasetError(f"{where}: column {column!r} holds {value!r}; a label is a name or an integer")
    if isinstance(value, int):
        return value
    if not value.strip():
        raise DatasetError(
            f"{where}: the label is empty; use -1 for a row without label, left out of accuracy"
        )
    return value.strip()


def read_lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DatasetError(f"{path}: {_not_utf8(path)}") from None


def _not_utf8(path: Path) -> str:
    """Where a file is not UTF-8, and what it may be: the reader's own error counts from its buffer."""
    content = path.read_bytes().removeprefix(BOM_UTF8)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode().replace("\r\n", "\n").replace("\r", "\n")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        name = "utf-16" if content[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "latin1"
        again = f"if it is {name}: iconv -f {name} -t utf8 {path.name}"
        return f"line {line}, column {column}: not UTF-8 (byte 0x{content[error.start]:02x}; {again})"
    return "was changed while it was read"


def _check_once(path: Path, columns: Sequence[str]) -> None:
    for name in columns:
        if columns.count(name) > 1:
            raise DatasetError(f"{path}: two columns are called {name!r}; rename one")


def _txt(path: Path, text_column: str, label_column: str) -> Records:
    for number, line in enumerate(read_lines(path), start=1):
        yield f"line {number}", {text_column: line.rstrip("\r\n")}


def _jsonl(path: Path, text_column: str, label_column: str) -> Records:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = json_of(line)
        except ValueError as error:
            raise DatasetError(f"{path}: line {number}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise DatasetError(
                f"{path}: line {number}: a JSON object is wanted, found {type(record).__name__}"
            )
        yield f"line {number}", record


def _csv(path: Path, text_column: str, label_column: str) -> Records:
    csv.field_size_limit(MOST_CELL_CHARACTERS)
    reader = csv.reader(read_lines(path), strict=True)
    ended = 0  # the line on which the row before ended
    header: list[str] = []
    try:
        for cells in reader:
            ended = reader.line_num
            if not cells:
                continue
            if not header:
                header = cells
                _check_once(path, header)
                continue
            if len(cells) != len(header):
                raise DatasetError(
                    f"{path}: line {reader.line_num}: {len(cells)} fields, but the header has {len(header)};"
                    " quote commas"
                )
            yield f"line {reader.line_num}", dict(zip(header, cells, strict=True))
    except csv.Error as error:  # in which line of its row is not known
        raise DatasetError(f"{path}: the row that begins on line {ended + 1}: {error}") from None


def _parquet(path: Path, text_column: str, label_column: str) -> Records:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DatasetError(f"{path}: not a Parquet file ({str(error).splitlines()[0]})") from None
    names = file.schema_arrow.names
    _check_once(path, names)
    unread = dict.fromkeys(names)
    row = 0
    for batch in file.iter_batches(columns=[name for name in (text_column, label_column) if name in names]):
        for record in batch.to_pylist():
            yield f"row {row}", unread | record
            row += 1


_READERS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet, ".txt": _txt}
