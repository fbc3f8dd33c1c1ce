"""records.parquet: the records for tools that read tables. Made from records.jsonl at the end of a sweep, in
pieces; it needs pyarrow, which is among the extras of loadgen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow as pa
from pyarrow import parquet

from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.model.codec import ShapeError, build, plain
from wattserve_loadgen.model.results import SCHEMA, SCHEMA_VERSION
from wattserve_loadgen.results.records import PARQUET_FILE, RECORDS_FILE, check_rows, line_records, replacing

_PIECE = 50_000  # records in memory at once, and in a row group

_TYPES = {int: pa.int64(), str: pa.string(), bool: pa.bool_(), list: pa.list_(pa.int64())}
_SMALL = ("cell", "block")  # numbers that fit int32


def _column(name: str, kind: Any) -> Any:
    """Of a field of Record."""
    optional = NoneType in get_args(kind)
    stored = get_args(kind)[0] if optional else get_origin(kind) or kind
    if is_dataclass(stored):
        inner = pa.struct([_column(*field) for field in get_type_hints(stored).items()])
        return pa.field(name, inner, nullable=optional)
    return pa.field(name, pa.int32() if name in _SMALL else _TYPES[stored], nullable=optional)


TABLE = pa.schema(
    [_column(name, kind) for name, kind in get_type_hints(Record).items()],
    metadata={"schema": SCHEMA, "schema_version": str(SCHEMA_VERSION)},
)


def write_parquet(folder: Path) -> Path:
    """Make records.parquet of the folder's records.jsonl; a reader never sees a part of it."""
    path = folder / PARQUET_FILE
    records = line_records(folder / RECORDS_FILE)
    try:
        with (
            replacing(path) as partial,
            parquet.ParquetWriter(partial, TABLE, compression="zstd") as writer,
        ):
            while piece := list(islice(records, _PIECE)):
                writer.write_table(pa.Table.from_pylist([plain(record) for record in piece], schema=TABLE))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ResultsError(f"{folder / RECORDS_FILE}: not the records of a sweep ({error})") from None
    return path


def parquet_records(path: Path, dataset_rows: int | None = None) -> Iterator[Record]:
    """Every record; ResultsError when the file is none of ours."""
    try:
        with parquet.ParquetFile(path) as file:
            for piece in file.iter_batches(_PIECE):
                for record in build(list[Record], piece.to_pylist()):
                    check_rows(record, dataset_rows)
                    yield record
    except ShapeError as error:
        raise ResultsError(f"{path}: not the records of a sweep ({error})") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultsError(f"{path}: cannot be read as Parquet ({error})") from None
