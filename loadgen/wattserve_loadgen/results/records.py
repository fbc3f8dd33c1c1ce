"""records.jsonl: a line of JSON for each request. Written cell after cell, read in pieces, never as a whole.

A line without its end is what a killed sweep or a full disk left: it is not there. A line that is whole and
makes no sense is an error. Knows no figures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.results.codec import ShapeError, build, field_names
from wattserve_loadgen.results.schema import Record
from wattserve_loadgen.results.upgrade import record_of

RECORDS_FILE = "records.jsonl"
PARQUET_FILE = "records.parquet"

Places = Mapping[tuple[int, str, str], int]  # a cell's position by its block, arm and load


def append_records(path: Path, records: Sequence[Record]) -> None:
    """Add lines to a file that is there already; ResultsError, and the file as it was, when they do not all
    fit.
    """
    names = field_names(Record)
    values, encode = attrgetter(*names), json.JSONEncoder().encode
    append_lines(path, [encode(dict(zip(names, values(record), strict=True))) + "\n" for record in records])


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """As `append_records`."""
    unwritten = memoryview("".join(lines).encode())
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


def raw_records(path: Path, places: Places | None = None) -> Iterator[dict[str, Any]]:
    """Every record as JSON values of today's version, unchecked; ResultsError names a line that is none.

    `places` finds the cell of a record of version 1, which did not name it; without them it is 0.
    """
    try:
        for number, (_, line) in enumerate(lines_of(path), start=1):
            try:
                value = json.loads(line)
                if "variant" in value:
                    key = (value["block"], value["variant"], closed(value["concurrency"]).name)
                    value = record_of(value, (places or {}).get(key, 0))
                value["cell"], value["ok"], value["in_window"]
            except (ValueError, KeyError, TypeError):
                raise ResultsError(f"{path}: line {number}: not a record of a sweep") from None
            yield value
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror})") from None


def stored_records(folder: Path, places: Places | None = None) -> Iterator[dict[str, Any]]:
    """As `raw_records`, from records.jsonl or else from records.parquet; nothing when neither is there."""
    if (folder / RECORDS_FILE).is_file():
        yield from raw_records(folder / RECORDS_FILE, places)
    elif (folder / PARQUET_FILE).is_file():
        from wattserve_loadgen.results.parquet import parquet_records

        yield from parquet_records(folder / PARQUET_FILE)


def built_records(
    folder: Path, positions: Collection[int] | None, places: Places | None = None
) -> Iterator[Record]:
    """The records of the cells at these positions, or of all."""
    for number, value in enumerate(stored_records(folder, places), start=1):
        if positions is None or value["cell"] in positions:
            try:
                yield build(Record, value)
            except ShapeError as error:
                raise ResultsError(f"{folder}: record {number}: {error}") from None


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
