"""records.parquet: the records for tools that read tables. Made from records.jsonl at the end of a sweep, in
pieces; it needs pyarrow, which is among the extras of loadgen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.results.records import PARQUET_FILE, RECORDS_FILE, Places, raw_records
from wattserve_loadgen.results.schema import SCHEMA, SCHEMA_VERSION

_PIECE = 50_000  # records in memory at once, and in a row group

_COLUMNS: list[tuple[str, Any, bool]] = [
    ("cell", pa.int32(), False),
    ("block", pa.int32(), False),
    ("arm", pa.string(), False),
    ("load", pa.string(), False),
    ("rows", pa.list_(pa.int64()), False),
    ("tokens", pa.int64(), True),
    ("scheduled_ns", pa.int64(), True),
    ("sent_ns", pa.int64(), False),
    ("done_ns", pa.int64(), False),
    ("in_window", pa.bool_(), False),
    ("ok", pa.bool_(), False),
    ("code", pa.string(), False),
    ("message", pa.string(), True),
    ("predicted", pa.list_(pa.int64()), False),
    ("labels", pa.list_(pa.int64()), False),
    ("receipt_id", pa.string(), True),
    ("energy_uj", pa.int64(), True),
    ("energy_low_uj", pa.int64(), True),
    ("energy_high_uj", pa.int64(), True),
    ("energy_state", pa.string(), True),
    ("energy_reason", pa.string(), True),
    ("batch_size", pa.int64(), True),
    ("padded_tokens", pa.int64(), True),
    ("queue_ns", pa.int64(), True),
    ("compute_ns", pa.int64(), True),
]
TABLE = pa.schema(
    [pa.field(name, kind, nullable=optional) for name, kind, optional in _COLUMNS],
    metadata={"schema": SCHEMA, "schema_version": str(SCHEMA_VERSION)},
)


def write_parquet(folder: Path, places: Places | None = None) -> Path:
    """Make records.parquet of the folder's records.jsonl; a reader never sees a part of it."""
    path = folder / PARQUET_FILE
    partial = path.with_name(path.name + ".partial")
    records = raw_records(folder / RECORDS_FILE, places)
    try:
        with parquet.ParquetWriter(partial, TABLE, compression="zstd") as writer:
            while piece := list(islice(records, _PIECE)):
                writer.write_table(pa.Table.from_pylist(piece, schema=TABLE))
        partial.replace(path)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written ({error.strerror or error})") from None
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ResultsError(f"{folder / RECORDS_FILE}: not the records of a sweep ({error})") from None
    finally:
        partial.unlink(missing_ok=True)
    return path


def parquet_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every record as JSON values; ResultsError when the file is none of ours."""
    try:
        with parquet.ParquetFile(path) as file:
            for piece in file.iter_batches(_PIECE):
                yield from piece.to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultsError(f"{path}: cannot be read as Parquet ({error})") from None
