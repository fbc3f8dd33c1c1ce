"""Several servers in one --target: loaded in turns, measured as one and each by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fixtures.fake_server.memory import MemoryServer, memory_servers
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.loadgen_sweeps import Outcome, Told, read, shortened
from wattserve_loadgen import cli
from wattserve_loadgen.model.results import Results
from wattserve_loadgen.plan.load import CONSTANT, Load, closed
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.sweeping.sweep import run_sweep


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "rows")


def swept(servers: list[MemoryServer], data: Path, out: Path, *more: str) -> Outcome:
    where = ("sweep", "--target", ",".join(one.address for one in servers), "--dataset", str(data))
    with shortened(blocks=2, seconds=0.3), memory_servers():
        code = cli.main([*where, "--out", str(out), "--preset", "look", "--no-calibrate", *more])
    return read(out, code)


def measured(servers: list[MemoryServer], data: Path, out: Path, told: Told, load: Load) -> Results:
    with shortened(blocks=1, seconds=0.3), memory_servers():
        options = SweepOptions(
            target=",".join(one.address for one in servers),
            dataset=data,
            out=out,
            preset="look",
            variants=("fp32",),
            loads=(load,),
            twin=False,
            calibrate=False,
            wait_for_server_s=0.0,
        )
        results = asyncio.run(run_sweep(options, told))
    assert results is not None
    return results


def test_calls_go_to_the_servers_in_turns_and_joules_are_summed(data: Path, tmp_path: Path) -> None:
    servers = [MemoryServer(Metered(letter=letter)) for letter in "rst"]
    found = swept(servers, data, tmp_path / "out", "--concurrency", "4")
    assert found.code == 0
    assert found.results.targets[0].address == ",".join(one.address for one in servers)
    for cell in found.results.cells:
        parts = cell.servers
        assert [part.address for part in parts] == [one.address for one in servers]
        assert sum(part.answered for part in parts) == cell.answered
        assert max(part.answered for part in parts) - min(part.answered for part in parts) <= 4
        assert cell.energy.measured_uj == sum(part.measured_uj or 0 for part in parts)
        assert cell.energy.active_uj == sum(part.active_uj or 0 for part in parts)
        assert cell.energy.accounts_residual_uj == 0
        assert cell.energy.receipts_residual_uj == 0
        assert cell.energy.foreign_sequences == 0
        assert cell.energy.meter is not None
        assert all(part.active_uj_per_request for part in parts)
    assert {record["server"] for record in found.records} == {one.address for one in servers}
    assert "Server by server" in found.report


def test_an_open_loop_goes_in_turns_too(data: Path, tmp_path: Path) -> None:
    servers = [MemoryServer(Metered(letter=letter)) for letter in "rs"]
    found = swept(servers, data, tmp_path / "out", "--rate", "200", "--variants", "fp32")
    for cell in found.results.cells:
        first, second = (part.answered for part in cell.servers)
        assert abs(first - second) <= 4
        assert first + second == cell.answered > 0


def test_one_server_has_no_parts(data: Path, tmp_path: Path) -> None:
    found = swept([MemoryServer(Metered())], data, tmp_path / "out")
    assert all(cell.servers == [] for cell in found.results.cells)
    assert {record["server"] for record in found.records} == {None}
    assert "Server by server" not in found.report


@pytest.mark.parametrize("load", [closed(4), Load(CONSTANT, rate=100.0)])
def test_a_server_that_goes_away_in_a_cell_is_a_verdict(data: Path, tmp_path: Path, load: Load) -> None:
    servers = [MemoryServer(Metered()) for _ in range(2)]
    told = Told()

    def on_cell(cell: Cell) -> None:
        if not cell.discarded:
            asyncio.get_running_loop().call_later(0.15, servers[1].kill)

    told.on_cell = on_cell
    found = measured(servers, data, tmp_path / "out", told, load)
    assert servers[1].address in found.ended
    (cell,) = found.cells
    assert servers[1].address in cell.stopped
    assert cell.answered > 0
    assert cell.failed > 0
    (point,) = found.points
    assert "cut short" in [verdict.code for verdict in point.verdicts]


def test_servers_that_are_not_alike_are_refused_before_the_first_request(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [MemoryServer(Metered()), MemoryServer(Metered(variants="fp32"))]
    where = ("sweep", "--target", ",".join(one.address for one in servers), "--dataset", str(data))
    with memory_servers():
        assert cli.main([*where, "--out", str(tmp_path / "out"), "--no-calibrate"]) == 2
    assert f"{servers[1].address} is not like {servers[0].address}" in capsys.readouterr().err


def test_a_server_named_twice_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "--target", "a:1, a:1", "--dataset", "d", "--out", "o"]) == 2
    assert "a:1 is listed twice" in capsys.readouterr().err
