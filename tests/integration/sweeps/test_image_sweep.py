"""Whole sweeps of images, of proxies and over two devices, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.fake_server.memory import MemoryServer, memory_servers
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.loadgen_data import make_images, make_labelled
from tests.fixtures.loadgen_sweeps import Outcome, arguments, sweep
from wattserve_loadgen import cli
from wattserve_loadgen.model.cells import CellResult
from wattserve_loadgen.model.results import Point


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("images")
    server = MemoryServer(Metered(pixel_shape="3,4,6", proxy="int8", unverified="int8"))
    return sweep(server, make_images(folder / "data"), folder / "out")


def test_images_are_swept_with_joules_and_accuracy_and_without_tokens(outcome: Outcome) -> None:
    assert outcome.code == 0
    assert outcome.results.dataset.pixel_shape == (3, 4, 6)
    assert outcome.results.accuracy["fp32"].share == 1.0
    for cell in outcome.results.cells:
        assert cell.energy.active_uj_per_request is not None
        assert (cell.energy.accounts_residual_uj, cell.energy.receipts_residual_uj) == (0, 0)
        assert (cell.energy.active_uj_per_token, cell.mean_tokens, cell.padding_share) == (None, None, None)
    assert {record["tokens"] for record in outcome.records} == {None}
    assert "12 images of 3 × 4 × 6" in outcome.report


def test_results_say_of_every_cell_and_point_whether_its_variant_is_what_it_says(outcome: Outcome) -> None:
    marked: list[CellResult | Point] = [*outcome.results.cells, *outcome.results.points]
    for one in marked:
        wanted = ("products in fp32", False) if one.arm == "int8" else ("", True)
        assert (one.proxy, one.verified) == wanted
    about = {one["name"]: one for one in outcome.results.server["variants"]}
    assert (about["int8"]["proxy"], about["int8"]["verified"]) == ("products in fp32", False)
    assert "int8 is a proxy: products in fp32." in outcome.results.notes
    assert "int8 (proxy, unverified)" in outcome.report


def test_each_variant_is_held_against_the_ledger_of_its_own_device(tmp_path: Path) -> None:
    found = sweep(MemoryServer(Metered(on_gpu="int8")), make_labelled(tmp_path / "data"), tmp_path / "out")
    assert {cell.arm for cell in found.results.cells} == {"fp32", "int8", "fp32 (A/A)"}
    for cell in found.results.cells:
        assert (cell.energy.active_uj or 0) > 0
        assert (cell.energy.other_active_uj, cell.energy.receipts_residual_uj) == (0, 0)
    assert any("each with a meter of its own" in note for note in found.results.notes)


def test_a_variant_that_could_not_be_made_is_left_out(tmp_path: Path) -> None:
    found = sweep(MemoryServer(Metered(failed="int8")), make_labelled(tmp_path / "data"), tmp_path / "out")
    assert [arm.name for arm in found.results.plan.arms] == ["fp32", "fp32 (A/A)"]
    assert "which is left out: most of the model would stay as it is" in " ".join(found.results.notes)


def test_tokens_are_not_sent_to_a_model_that_takes_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, data = MemoryServer(Metered(pixel_shape="3,4,6")), make_labelled(tmp_path / "data")
    with memory_servers():
        assert cli.main(arguments(server, data, tmp_path / "out")) == 2
    assert "holds token ids, and this server's model takes images, [3, 4, 6] each" in capsys.readouterr().err
