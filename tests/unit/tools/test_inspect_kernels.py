"""What `wattserve inspect kernels` reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.fixtures.impostors import declaring, fake_quantised, made
from tests.fixtures.models import save_classifier
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_tools.inspect.kernels import inspect_kernels


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("model")
    return load_model(str(save_classifier(folder)), task_named("sequence-classification"))


def test_inspecting_kernels_shows_an_impostor_beside_the_honest(model: LoadedModel) -> None:
    variants = [made(model, KINDS["fp32"]), made(model, declaring("int8", fake_quantised))]
    honest, impostor = inspect_kernels(variants).as_json()["variants"]
    assert (honest["verified"], impostor["verified"]) == (True, False)
    assert impostor["verdict"].startswith("100 % of its linear layers' work ran in fp32 (")
    assert (honest["weight_macs_share_as_declared"], impostor["weight_macs_share_as_declared"]) == (1, 0)
    for body in (honest, impostor):
        assert sum(product["macs_share"] for product in body["products"]) == pytest.approx(1)
        assert sum(product["time_share"] for product in body["products"]) == pytest.approx(1)
        assert {product["use"] for product in body["products"]} == {"weights", "attention"}


def test_inspecting_kernels_has_a_table_for_all_and_one_for_each(model: LoadedModel) -> None:
    report = inspect_kernels([made(model, KINDS["fp32"])])
    assert [table.title for table in report.tables] == ["What ran", "Matrix products of fp32 on cpu"]


def printed(model: LoadedModel, width: int) -> str:
    """The overview of an honest variant, a proxy and an impostor."""
    kinds = [KINDS["fp32"], KINDS["int8-simulated"], declaring("int8", fake_quantised)]
    report = inspect_kernels([made(model, kind) for kind in kinds])
    console = Console(width=width)
    with console.capture() as captured:
        console.print(report.tables[0])
    return captured.get()


@pytest.mark.parametrize("width", [100, 160])
def test_the_overview_has_a_short_verdict_and_each_devices_hardware_once(
    model: LoadedModel, width: int
) -> None:
    text = printed(model, width)
    rows = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    cells = {row[0].strip(): [cell.strip() for cell in row] for row in rows if row[0].strip()}
    assert list(cells) == ["fp32", "int8-simulated (PROXY)", "int8"]
    assert [row[1] for row in cells.values()] == ["cpu"] * 3
    assert cells["fp32"][3] == cells["int8-simulated (PROXY)"][3] == "verified"
    assert cells["int8"][3].startswith("REFUSED: 100 % of its linear")
    assert text.count("cpu: ") == 1


def test_the_tables_of_kernels_fit_into_a_hundred_columns_with_their_words_whole(model: LoadedModel) -> None:
    report = inspect_kernels([made(model, KINDS["int8"])])
    console = Console(width=100)
    with console.capture() as captured:
        console.print(report.tables[1])
    text = captured.get()
    assert max(map(len, text.splitlines())) <= 100
    for words in ("int8 x int8", "weights, kept", "attention", "Matrix hardware: "):
        assert words in text
