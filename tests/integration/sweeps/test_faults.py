"""Sweeps that go wrong: what was measured is kept, and what is not known says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fixtures.fake_server.child import ChildServer
from tests.fixtures.fake_server.memory import MemoryServer
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.loadgen_sweeps import Outcome, Told, arguments, measured, read, sweep

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "rows")


def test_a_server_that_dies_leaves_what_was_measured(capsys: Capture, data: Path, tmp_path: Path) -> None:
    server = MemoryServer(Metered(die_after=300))
    found = sweep(server, data, tmp_path / "out", "--blocks", "50", "--wait-for-server", "0.1s")
    error = capsys.readouterr().err
    assert found.code == 1
    assert error.startswith("loadgen: ended early: the server was lost: 127.0.0.1:")
    assert error.count("\n") == 1
    assert 1 <= len(found.results.cells) < 150
    assert found.results.ended.startswith("the server was lost")
    last = found.results.cells[-1]
    assert last.stopped.endswith("does not answer: UNAVAILABLE Connection refused")
    assert last.energy.reason == "the server was lost before the cell's receipts settled"
    assert {record["code"] for record in found.records} == {"OK", "UNAVAILABLE"}
    assert "This sweep ended early" in found.report


@pytest.fixture(scope="module")
def faulty(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One sweep of fp32 whose server fails, forgets and cannot meter some of the requests."""
    out = tmp_path_factory.mktemp("faulty") / "out"
    server = MemoryServer(Metered(unknown_every=5, forget_every=8, fail_every=9, gap_every=50))
    return sweep(server, data, out, "--variants", "fp32", seconds=0.4)


def test_unknown_energies_are_counted_with_their_reason_and_are_not_zero(faulty: Outcome) -> None:
    unknown = [record for record in faulty.records if record["energy_state"] == "unknown"]
    assert unknown
    assert all(record["energy_uj"] is None for record in unknown)
    energy = faulty.results.cells[0].energy
    assert energy.unknown_reasons["the meter was frozen"] > 0
    assert energy.active_uj_per_request is not None
    assert energy.active_uj_per_request > 5_000
    assert "energy unknown" in [verdict.code for verdict in faulty.results.points[0].verdicts]
    assert "the meter was frozen" in faulty.report


def test_forgotten_receipts_are_missed_and_the_others_are_found(faulty: Outcome) -> None:
    forgotten = [record for record in faulty.records if record["energy_state"] == "provisional"]
    assert forgotten
    assert all((int(record["receipt_id"][1:]) + 1) % 8 == 0 for record in forgotten)
    reason = "not settled in time, or no longer kept by the server"
    assert {record["energy_reason"] for record in forgotten} == {reason}
    assert reason in faulty.results.cells[0].energy.unknown_reasons


def test_failed_requests_are_shown_and_cost_no_latency(faulty: Outcome) -> None:
    cell = faulty.results.cells[0]
    assert faulty.code == 0
    assert cell.failures == {"INTERNAL": cell.failed}
    assert cell.failed > 0
    assert cell.answered + cell.failed == cell.sent
    assert "failures" in [verdict.code for verdict in faulty.results.points[0].verdicts]
    assert "the model failed, as it was told to" in faulty.report


def test_a_meter_gap_spoils_the_joules_and_not_the_latencies(faulty: Outcome) -> None:
    verdicts = {verdict.code: verdict.spoils for verdict in faulty.results.points[0].verdicts}
    assert verdicts["meter gap"] == "energy"
    assert faulty.results.cells[0].energy.gap_count > 0


def test_receipts_are_fetched_before_a_server_forgets_them(data: Path, tmp_path: Path) -> None:
    found = sweep(MemoryServer(Metered(keep=100)), data, tmp_path / "out", "--variants", "fp32", seconds=0.4)
    assert len(found.records) > 400
    assert {record["energy_state"] for record in found.records} == {"settled"}
    assert all(cell.energy.receipts_residual_uj == 0 for cell in found.results.cells)


def test_an_answer_that_is_no_message_is_a_failure_of_its_own(data: Path, tmp_path: Path) -> None:
    found = sweep(MemoryServer(Metered(garbage_every=4)), data, tmp_path / "out", "--variants", "fp32")
    cell = found.results.cells[0]
    assert found.code == 0
    assert cell.failures == {"BAD_ANSWER": cell.failed}
    assert cell.failed > 0
    assert cell.failure_example == "BAD_ANSWER the answer is not a PredictResponse"


def test_without_a_meter_there_are_no_joules_anywhere(data: Path, tmp_path: Path) -> None:
    found = sweep(MemoryServer(Metered(meter="none")), data, tmp_path / "out")
    assert found.code == 0
    assert found.results.energy_reason == "started without a meter"
    assert all(point.shown.active_uj is None for point in found.results.points)
    assert all(point.shown.idle_uj is None for point in found.results.points)
    assert all(record["energy_uj"] is None for record in found.records)
    assert "No joules in this report" in found.report


def test_a_variant_that_is_silently_replaced_is_found_out(data: Path, tmp_path: Path) -> None:
    found = sweep(MemoryServer(Metered(wrong_variant=1, random_weights=1)), data, tmp_path / "out")
    replaced = next(cell for cell in found.results.cells if cell.arm == "int8")
    assert (replaced.answered, replaced.rate_per_second) == (0, 0.0)
    assert replaced.failure_example == "WRONG_VARIANT asked for int8, answered by 'fp32'"
    assert found.results.accuracy == {}
    assert found.results.accuracy_reason == "the model has random weights"


def interrupted_sweep(server: ChildServer, data: Path, out: Path) -> tuple[int, list[str], str, str]:
    """(exit code, lines before Ctrl-C, output after it, standard error) of an interrupted sweep."""
    command = [sys.executable, "-m", "wattserve_loadgen", *arguments(server, data, out)]
    command += ["--blocks", "9", "--seconds", "0.3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen: list[str] = []
    while not (seen and "block 1" in seen[-1]):
        seen.append(process.stdout.readline())
    os.kill(process.pid, signal.SIGINT)
    rest, error = process.communicate(timeout=200)
    return process.returncode, seen, rest, error


def test_ctrl_c_ends_the_cell_and_keeps_what_was_measured(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ChildServer(Metered()) as server:
        code, seen, rest, error = interrupted_sweep(server, data, out)
    assert sum("heat-up" in line and "(not counted)" in line for line in seen) == 3
    assert "stopping: the running cell ends and its energy is settled" in rest
    found = read(out, code)
    assert found.code == 130
    assert error.startswith("loadgen: ended early: interrupted by the user; ")
    assert error.count("\n") == 1
    assert 1 <= len(found.results.cells) < found.results.cells_planned
    assert found.results.ended == "interrupted by the user"
    assert all(cell.energy.receipts_residual_uj == 0 for cell in found.results.cells)
    assert all(record["energy_state"] == "settled" for record in found.records)
    assert "Interrupted by the user." in found.report


def test_one_row_without_a_label_leaves_the_others_their_accuracy_and_is_told_first(tmp_path: Path) -> None:
    data = make_labelled(tmp_path / "rows", rows=6)
    labels = torch.load(data / "labels.pt")
    labels[2] = -1
    torch.save(labels, data / "labels.pt")
    told = Told()
    results = measured(MemoryServer(Metered()), data, tmp_path / "out", told)
    assert "1 of 6 dataset rows has no label: accuracy is of the others" in told.lines
    assert (results.dataset.unlabelled_rows, results.accuracy_rows) == (1, 5)
    assert results.accuracy["fp32"].share == 1.0
