"""`wattserve variants`: what each precision is, on this device and for this model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.fixtures.models import save_classifier
from wattserve_server.engine.variants.catalogue import KINDS, choose
from wattserve_tools.cli import main


def listing(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, list[str]]:
    """Of a small classifier, which is saved there."""
    return rows_of(capsys, str(save_classifier(folder)))


def rows_of(capsys: pytest.CaptureFixture[str], model: str) -> dict[str, list[str]]:
    """The cells of each variant's row, folded lines joined."""
    assert main(["variants", "--model", model, "--device", "cpu"]) == 0
    rows: dict[str, list[str]] = {}
    name = ""
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith("│"):
            continue
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        name = cells[0] or name
        before = rows.get(name, [""] * len(cells))
        rows[name] = [f"{old} {new}".strip() for old, new in zip(before, cells, strict=True)]
    return rows


def test_programs_get_the_same_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = listing(capsys, tmp_path)
    assert main(["variants", "--model", str(tmp_path), "--device", "cpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["variant"]: row for row in told["variants"]}
    assert list(rows) == list(table)
    for name, row in rows.items():
        assert row["native"] == (table[name][2] == "yes")
        size = row["parameter_bytes"]
        assert table[name][5] == ("-" if size is None else f"{size:,}")
    offered = [choice.name for choice in choose(None, torch.device("cpu"))]
    assert [name for name, row in rows.items() if row["by_default"]] == offered


def test_every_kind_is_listed_with_whether_this_cpu_runs_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = listing(capsys, tmp_path)
    assert list(rows) == list(KINDS)
    assert rows["fp32"][2] == "yes"
    assert int(rows["fp32"][5].replace(",", "")) > 0
    assert rows["tf32"][2] == "no"


def test_a_proxy_is_never_listed_without_saying_what_it_really_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = listing(capsys, tmp_path)
    for kind in KINDS.values():
        assert ("a PROXY" in rows[kind.name][3]) == bool(kind.proxy)


def test_a_kind_that_needs_data_to_be_made_says_so_and_not_that_it_cannot_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = listing(capsys, tmp_path)
    assert rows["int8-static"][2] == rows["int8"][2]
    if rows["int8"][2] == "yes":
        assert "needs calibration data" in rows["int8-static"][3]


def test_every_kind_whose_name_a_model_would_not_keep_is_refused_for_one_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = rows_of(capsys, "random:resnet18")
    assert (rows["int8-static"][2], rows["int8"][2]) == ("no", "no")
    for name in ("int8", "int8-static"):
        if KINDS[name].support(torch.device("cpu")).native:
            assert f"{name} would leave most of this model as it is" in rows[name][3]


def test_what_static_weights_take_is_known_without_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = listing(capsys, tmp_path)
    assert (rows["int8-static"][5] == "-") == (rows["int8-static"][2] == "no")
