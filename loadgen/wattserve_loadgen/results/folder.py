"""The results folder of a sweep: what is in it, how it is filled, how it is read again.

After every cell its records are appended and results.json is replaced as a whole, so that what is measured
survives whatever comes next. Knows no figures.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from wattserve_loadgen.errors import PlanError, ResultsError
from wattserve_loadgen.model.cells import CellResult, Record
from wattserve_loadgen.model.codec import ShapeError, build, plain
from wattserve_loadgen.model.results import SCHEMA, SCHEMA_VERSION, Results
from wattserve_loadgen.plan.plan_file import PLAN_FILE as PLAN_FILE
from wattserve_loadgen.plan.schedule import check_plan
from wattserve_loadgen.results.csv_table import csv_text
from wattserve_loadgen.results.records import (
    PARQUET_FILE,
    PARTIAL,
    RECORDS_FILE,
    append,
    cut_torn,
    keep_cells,
    read_records,
    replacing,
    writing,
)

RESULTS_FILE = "results.json"
CSV_FILE = "results.csv"
ENVIRONMENT_FILE = "environment.json"
REPORT_FILE = "report.html"
READINGS_FILE = "readings.jsonl"
FILES = (
    RESULTS_FILE,
    RECORDS_FILE,
    READINGS_FILE,
    PARQUET_FILE,
    CSV_FILE,
    ENVIRONMENT_FILE,
    PLAN_FILE,
    REPORT_FILE,
)
LARGEST = 1e30  # of any figure
DEEPEST = 50  # of lists and objects in one another
FILES_AND_PARTIALS = {name + suffix for name in FILES for suffix in ("", PARTIAL)}


@dataclass(frozen=True)
class Columns:
    """The records that count of an arm under a load, as arrays of equal length in the order of sending."""

    latency_ns: npt.NDArray[np.int64]  # response time where there is a schedule, else service time
    service_ns: npt.NDArray[np.int64]
    lag_ns: npt.NDArray[np.float64]  # NaN without a schedule
    tokens: npt.NDArray[np.float64]  # NaN for images
    padded_tokens: npt.NDArray[np.float64]  # NaN where it is not known
    energy_uj: npt.NDArray[np.float64]  # active; NaN where it is not known
    batch_size: npt.NDArray[np.float64]  # sequences that ran with it; NaN where it is not known
    prompt_tokens: npt.NDArray[np.float64]  # these four of a generation; NaN of anything else
    output_tokens: npt.NDArray[np.float64]
    prompt_uj: npt.NDArray[np.float64]  # NaN where it is not known, as the next
    output_uj: npt.NDArray[np.float64]


class ResultsFolder:
    """A folder being filled by one sweep. Either `start` it, or `resume` it and `go_on`, once."""

    def __init__(self, path: Path, *, force: bool = False, resume: bool = False) -> None:
        """ResultsError when `path` holds anything but older results, or those and neither `force` nor
        `resume`.
        """
        self.path = path
        if path.exists() and not path.is_dir():
            raise ResultsError(f"{path}: is a file; --out takes a folder")
        if path.is_dir() and any(path.iterdir()):
            if not _is_ours(path):
                raise ResultsError(f"{path}: holds other files; choose a new folder for --out")
            if not force and not resume:
                raise ResultsError(
                    f"{path}: holds results already; choose another --out, --resume to go on with them, or"
                    " --force to replace them"
                )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other sweep fills the folder meanwhile. It is made where it is not there. Or ResultsError."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            place = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = "another sweep is filling it; wait until it ends, or choose another --out"
                raise ResultsError(f"{self.path}: {text}") from None
            yield
        finally:
            os.close(place)

    def start(self) -> None:
        """Make the folder and empty it of an older sweep."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for name in FILES_AND_PARTIALS:
                (self.path / name).unlink(missing_ok=True)
            (self.path / RECORDS_FILE).touch()
            (self.path / READINGS_FILE).touch()

    def resume(self) -> Results | None:
        """The results so far, with the cells that are done. Nothing is changed yet: `go_on` does. None when
        there is nothing to go on with, and `start` is due.
        """
        if not (self.path / RESULTS_FILE).is_file():
            return None
        results = read_results(self.path)
        if results.cells and not (self.path / RECORDS_FILE).is_file():
            raise ResultsError(f"{self.path}: {RECORDS_FILE} is gone: it can be read, but not gone on with")
        return replace(results, cells=read_cells_done(self.path))

    def go_on(self, results: Results) -> None:
        """Drop what does not belong to the cells of `results`, which is what `resume` gave."""
        with writing(self.path):
            for name in (RECORDS_FILE, READINGS_FILE):
                (self.path / name).touch()
            (self.path / PARQUET_FILE).unlink(missing_ok=True)
        keep_cells(self.path / RECORDS_FILE, {cell.position for cell in results.cells})
        cut_torn(self.path / READINGS_FILE)

    def add_records(self, records: Sequence[Record]) -> None:
        """The records of one cell, before the `write` that names the cell."""
        encode = msgspec.json.Encoder().encode
        append(self.path / RECORDS_FILE, b"".join(encode(record) + b"\n" for record in records))

    def add_readings(self, lines: Sequence[str]) -> None:
        """Readings of the meters, a line of JSON each: target, device, seconds, joules, idle_watts."""
        append(self.path / READINGS_FILE, "".join(lines).encode())

    def write(self, results: Results) -> None:
        """Everything that is known now: results.json, results.csv and environment.json."""
        replace_file(self.path / RESULTS_FILE, _json_text(results))
        self.write_text(CSV_FILE, csv_text(results))
        environment = {"client": results.client, "targets": plain(results.targets)}
        self.write_text(ENVIRONMENT_FILE, json.dumps(environment, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """One of `FILES`, as a whole."""
        if name not in FILES:
            raise ValueError(f"{name} does not belong into a results folder")
        replace_file(self.path / name, text)


def replace_file(path: Path, text: str) -> None:
    """As a whole, and on the disk."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_results(folder: Path) -> Results:
    """The results in `folder`; ResultsError when they are missing, damaged or of another version."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise ResultsError(f"{folder}: no {RESULTS_FILE} in it; give the --out folder of a sweep")
    try:
        value = _stored(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ResultsError(f"{path}: not the results of a sweep (schema {SCHEMA!r} is missing)")
    try:
        _check_version(value)
        _check_numbers(value, "")
        results = build(Results, value)
        for index, target in enumerate(results.targets):
            _check_said(_Server, target.server, f"targets[{index}].server")
            _check_said(_Meter, target.meter, f"targets[{index}].meter")
        _check_said(_Client, results.client, "client")
        check_plan(results.plan)
        _check_names(results)
        return results
    except PlanError as error:
        raise ResultsError(f"{path}: plan: {error}") from None
    except ShapeError as error:
        raise ResultsError(f"{path}: {error}") from None


def _check_numbers(value: Any, place: str, depth: int = 0) -> None:
    """Their squares can be summed. Raises ShapeError."""
    if depth > DEEPEST:
        raise ShapeError(f"{place}: lists or objects in it are too deep")
    if isinstance(value, dict):
        for name, one in value.items():
            _check_numbers(one, f"{place}.{name}".removeprefix("."), depth + 1)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            _check_numbers(one, f"{place}[{index}]", depth + 1)
    elif isinstance(value, int | float) and abs(value) > LARGEST:
        raise ShapeError(f"{place}: no sweep measures more than {LARGEST:g}")


@dataclass(frozen=True)
class _Named:
    name: str


@dataclass(frozen=True)
class _Probe:
    reads: int = 0
    duration_seconds: float = 0.0
    read_cost_p50_seconds: float | None = None
    read_cost_p99_seconds: float | None = None
    update_period_seconds: float | None = None
    edge_jitter_seconds: float | None = None
    resolution_uj: float | None = None
    watts: float | None = None
    unsupported: dict[str, Any] | None = None
    cross_checks: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class _Part:
    source: _Named
    device: str | None = None


@dataclass(frozen=True)
class _Meter:
    source: _Named | None = None
    parts: list[_Part] | None = None
    shared_by: list[str] | None = None
    probe: _Probe | None = None
    poll_period_seconds: float | None = None
    update_period_seconds: float | None = None
    idle_watts: float | None = None
    lag_seconds: float | None = None
    ramp_seconds: float | None = None


@dataclass(frozen=True)
class _Server:
    """What is read of what a server said."""

    variants: list[_Named] | None = None
    meter: _Meter | None = None
    other_meters: list[_Meter] | None = None
    versions: dict[str, Any] | None = None
    labels: list[str] | None = None


@dataclass(frozen=True)
class _Client:
    packages: dict[str, Any] | None = None


def _check_said(kind: type, said: dict[str, Any], place: str) -> None:
    """Raises ShapeError."""
    try:
        build(kind, said)
    except ShapeError as error:
        raise ShapeError(f"{place}.{error}") from None


def _check_names(results: Results) -> None:
    """What results speak of is in their plan. Raises ShapeError."""
    targets = {target.name for target in results.targets}
    for arm in results.plan.arms:
        if arm.target not in targets:
            raise ShapeError(f"plan: {arm.name} is of {arm.target!r}, which is not among the targets")
    pairs = {(arm.name, load.name) for arm, load in results.plan.pairs()}
    named = [(f"cells[{index}]", (cell.arm, cell.load)) for index, cell in enumerate(results.cells)]
    named += [(f"points[{index}]", (point.arm, point.load)) for index, point in enumerate(results.points)]
    for path, (arm_name, load_name) in named:
        if (arm_name, load_name) not in pairs:
            raise ShapeError(f"{path}: {arm_name!r} under {load_name!r} is not in the plan")
    seen = set[tuple[str, str]]()
    for index, point in enumerate(results.points):
        if point.figures is None and point.withheld is None:
            raise ShapeError(f"points[{index}]: it has neither figures nor withheld ones")
        if (point.arm, point.load) in seen:
            raise ShapeError(f"points[{index}]: {point.arm} under {point.load} is there twice")
        seen.add((point.arm, point.load))


def _check_version(value: dict[str, Any]) -> None:
    version = value.get("schema_version")
    if type(version) is not int or version < 1:
        raise ShapeError(f"schema_version: {version!r} is no version of these results")
    if version < SCHEMA_VERSION:
        raise ShapeError(
            f"schema_version: version {version} was written until 2026-11-21, and a loadgen of that day was"
            " the last to read it; open its report.html, or run the sweep again"
        )
    if version > SCHEMA_VERSION:
        raise ShapeError(
            f"schema_version: version {version} was written by a newer loadgen"
            f" ({value.get('loadgen_version', 'unknown')}); this one reads version {SCHEMA_VERSION}:"
            " upgrade it"
        )


def read_cells_done(folder: Path) -> list[CellResult]:
    """The cells that need not run again: those that ran to their end and of which no record is missing."""
    results = read_results(folder)
    records = read_records(folder, results.dataset.rows)
    sent = Counter(record.cell for record in records if record.in_window)
    return [cell for cell in results.cells if not cell.stopped and sent[cell.position] >= cell.sent]


def read_columns(folder: Path, dataset_rows: int | None = None) -> dict[tuple[str, str], Columns]:
    """The records that count (answered, in a window), by arm and load; {} without records."""
    rows: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for record in read_records(folder, dataset_rows):
        if record.ok and record.in_window:
            lag = None if record.scheduled_ns is None else record.sent_ns - record.scheduled_ns
            own = record.generation
            written = (
                (own.prompt_tokens, own.output_tokens, own.prompt_uj, own.output_uj) if own else (None,) * 4
            )
            sizes = (record.tokens, record.padded_tokens, record.energy_uj, record.batch_size)
            optional = (lag, *sizes, *written)
            row = (
                record.latency_ns,
                record.done_ns - record.sent_ns,
                *(math.nan if value is None else float(value) for value in optional),
            )
            rows.setdefault((record.arm, record.load), []).append(row)
    return {
        key: Columns(*(np.array(column) for column in zip(*table, strict=True)))
        for key, table in rows.items()
    }


def _json_text(results: Results) -> str:
    """Indented, but for the long lists: an entry of those is a line."""
    parts = []
    for name, value in plain(results).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines = ",\n  ".join(
                json.dumps(one, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for one in value
            )
            text = f"[\n  {lines}\n ]"
        else:
            text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).replace("\n", "\n ")
        parts.append(f' "{name}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _stored(path: Path) -> Any:
    return msgspec.json.decode(path.read_bytes())


def _is_ours(folder: Path) -> bool:
    """Whether a sweep wrote `folder`; one that was killed at its start has no results.json yet."""
    path = folder / RESULTS_FILE
    if not path.exists():
        return (folder / RECORDS_FILE).exists() and FILES_AND_PARTIALS.issuperset(os.listdir(folder))
    try:
        value = _stored(path)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("schema") == SCHEMA
