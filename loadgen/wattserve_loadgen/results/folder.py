"""The results folder: records.jsonl, results.json and report.html.

results.json is replaced as a whole after every cell, so that what is measured survives whatever comes next.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.results.codec import ShapeError, build, plain
from wattserve_loadgen.results.schema import SCHEMA, SCHEMA_VERSION, Record, Results

RESULTS_FILE = "results.json"
RECORDS_FILE = "records.jsonl"
REPORT_FILE = "report.html"


@dataclass(frozen=True)
class Columns:
    """Records as arrays of equal length."""

    latency_ns: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.float64]  # NaN for images
    energy_uj: npt.NDArray[np.float64]  # active; NaN where it is not known


class ResultsFolder:
    """A folder being filled by one sweep."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """ResultsError when `path` holds anything but older results, or those and not `force`."""
        self.path = path
        if path.exists() and not path.is_dir():
            raise ResultsError(f"{path}: is a file; --out takes a folder")
        if path.is_dir() and any(path.iterdir()):
            if not _is_ours(path):
                raise ResultsError(f"{path}: holds other files; choose a new folder for --out")
            if not force:
                raise ResultsError(
                    f"{path}: holds results already; choose another --out, or --force to replace them"
                )

    def start(self) -> None:
        """Make the folder and empty it of an older sweep."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in (RECORDS_FILE, RESULTS_FILE, REPORT_FILE):
                (self.path / name).unlink(missing_ok=True)
            (self.path / RECORDS_FILE).touch()
        except OSError as error:
            raise ResultsError(f"{self.path}: cannot be written ({error.strerror})") from None

    def add_records(self, records: Sequence[Record]) -> None:
        names = Record.__slots__
        lines = [json.dumps({name: getattr(record, name) for name in names}) + "\n" for record in records]
        try:
            with (self.path / RECORDS_FILE).open("a", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            raise ResultsError(f"{self.path / RECORDS_FILE}: cannot be written ({error.strerror})") from None

    def write(self, results: Results) -> None:
        text = json.dumps(plain(results), indent=1, ensure_ascii=False, allow_nan=False)
        replace_file(self.path / RESULTS_FILE, text + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written ({error.strerror})") from None


def read_results(folder: Path) -> Results:
    """The results in `folder`; ResultsError when they are missing, damaged or of another version."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise ResultsError(f"{folder}: no {RESULTS_FILE} in it; give the --out folder of a sweep")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ResultsError(f"{path}: not the results of a sweep (schema {SCHEMA!r} is missing)")
    if value.get("schema_version") != SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: schema version {value.get('schema_version')}; this loadgen reads version"
            f" {SCHEMA_VERSION}"
        )
    try:
        return build(Results, value)
    except ShapeError as error:
        raise ResultsError(f"{path}: {error}") from None


def read_columns(folder: Path) -> dict[tuple[str, int], Columns]:
    """The records that count (answered, sent within a window), by variant and concurrency; {} without
    records.
    """
    path = folder / RECORDS_FILE
    rows: dict[tuple[str, int], list[tuple[int, float, float]]] = {}
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    record = json.loads(line)
                    if record["ok"] and record["in_window"]:
                        energy, tokens = (
                            math.nan if record[name] is None else float(record[name])
                            for name in ("energy_uj", "tokens")
                        )
                        row = (record["done_ns"] - record["sent_ns"], tokens, energy)
                        rows.setdefault((record["variant"], record["concurrency"]), []).append(row)
                except (ValueError, KeyError, TypeError):
                    raise ResultsError(f"{path}: line {number}: not a record of a sweep") from None
    return {
        key: Columns(*(np.array(column) for column in zip(*found, strict=True)))
        for key, found in rows.items()
    }


def _is_ours(folder: Path) -> bool:
    """Whether a sweep wrote `folder`; one that was killed at its start leaves records.jsonl alone."""
    path = folder / RESULTS_FILE
    if not path.exists():
        return all(entry.name == RECORDS_FILE for entry in folder.iterdir())
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and value.get("schema") == SCHEMA
