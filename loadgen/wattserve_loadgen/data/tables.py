"""Reads rows of text and label from CSV, JSONL, Parquet and plain text files.

It knows nothing of tokens. Every error names the file and the line (files of lines, from 1) or the row
(Parquet, from 0).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattserve_loadgen.errors import DatasetError

FORMATS = (".csv", ".jsonl", ".parquet", ".txt")


@dataclass(frozen=True)
class TextRow:
    """One text with the label as the file has it (None: the file has no labels)."""

    text: str
    label: str | int | None
    place: str  # "line 12" or "row 12", for errors


def read_rows(
    path: Path, text_column: str, label_column: str | None, limit: int | None = None
) -> list[TextRow]:
    """The rows of `path`, in order. With `label_column` None, rows have no label.

    DatasetError at the first bad row.
    """
    rows: list[TextRow] = []
    for place, record in _records(path, text_column, label_column):
        if limit is not None and len(rows) >= limit:
            break
        text = record[text_column]
        if not isinstance(text, str):
            raise DatasetError(f"{path}: {place}: column {text_column!r} holds no text")
        if not text.strip():
            raise DatasetError(f"{path}: {place}: the text is empty; remove the row")
        label = None if label_column is None else _label(path, place, label_column, record[label_column])
        rows.append(TextRow(text, label, place))
    if not rows:
        raise DatasetError(f"{path}: no rows in it")
    return rows


def columns(path: Path) -> tuple[str, ...]:
    """The names of the file's columns; a text file has the one column `text`."""
    _check_format(path)
    if path.suffix == ".parquet":
        return tuple(str(name) for name in _parquet(path).schema_arrow.names)
    with _open(path) as file:
        if path.suffix == ".csv":
            return tuple(next(_csv_lines(path, file), (0, []))[1])
    if path.suffix == ".txt":
        return ("text",)
    first = next(_jsonl_records(path), None)
    return () if first is None else tuple(first[1])


def _records(path: Path, text_column: str, label_column: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, {column: value}) of each row, with the wanted columns present."""
    _check_format(path)
    wanted = [text_column] if label_column is None else [text_column, label_column]
    if path.suffix == ".txt":
        wanted, found = [], _txt_records(path, text_column)
    elif path.suffix == ".jsonl":
        found = _jsonl_records(path)
    elif path.suffix == ".parquet":
        found = _parquet_records(path, wanted)
    else:
        found = _csv_records(path)
    for place, record in found:
        for name in wanted:
            if name not in record:
                raise DatasetError(
                    f"{path}: {place}: no column {name!r}; it has {', '.join(record) or 'none'}"
                )
        yield place, record


def _label(path: Path, place: str, column: str, value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DatasetError(
            f"{path}: {place}: column {column!r} holds {value!r}; a label is a name or an integer"
        )
    if isinstance(value, int):
        return value
    if not value.strip():
        raise DatasetError(f"{path}: {place}: the label is empty; use -1 for a row without label")
    return value.strip()


def _check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise DatasetError(f"{path}: unknown kind of file; it must end in {', '.join(FORMATS)}")
    if not path.is_file():
        raise DatasetError(f"{path}: no such file")


def _open(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with _open(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DatasetError(f"{path}: not UTF-8 text ({error.reason})") from None


def _txt_records(path: Path, text_column: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _lines(path):
        yield f"line {number}", {text_column: line}


def _jsonl_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _lines(path):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DatasetError(f"{path}: line {number}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise DatasetError(
                f"{path}: line {number}: a JSON object is wanted, found {type(record).__name__}"
            )
        yield f"line {number}", record


def _csv_lines(path: Path, file: Any) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(file, strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except (csv.Error, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: line {reader.line_num + 1}: {error}") from None


def _csv_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with _open(path) as file:
        lines = _csv_lines(path, file)
        _, header = next(lines, (0, []))
        for number, fields in lines:
            if len(fields) != len(header):
                raise DatasetError(
                    f"{path}: line {number}: {len(fields)} fields, but the header has {len(header)};"
                    " quote commas"
                )
            yield f"line {number}", dict(zip(header, fields, strict=True))


def _parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DatasetError(f"{path}: not a Parquet file ({str(error).splitlines()[0]})") from None


def _parquet_records(path: Path, wanted: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    file = _parquet(path)
    names = [name for name in wanted if name in file.schema_arrow.names]
    row = 0
    for batch in file.iter_batches(columns=names):
        for record in batch.to_pylist():
            yield f"row {row}", record
            row += 1
