"""Whole sweeps by the command line, in virtual time, against a server of invented physics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fixtures.fake_server.memory import MemoryServer, memory_servers
from tests.fixtures.fake_server.metered import LAWS, Metered
from tests.fixtures.loadgen_data import make_labelled, write_tensors
from tests.fixtures.loadgen_sweeps import Outcome, arguments, sweep
from wattserve_loadgen import cli
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.results.folder import ResultsFolder

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def server() -> MemoryServer:
    return MemoryServer(Metered())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "rows")


def refused(capsys: Capture, server: MemoryServer, rows: Path, out: Path, *more: str) -> str:
    with memory_servers():
        assert cli.main(arguments(server, rows, out, *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("loadgen: ")
    assert error.count("\n") == 1
    return error.removeprefix("loadgen: ").strip()


@pytest.fixture(scope="module")
def healthy(server: MemoryServer, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One undisturbed sweep: two variants and the twin, two concurrencies, two blocks."""
    out = tmp_path_factory.mktemp("healthy") / "out"
    more = ("--concurrency", "1,8", "--seed", "4")
    return sweep(server, data, out, *more, blocks=2, seconds=0.2)


def test_a_sweep_measures_every_cell_of_its_plan(healthy: Outcome) -> None:
    assert healthy.code == 0
    assert healthy.results.ended == "complete"
    cells = [(cell.block, cell.arm, cell.load) for cell in healthy.results.cells]
    arms, loads = ("fp32", "int8", "fp32 (A/A)"), ("concurrency 1", "concurrency 8")
    assert sorted(cells) == sorted((b, a, load) for b in (1, 2) for a in arms for load in loads)
    planned = [cell for cell in schedule.cells(healthy.results.plan) if not cell.discarded]
    assert cells == [(cell.block, cell.arm.name, cell.load.name) for cell in planned]
    assert [cell.position for cell in healthy.results.cells] == [cell.position for cell in planned]


def variant_of(arm: str) -> str:
    return arm.removesuffix(" (A/A)")


def test_every_request_has_a_settled_receipt_by_the_law_of_its_batch(healthy: Outcome) -> None:
    assert len({record["receipt_id"] for record in healthy.records}) == len(healthy.records)
    for record in healthy.records:
        _, _, per_batch, per_token, _ = LAWS[variant_of(record["arm"])]
        assert record["energy_state"] == "settled"
        assert record["energy_uj"] == per_batch // record["batch_size"] + per_token * record["padded_tokens"]
        assert record["energy_low_uj"] <= record["energy_uj"] <= record["energy_high_uj"]


def test_a_cells_energy_is_the_mean_of_its_windows_receipts(healthy: Outcome) -> None:
    for cell in healthy.results.cells:
        own = [
            record["energy_uj"]
            for record in healthy.records
            if record["cell"] == cell.position and record["in_window"]
        ]
        assert cell.energy.settled == cell.answered == len(own)
        assert cell.energy.active_uj_per_request == pytest.approx(sum(own) / len(own))


def test_the_energy_of_every_cell_closes_to_the_microjoule(healthy: Outcome) -> None:
    for cell in healthy.results.cells:
        assert (cell.energy.accounts_residual_uj, cell.energy.receipts_residual_uj) == (0, 0)
        assert (cell.energy.foreign_sequences, cell.energy.unknown) == (0, 0)
        assert cell.energy.idle_watts == pytest.approx(10.0, rel=1e-3)


def test_the_same_rows_are_sent_to_every_variant(healthy: Outcome) -> None:
    order = schedule.row_order(healthy.results.plan, 1, 60)
    for arm in ("fp32", "int8", "fp32 (A/A)"):
        rows = [
            record["rows"][0]
            for record in healthy.records
            if (record["block"], record["arm"], record["load"]) == (1, arm, "concurrency 8")
        ]
        assert rows == (order * 100)[: len(rows)]


def test_accuracy_is_that_of_the_timed_answers(healthy: Outcome, data: Path) -> None:
    accuracy = healthy.results.accuracy
    assert accuracy["fp32"].correct == accuracy["fp32"].rows == healthy.results.accuracy_rows
    assert accuracy["int8"].rows == accuracy["fp32"].rows > 20
    assert accuracy["int8"].correct < accuracy["int8"].rows
    assert all(
        record["labels"] == record["predicted"] for record in healthy.records if record["arm"] == "fp32"
    )


def test_the_points_say_that_they_are_too_short_to_publish(healthy: Outcome) -> None:
    assert len(healthy.results.points) == 6
    for point in healthy.results.points:
        assert point.verdicts[0].text.startswith("too short to publish: 0.")
    assert "Too short to publish" in healthy.report
    assert "Every joule here is SIMULATED" in healthy.report


def test_the_results_say_what_was_measured_where(healthy: Outcome, server: MemoryServer) -> None:
    results = healthy.results
    (target,) = results.targets
    assert (target.address, target.protocol, target.meter_origin) == (
        server.address,
        "native unary",
        "server",
    )
    assert results.server["model_name"] == "fake-sentiment"
    assert results.server["meter"]["source"]["quality"] == "simulated"
    assert (results.dataset.rows, results.dataset.labelled, len(results.dataset.sha256)) == (60, True, 64)
    assert results.plan.seed == 4
    assert results.command[:2] == ["loadgen", "sweep"]
    assert results.client["same_machine_as_server"] is True


def test_a_report_is_remade_the_same_from_its_folder(healthy: Outcome, tmp_path: Path) -> None:
    out = Path(healthy.results.command[healthy.results.command.index("--out") + 1])
    (out / "report.html").unlink()
    assert cli.main(["report", str(out)]) == 0
    assert (out / "report.html").read_text() == healthy.report


def test_results_are_replaced_only_by_force(
    capsys: Capture, server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ResultsFolder(out).start()
    assert "holds results already" in refused(capsys, server, data, out)
    again = sweep(server, data, out, "--variants", "fp32", "--force")
    assert {record["arm"] for record in again.records} == {"fp32", "fp32 (A/A)"}


def test_what_the_server_cannot_do_is_refused_before_the_first_request(
    capsys: Capture, server: MemoryServer, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    message = refused(capsys, server, data, out, "--variants", "fp32,fp8")
    assert message == "unknown variant 'fp8'; this server has fp32, int8"
    ids = torch.tensor([[5, 6, 7, 0], [8, 1000, 0, 0], [1, 2, 3, 4]])
    wrong = write_tensors(tmp_path / "wrong", input_ids=ids)
    message = refused(capsys, server, wrong, out)
    assert message.startswith(f"{wrong}: row 1 holds token 1000, but the model's vocabulary has 1000")
    assert not out.exists()
