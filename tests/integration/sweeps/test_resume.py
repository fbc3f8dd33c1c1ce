"""Sweeps that are ended in the middle, by a signal, a kill or a full disk, and go on where they stopped."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.fake_server.memory import MemoryServer
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.loadgen_sweeps import Told, measured
from wattserve_common.stats import effective_samples
from wattserve_loadgen.errors import PlanError, ResultsError
from wattserve_loadgen.figures.percentiles import percentiles_of
from wattserve_loadgen.model.cells import Percentiles
from wattserve_loadgen.model.results import Results
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.results.folder import read_results
from wattserve_loadgen.results.records import read_records

BLOCKS = 3
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.fixtures.fake_server.memory import MemoryServer
from tests.fixtures.fake_server.metered import Metered, Metered
from tests.fixtures.loadgen_sweeps import Told, measured
server, told = MemoryServer(Metered(), sys.argv[1]), Told()
def on_cell(cell):
    if cell.position == 3:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGKILL)
told.on_cell = on_cell
measured(server, Path(sys.argv[2]), Path(sys.argv[3]), told, blocks=3, seconds=0.3)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "rows")


@pytest.fixture(scope="module")
def server() -> MemoryServer:
    return MemoryServer(Metered())


def signalled(number: int, position: int = 3, *, twice: bool = False) -> Told:
    """Sends this process the signal when that cell starts, and once more when the sweep says so."""
    told = Told()

    def on_cell(cell: Cell) -> None:
        if cell.position == position:
            os.kill(os.getpid(), number)

    def on_line(line: str) -> None:
        if twice and line.startswith("stopping:"):
            os.kill(os.getpid(), number)

    told.on_cell = on_cell
    told.on_line = on_line
    return told


def interrupted(server: MemoryServer, data: Path, out: Path) -> Results:
    return measured(server, data, out, signalled(signal.SIGINT), blocks=BLOCKS)


def is_whole(results: Results, out: Path) -> None:
    """Every planned cell once, from records that are there once, in the order of time."""
    assert results.ended == "complete"
    planned = [cell.position for cell in schedule.cells(results.plan) if not cell.discarded]
    assert sorted(cell.position for cell in results.cells) == planned
    assert not any(cell.stopped for cell in results.cells)
    stretches = [
        (position, list(group)) for position, group in groupby(read_records(out), lambda one: one.cell)
    ]
    assert sorted(position for position, _ in stretches) == planned
    for (_, earlier), (_, later) in pairwise(stretches):
        assert max(record.sent_ns for record in earlier) < min(record.sent_ns for record in later)
    own = dict(stretches)
    for cell in results.cells:
        window = [one for one in own[cell.position] if one.in_window]
        values = [one.done_ns - one.sent_ns for one in window if one.ok]
        assert cell.sent == len(window)
        assert cell.latency == recomputed(values)
    assert read_results(out) == results


def recomputed(values: list[int]) -> Percentiles:
    array = np.array(values)
    return percentiles_of(array, effective_samples(array), floors_by_effective=False)


@pytest.mark.parametrize(("number", "by"), [(signal.SIGINT, "the user"), (signal.SIGTERM, "SIGTERM")])
def test_a_sweep_that_was_interrupted_goes_on_to_the_same_end(
    server: MemoryServer, data: Path, tmp_path: Path, number: int, by: str
) -> None:
    out = tmp_path / "out"
    first = measured(server, data, out, signalled(number), blocks=BLOCKS)
    assert first.ended == f"interrupted by {by}"
    told = Told()
    again = measured(server, data, out, told, blocks=BLOCKS, resume=True)
    is_whole(again, out)
    assert told.passed == [2]
    (note,) = again.interruptions
    assert note.startswith("Resumed at ")
    assert note.endswith(f" with 1 cell measured, after it was interrupted by {by}.")
    instants = [json.loads(line)["seconds"] for line in (out / "readings.jsonl").read_text().splitlines()]
    assert instants == sorted(instants)


def test_a_second_signal_ends_the_sweep_at_once_and_nothing_is_lost(
    server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        measured(server, data, out, signalled(signal.SIGINT, twice=True), blocks=BLOCKS, seconds=0.5)
    assert [cell.position for cell in read_results(out).cells] == [2]
    is_whole(measured(server, data, out, blocks=BLOCKS, seconds=0.5, resume=True), out)


def test_sigterm_twice_as_timeout_sends_it_ends_the_sweep_in_good_order(
    server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    found = measured(server, data, tmp_path / "out", signalled(signal.SIGTERM, twice=True), blocks=BLOCKS)
    assert found.ended == "interrupted by SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN


def test_a_sweep_that_was_killed_in_a_cell_goes_on_behind_a_torn_line(
    server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, server.address, str(data), str(out)]
    assert subprocess.run(command, timeout=200).returncode == -signal.SIGKILL
    for name in ("records.jsonl", "readings.jsonl"):
        with (out / name).open("a") as file:
            file.write('{"cell": 3, "blo')
    again = measured(server, data, out, blocks=3, seconds=0.3, resume=True)
    is_whole(again, out)
    assert again.interruptions[0].endswith("after it was killed.")


def test_a_sweep_goes_on_with_the_same_model_in_another_process_and_says_so(
    server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    interrupted(server, data, out)
    other = MemoryServer(Metered())
    again = measured(other, data, out, blocks=BLOCKS, resume=True)
    is_whole(again, out)
    assert again.interruptions[0].endswith(
        "; " + server.address + " had been restarted, with the same model."
    )


def test_a_sweep_does_not_go_on_with_another_model_or_plan_and_its_folder_stays_as_it_is(
    server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    interrupted(server, data, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    refusal = pytest.raises(PlanError, match="is not the server of the interrupted sweep: its model_name was")
    other = MemoryServer(Metered(model="other"))
    with refusal:
        measured(other, data, out, blocks=BLOCKS, resume=True)
    with pytest.raises(PlanError, match=r"the interrupted sweep had another plan \(blocks\)"):
        measured(server, data, out, blocks=BLOCKS + 1, resume=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("name", ["records.jsonl", "readings.jsonl", "results.json"])
def test_a_full_disk_costs_no_cell_that_was_measured(
    server: MemoryServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out, told = tmp_path / "out", Told()
    full: list[int] = []
    write, fsync = os.write, os.fsync

    def no_space(descriptor: int) -> None:
        if full and name in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    def write_some(descriptor: int, content: Any) -> int:
        if content.nbytes > 100:
            return write(descriptor, content[:100])
        no_space(descriptor)
        return write(descriptor, content)

    def sync(descriptor: int) -> None:
        no_space(descriptor)
        fsync(descriptor)

    told.on_cell = lambda cell: full.append(1) if cell.position == 3 else None
    with monkeypatch.context() as patch:
        patch.setattr("wattserve_loadgen.results.records.os.write", write_some)
        patch.setattr("wattserve_loadgen.results.folder.os.fsync", sync)
        with pytest.raises(ResultsError) as caught:
            measured(server, data, out, told, blocks=BLOCKS)
    assert str(caught.value) == (
        f"{out / name}: cannot be written (No space left on device);"
        " the finished cells are kept: go on with --resume once that is repaired"
    )
    assert [cell.position for cell in read_results(out).cells] == [2]
    is_whole(measured(server, data, out, blocks=BLOCKS, resume=True), out)
