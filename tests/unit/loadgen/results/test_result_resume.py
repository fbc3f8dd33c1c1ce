"""What a sweep that was killed, or ran out of disk, leaves, and how it goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.fixtures.loadgen_results import make_cell, make_record, make_results
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.results.folder import ResultsFolder, read_cells_done, read_columns
from wattserve_loadgen.results.records import read_records


def started(path: Path) -> ResultsFolder:
    folder = ResultsFolder(path)
    folder.start()
    return folder


def with_cells(path: Path, *cells: int) -> ResultsFolder:
    """A sweep whose cells had two requests each; results.json is written after each."""
    folder = started(path)
    done = []
    for position in cells:
        folder.add_records([make_record(cell=position), make_record(cell=position)])
        done.append(make_cell(position=position, sent=2, answered=2))
        folder.write(make_results(cells=done, ended="running"))
    return folder


def go_on(path: Path) -> ResultsFolder:
    folder = ResultsFolder(path, resume=True)
    found = folder.resume()
    assert found is not None
    folder.go_on(found)
    return folder


def test_a_sweep_goes_on_behind_its_last_whole_cell(tmp_path: Path) -> None:
    folder = with_cells(tmp_path / "out", 9, 10)
    whole = (folder.path / "records.jsonl").read_bytes()
    folder.add_records([make_record(cell=11)])  # its cell never came into results.json
    with (folder.path / "records.jsonl").open("a") as file:
        file.write('{"cell": 11, "blo')
    again = ResultsFolder(folder.path, resume=True)
    found = again.resume()
    assert found is not None
    assert [cell.position for cell in found.cells] == [9, 10]
    again.go_on(found)
    assert (folder.path / "records.jsonl").read_bytes() == whole


def test_a_cell_whose_records_were_lost_runs_again(tmp_path: Path) -> None:
    folder = with_cells(tmp_path / "out", 9, 10)
    text = (folder.path / "records.jsonl").read_text()
    (folder.path / "records.jsonl").write_text(text[:-20])
    assert [cell.position for cell in read_cells_done(folder.path)] == [9]
    go_on(folder.path)
    assert len((folder.path / "records.jsonl").read_text().splitlines()) == 2


def test_a_cell_that_ended_early_runs_again_wherever_it_stands(tmp_path: Path) -> None:
    folder = with_cells(tmp_path / "out", 8, 9, 10, 11)
    before = (folder.path / "records.jsonl").read_bytes()
    stopped = {9: "the server was lost", 11: "interrupted by the user"}
    cells = [
        make_cell(position=position, sent=2, answered=2, stopped=stopped.get(position, ""))
        for position in (8, 9, 10, 11)
    ]
    folder.write(make_results(cells=cells))
    assert [cell.position for cell in read_cells_done(folder.path)] == [8, 10]
    again = ResultsFolder(folder.path, resume=True)
    found = again.resume()
    assert (folder.path / "records.jsonl").read_bytes() == before  # a resume may still be refused
    assert found is not None
    again.go_on(found)
    assert [record.cell for record in read_records(folder.path)] == [8, 8, 10, 10]


def test_nothing_is_gone_on_with_when_the_records_are_gone(tmp_path: Path) -> None:
    folder = with_cells(tmp_path / "out", 9)
    (folder.path / "records.jsonl").unlink()
    with pytest.raises(ResultsError, match=r"records\.jsonl is gone: it can be read, but not gone on with"):
        ResultsFolder(folder.path, resume=True).resume()


def test_there_is_nothing_to_go_on_with_in_an_empty_folder(tmp_path: Path) -> None:
    assert ResultsFolder(tmp_path / "new", resume=True).resume() is None
    started(tmp_path / "killed")
    assert ResultsFolder(tmp_path / "killed", resume=True).resume() is None


def test_a_torn_last_line_is_not_there(tmp_path: Path) -> None:
    folder = started(tmp_path / "out")
    folder.add_records([make_record(), make_record()])
    path = folder.path / "records.jsonl"
    path.write_text(path.read_text()[:-30])
    assert len(list(read_records(folder.path))) == 1
    assert len(read_columns(folder.path)[("fp32", "concurrency 4")].latency_ns) == 1


def full_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes so many bytes more."""
    write, room = os.write, [count]

    def write_what_fits(descriptor: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write_what_fits)


def test_a_full_disk_costs_the_cell_and_nothing_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_cells(tmp_path / "out", 9)
    whole = (folder.path / "records.jsonl").read_bytes()
    full_after(100, monkeypatch)
    with pytest.raises(ResultsError, match=r"records\.jsonl: cannot be written \(No space left on device\)"):
        folder.add_records([make_record(cell=10), make_record(cell=10)])
    assert (folder.path / "records.jsonl").read_bytes() == whole
    assert [cell.position for cell in read_cells_done(folder.path)] == [9]


def test_a_folder_that_vanished_is_an_error_and_not_a_new_file(tmp_path: Path) -> None:
    folder = with_cells(tmp_path / "out", 9)
    (folder.path / "records.jsonl").rename(tmp_path / "moved")
    with pytest.raises(ResultsError, match=r"cannot be written \(No such file or directory\)"):
        folder.add_records([make_record(cell=10)])
    assert not (folder.path / "records.jsonl").exists()


def test_readings_go_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    folder = with_cells(tmp_path / "out", 9)
    folder.add_readings(['{"seconds": 1}\n'])
    with (folder.path / "readings.jsonl").open("a") as file:
        file.write('{"seco')
    again = go_on(folder.path)
    again.add_readings(['{"seconds": 2}\n'])
    assert (folder.path / "readings.jsonl").read_text() == '{"seconds": 1}\n{"seconds": 2}\n'


@pytest.mark.parametrize("how", ["resume", "force"])
def test_a_folder_that_a_sweep_is_filling_is_left_to_it(tmp_path: Path, how: str) -> None:
    folder = with_cells(tmp_path / "out", 9)
    again = ResultsFolder(folder.path, resume=how == "resume", force=how == "force")
    with (
        folder.alone(),
        pytest.raises(ResultsError, match="out: another sweep is filling it; wait until it ends"),
        again.alone(),
    ):
        pass
    with again.alone():
        pass
