"""records.jsonl: a line of JSON for each request. Written cell after cell, read in pieces, never as a whole.

A line without its end is what a killed sweep or a full disk left: it is not there. A line that is whole and
makes no sense is an error. Knows no figures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.model.codec import shape_error

RECORDS_FILE = "records.jsonl"
PARQUET_FILE = "records.parquet"


def append_records(path: Path, records: Sequence[Record]) -> None:
    """Add lines to a file that is there already; ResultsError, and the file as it was, when they do not all
    fit.
    """
    encode = msgspec.json.Encoder().encode
    _append(path, b"".join(encode(record) + b"\n" for record in records))


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """As `append_records`."""
    _append(path, "".join(lines).encode())


def _append(path: Path, content: bytes) -> None:
    unwritten = memoryview(content)
    try:
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
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written ({error.strerror})") from None


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """(where it ends in the file, the line) for every whole line."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            end += len(line)
            if line.endswith(b"\n"):
                yield end, line


def line_records(path: Path) -> Iterator[Record]:
    """Every record; ResultsError names a line that is none."""
    decode = msgspec.json.Decoder(Record).decode
    try:
        for number, (_, line) in enumerate(lines_of(path), start=1):
            try:
                yield decode(line)
            except msgspec.ValidationError as error:
                text = f"not a record of a sweep ({shape_error(error)})"
                raise ResultsError(f"{path}: line {number}: {text}") from None
            except msgspec.DecodeError:
                raise ResultsError(f"{path}: line {number}: not a record of a sweep") from None
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror})") from None


def stored_records(folder: Path) -> Iterator[Record]:
    """Every record, from records.jsonl or else from records.parquet; nothing when neither is there."""
    if (folder / RECORDS_FILE).is_file():
        yield from line_records(folder / RECORDS_FILE)
    elif (folder / PARQUET_FILE).is_file():
        from wattserve_loadgen.results.parquet import parquet_records

        yield from parquet_records(folder / PARQUET_FILE)


def keep_cells(path: Path, positions: Collection[int]) -> None:
    """Drop the records of all other cells, and a torn last line."""
    kept = number = 0
    holes = dropping = False
    try:
        for end, line in lines_of(path):
            number += 1
            if json.loads(line)["cell"] in positions:
                kept, holes = end, dropping
            else:
                dropping = True
    except (ValueError, KeyError, TypeError):
        raise ResultsError(f"{path}: line {number}: not a record of a sweep") from None
    _cut(path, kept)
    if holes:
        _rewrite(path, positions)


def cut_torn(path: Path) -> None:
    """Cut off a last line without its end."""
    _cut(path, max((end for end, _ in lines_of(path)), default=0))


def _cut(path: Path, size: int) -> None:
    try:
        os.truncate(path, size)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written ({error.strerror})") from None


def _rewrite(path: Path, positions: Collection[int]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.writelines(line for _, line in lines_of(path) if json.loads(line)["cell"] in positions)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ResultsError(f"{path}: cannot be written ({error.strerror})") from None
