"""records.parquet holds what records.jsonl holds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.fixtures.loadgen_results import make_record
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.cells import Record
from wattserve_loadgen.results import parquet as writing
from wattserve_loadgen.results.folder import ResultsFolder, read_columns
from wattserve_loadgen.results.parquet import TABLE, write_parquet
from wattserve_loadgen.results.records import read_records

RECORDS = [
    make_record(),
    make_record(cell=2, rows=[3, 4], predicted=[None, 1], labels=[0, None], scheduled_ns=500, tokens=None),
    make_record(cell=2, ok=False, code="UNAVAILABLE", message="gone", receipt_id=None, energy_uj=None),
]


def filled(path: Path) -> Path:
    folder = ResultsFolder(path)
    folder.start()
    folder.add_records(RECORDS)
    return path


def test_every_field_of_a_record_is_a_column() -> None:
    assert TABLE.names == [one.name for one in fields(Record)]


def test_records_come_back_from_parquet_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = filled(tmp_path / "out")
    monkeypatch.setattr(writing, "_PIECE", 2)
    assert write_parquet(folder) == folder / "records.parquet"
    columns = read_columns(folder)
    (folder / "records.jsonl").unlink()
    assert list(read_records(folder)) == RECORDS
    assert read_columns(folder).keys() == columns.keys()


def test_it_is_compressed_and_says_its_version(tmp_path: Path) -> None:
    with parquet.ParquetFile(write_parquet(filled(tmp_path / "out"))) as file:
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
        assert file.schema_arrow.metadata[b"schema_version"] == b"2"


def test_a_damaged_record_leaves_no_file(tmp_path: Path) -> None:
    folder = filled(tmp_path / "out")
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"cell": "x", "ok": true, "in_window": true}\n')
    with pytest.raises(
        ResultsError, match=r"records\.jsonl: line 4: not a record of a sweep \(cell: expected int"
    ):
        write_parquet(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["readings.jsonl", "records.jsonl"]


def test_a_row_that_the_dataset_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = filled(tmp_path / "out")
    write_parquet(folder)
    (folder / "records.jsonl").unlink()
    with pytest.raises(ResultsError, match=r"records\.parquet: .*row 4; the dataset has 4 rows"):
        list(read_records(folder, dataset_rows=4))


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records.parquet").write_text("no")
    with pytest.raises(ResultsError, match="cannot be read as Parquet"):
        list(read_records(tmp_path))
