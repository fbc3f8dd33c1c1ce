"""records.jsonl: a line of JSON for each request. Written cell after cell, read in pieces, never as a whole.

A line without its end is what a killed sweep or a full disk left: it is not there. A line that is whole and
makes no sense is an error. Knows no figures.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from wattserve_common.strict_json import json_of
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.model.codec import ShapeError, shape_error

RECORDS_FILE = "records.jsonl"
PARQUET_FILE = "records.parquet"
PARTIAL = ".partial"  # behind the name of a file that is being written


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """ResultsError where that cannot be written."""
    try:
        yield
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written ({error.strerror or error})") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The file to write, which then takes the place of `path`: a reader sees the old one or the new one,
    never a part.
    """
    partial = path.with_name(path.name + PARTIAL)
    with writing(path):
        try:
            yield partial
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def append(path: Path, lines: bytes) -> None:
    """To a file that is there already; ResultsError, and the file as it was, when they do not all fit."""
    unwritten = memoryview(lines)
    with writing(path):
        # Without O_CREAT: a folder that was emptied meanwhile is an error, not a new file.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            before = os.fstat(descriptor).st_size
            try:
                while unwritten:
                    unwritten = unwritten[os.write(descriptor, unwritten) :]
            except BaseException:  # Ctrl-C too: whoever writes next must not go on behind a torn line
                with suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """(where it ends in the file, the line) for every whole line."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            end += len(line)
            if line.endswith(b"\n"):
                yield end, line


def check_rows(record: Record, dataset_rows: int | None) -> None:
    """Raises ShapeError. `dataset_rows`: None where it is not known."""
    lengths = len(record.rows), len(record.predicted), len(record.labels)
    if 0 in lengths or len(set(lengths)) > 1:
        text = "rows, predicted, labels: of lengths {}, {}, {}; they must be alike, and not empty"
        raise ShapeError(text.format(*lengths))
    if dataset_rows is not None and max(record.rows) >= dataset_rows:
        raise ShapeError(f"row {max(record.rows)}; the dataset has {dataset_rows} rows")


def line_records(path: Path, dataset_rows: int | None = None) -> Iterator[Record]:
    """Every record; ResultsError names a line that is none."""
    decode = msgspec.json.Decoder(Record).decode
    try:
        for number, (_, line) in enumerate(lines_of(path), start=1):
            try:
                record = decode(line)
                check_rows(record, dataset_rows)
            except ShapeError as error:
                raise ResultsError(f"{path}: line {number}: {error}") from None
            except msgspec.ValidationError as error:
                text = f"not a record of a sweep ({shape_error(error)})"
                raise ResultsError(f"{path}: line {number}: {text}") from None
            except (ValueError, RecursionError):
                raise ResultsError(f"{path}: line {number}: not a record of a sweep") from None
            yield record
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror})") from None


def read_records(folder: Path, dataset_rows: int | None = None) -> Iterator[Record]:
    """Every record, from records.jsonl or else from records.parquet; nothing when neither is there.
    `dataset_rows`: as results.json has them, to hold the records' rows against.
    """
    if (folder / RECORDS_FILE).is_file():
        yield from line_records(folder / RECORDS_FILE, dataset_rows)
    elif (folder / PARQUET_FILE).is_file():
        from wattserve_loadgen.results.parquet import parquet_records

        yield from parquet_records(folder / PARQUET_FILE, dataset_rows)


def keep_cells(path: Path, positions: Collection[int]) -> None:
    """Drop the records of all other cells, and a torn last line."""
    kept = number = 0
    holes = dropping = False
    try:
        for end, line in lines_of(path):
            number += 1
            if json_of(line)["cell"] in positions:
                kept, holes = end, dropping
            else:
                dropping = True
    except (ValueError, KeyError, TypeError):
        raise ResultsError(f"{path}: line {number}: not a record of a sweep") from None
    with writing(path):
        os.truncate(path, kept)
    if holes:
        with replacing(path) as partial, partial.open("wb") as file:
            file.writelines(line for _, line in lines_of(path) if json_of(line)["cell"] in positions)


def cut_torn(path: Path) -> None:
    """Cut off a last line without its end."""
    with writing(path):
        os.truncate(path, max((end for end, _ in lines_of(path)), default=0))
