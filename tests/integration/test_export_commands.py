"""`wattserve variants export`, and a server of what it wrote."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.exports import exported, served
from tests.fixtures.inspection_data import make_dataset
from tests.fixtures.models import save_classifier
from tests.fixtures.quantised import save_claim
from tests.fixtures.server import running_server
from wattserve_client import Client
from wattserve_tools.cli import main

IDS = np.array([2, 4, 6, 3], dtype=np.int64)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WATTSERVE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def int8(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "tiny-int8"
    exported(model, "int8", folder)
    return folder


def export(model: Path | str, out: Path, *arguments: str) -> int:
    return main(["variants", "export", "--model", str(model), "--out", str(out), *arguments])


def test_an_export_prints_its_folder_and_says_what_it_holds(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out"
    assert export(model, out, "--variant", "int8", "--device", "cpu") == 0
    written = capsys.readouterr()
    assert written.out == f"{out}\n"
    assert "exported int8 of tiny: 13 of 14 linear layers; weights per channel" in written.err
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "wattserve_variant.json"}
    assert list(out.parent.iterdir()) == [out]


def test_static_int8_is_exported_with_what_it_was_calibrated_with(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_dataset(tmp_path / "data", 512)
    out = tmp_path / "out"
    assert export(model, out, "--variant", "int8-static", "--calibration", str(data), "--device", "cpu") == 0
    told = json.loads((out / "wattserve_variant.json").read_text())
    assert told["calibration"].startswith("512 rows of data")
    assert served(out).name == "int8-static"


def test_random_weights_stay_known_as_random(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export("random:resnet18", out, "--variant", "bf16", "--task", "image-classification") == 0
    assert served(out, "image-classification").model.has_random_weights


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variant", "int3"], "unknown variant 'int3'"),
        (["--variant", "int8,fp32"], "--variant 'int8,fp32': one at a time"),
        (["--variant", "int8-static"], "needs activation scales: give it --calibration"),
        (["--variant", "tf32", "--device", "cpu"], "variant 'tf32' cannot run on cpu"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert export(model, tmp_path / "out", *arguments) == 2
    written = capsys.readouterr()
    assert words in written.err.splitlines()[-1]
    assert written.out == ""
    assert not (tmp_path / "out").exists()


def test_an_export_is_not_exported_again(
    int8: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(int8, tmp_path / "out", "--variant", "int8") == 2
    assert "holds only int8, exported from tiny: there is nothing to convert" in capsys.readouterr().err


def test_a_folder_in_use_is_refused_before_the_model_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "note").write_text("mine")
    assert export("/nowhere/model", tmp_path, "--variant", "fp32") == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err


def test_without_a_command_the_variants_are_listed_and_of_an_export_the_one(
    model: Path, int8: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["variants", "--model", str(model), "--device", "cpu"]) == 0
    assert "bf16" in capsys.readouterr().out
    assert main(["variants", "--model", str(int8), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "int8" in shown
    assert "exported from" in shown
    assert "bf16" not in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "fp32"], "variant 'fp32': model "),
        (["--variants", "int8,fp32"], "holds only int8, exported from tiny"),
        (["--calibration", "data"], "--calibration: model "),
        (["--task", "feature-extraction"], "was exported for --task sequence-classification"),
        (["--max-model-memory", "1kB"], "the weights on cpu would take 39.31 kB"),
    ],
)
def test_a_server_of_an_export_refuses_what_it_does_not_hold(
    int8: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    serve = ["serve", "--model", str(int8), "--port", "0", "--metrics-port", "0", "--device", "cpu"]
    assert main([*serve, "--meter", "none", *arguments]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_a_damaged_export_is_one_line(int8: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(int8, tmp_path / "damaged"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    serve = ["serve", "--model", str(folder), "--port", "0", "--metrics-port", "0", "--device", "cpu"]
    assert main([*serve, "--meter", "none"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("wattserve: error: model ")
    assert "it is damaged or another file" in line


def test_a_checkpoint_of_a_library_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_claim(tmp_path / "model", {"quant_method": "gptq", "bits": 4})
    assert main(["serve", "--model", str(folder), "--port", "0", "--metrics-port", "0"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "is quantised by GPTQ (4 bit): not installed: gptqmodel" in line


def test_a_server_of_an_export_answers_bit_for_bit_and_loads_it_again(int8: Path) -> None:
    with (
        running_server(
            "--model", str(int8), "--device", "cpu", "--meter", "none", "--lazy-variants",
            "--max-model-memory", "40kB",
        ) as server,
        Client(server.address) as client,
    ):  # fmt: skip
        first = client.predict([IDS])
        assert first.variant == "int8"
        assert [variant.name for variant in client.server_info().variants] == ["int8"]
        client.unload_variant("int8")
        client.load_variant("int8")
        again = client.predict([IDS], variant="int8")
    here = served(int8)
    wanted = here.run(here.prepare([IDS]))
    np.testing.assert_array_equal(first.output, wanted)
    np.testing.assert_array_equal(again.output, wanted)
