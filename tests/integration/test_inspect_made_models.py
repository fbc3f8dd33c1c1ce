"""`wattserve inspect`, `bench seed-table` and `variants` on models that come as one variant, without fp32."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.exports import exported
from tests.fixtures.inspection_data import make_dataset
from tests.fixtures.models import save_classifier, save_encoder
from tests.fixtures.quantised import save_torchao
from wattserve_server.engine.variants.variant import build_variant
from wattserve_tools.cli import main

ROWS = 24
ENCODE = "feature-extraction"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WATTSERVE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("made")
    source, encoder = save_classifier(folder / "tiny"), save_encoder(folder / "encoder")
    for kind in ("int8", "fp32", "int8-simulated"):
        exported(source, kind, folder / f"tiny-{kind}")
    exported(encoder, "int8", folder / "encoder-int8", ENCODE)
    return {
        "int8": str(folder / "tiny-int8"),
        "fp32": str(folder / "tiny-fp32"),
        "proxy": str(folder / "tiny-int8-simulated"),
        "encoder": str(folder / "encoder-int8"),
        "dataset": str(make_dataset(folder / "dataset", ROWS, seed=1)),
        "calibration": str(make_dataset(folder / "calibration", 512, seed=2)),
    }


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--device", "cpu"]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return dict(json.loads(shown(capsys, *arguments, "--json", "-")))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--device", "cpu"]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    return next(line for line in written.err.splitlines() if line.startswith("wattserve: error: "))


def test_an_exports_kernels_are_those_of_what_it_is(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(capsys, "inspect", "kernels", "--model", places["int8"])
    assert [(each["variant"], each["verified"]) for each in found["variants"]] == [("int8", True)]


def test_the_memory_of_an_export_is_compared_with_no_fp32_and_says_so(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(capsys, "inspect", "memory", "--model", places["int8"])
    (int8,) = found["variants"]
    assert int8["tensor_bytes"] == int8["theoretical_bytes"] > 0
    assert int8["reduction_against_fp32"] is None
    assert found["source_tensor_bytes"] is None
    assert found["reference_reason"] == "tiny-int8 comes as int8 only: there is no fp32 to hold it against"
    assert not any("holds the fp32 source" in note for note in found["notes"])
    assert str(Path(places["int8"]).parent) not in json.dumps(found)


def test_the_accuracy_of_an_export_comes_without_agreement_and_says_why(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    data = ["--dataset", places["dataset"]]
    found = as_json(capsys, "inspect", "accuracy", "--model", places["int8"], *data)
    (int8,) = found["variants"]
    assert int8["accuracy"]["of"] == ROWS
    assert not {"agreement", "mcnemar", "max_abs_error"} & set(int8)
    assert "No agreement with fp32" in shown(capsys, "inspect", "accuracy", "--model", places["int8"], *data)


def test_an_export_of_fp32_is_its_own_reference(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(capsys, "inspect", "memory", "--model", places["fp32"])
    assert [each["reduction_against_fp32"] for each in found["variants"]] == [1.0]
    assert "nothing but fp32" in refused(capsys, "inspect", "layers", "--model", places["fp32"])


def test_the_layers_of_an_export_are_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    words = refused(capsys, "inspect", "layers", "--model", places["int8"], "--rows", "2")
    assert "tiny-int8 comes as int8 only: there is no fp32 to hold it against" in words


def test_embeddings_without_fp32_have_nothing_to_tell_and_are_refused(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    words = refused(
        capsys, "inspect", "accuracy", "--model", places["encoder"], "--task", ENCODE,
        "--dataset", places["dataset"],
    )  # fmt: skip
    assert "there is no fp32 to hold it against, and no accuracy" in words


@pytest.mark.parametrize("command", [["inspect", "memory"], ["inspect", "kernels"], ["inspect", "layers"]])
def test_a_precision_that_an_export_does_not_hold_is_refused(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], command: list[str]
) -> None:
    words = refused(capsys, *command, "--model", places["int8"], "--variants", "bf16")
    assert "variant 'bf16': model " in words
    assert "holds only int8, exported from tiny" in words


def test_an_export_is_not_calibrated_again(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    arguments = ["inspect", "memory", "--model", places["int8"], "--calibration", places["calibration"]]
    assert "which is not calibrated again" in refused(capsys, *arguments)


def test_the_seed_table_of_an_export_has_a_row_without_ratios(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], tmp_path: Path
) -> None:
    out = shown(
        capsys, "bench", "seed-table", "--model", places["int8"], "--dataset", places["dataset"],
        "--warmup", "2", "--iterations", "15", "--meter", "estimate", "--out", str(tmp_path),
    )  # fmt: skip
    assert "no ratio: tiny-int8 comes as int8 only: there is no fp32 to hold it against" in out
    assert "fp32 was refused" not in out
    found = json.loads((tmp_path / "seed-table.json").read_text())
    (row,) = found["rows"]
    assert (row["variant"], row["speed_up"], row["energy_ratio"]) == ("int8", None, None)
    assert row["latency_p50_ms"] > 0
    assert found["fp32_against_itself"] == {}


def test_a_proxy_that_was_exported_is_marked_in_every_table(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    for command in ("memory", "kernels"):
        assert "int8-simulated (PROXY)" in shown(capsys, "inspect", command, "--model", places["proxy"])


def test_the_listing_of_an_export_has_its_kind_and_says_why_there_is_no_other(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    out = shown(capsys, "variants", "--model", places["int8"])
    rows = [line.strip("│").split("│")[0].strip() for line in out.splitlines() if line.startswith("│")]
    assert [name for name in rows if name] == ["int8"]
    assert "No other precision: model " in out
    assert "holds only int8, exported from tiny, and nothing else can be made from it" in out


def test_a_checkpoint_of_another_library_is_inspected_as_what_it_is(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], tmp_path: Path
) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    folder = save_torchao(tmp_path / "torchao", quantization.Int8DynamicActivationInt8WeightConfig())
    for command in ("kernels", "memory"):
        found = as_json(capsys, "inspect", command, "--model", str(folder))
        assert [each["variant"] for each in found["variants"]] == ["torchao-int8"]
    words = refused(capsys, "inspect", "layers", "--model", str(folder))
    assert "comes as torchao-int8 only: there is no fp32" in words
    assert "torchao-int8" in shown(capsys, "variants", "--model", str(folder))


@pytest.mark.parametrize("command", ["memory", "kernels"])
def test_nothing_that_could_be_made_is_an_error_and_no_empty_table(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    from wattserve_tools.inspect import subject

    def fail(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(subject, "build_variant", fail)
    words = refused(capsys, "inspect", command, "--model", str(save_classifier(tmp_path / "tiny")))
    assert "no variant of tiny could be made: fp32, " in words


def test_without_an_fp32_that_could_be_made_the_others_still_have_their_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wattserve_tools.inspect import subject

    def fail(model: Any, choice: Any, materials: Any) -> Any:
        if choice.kind.name == "fp32":
            raise RuntimeError("out of memory")
        return build_variant(model, choice, materials)

    monkeypatch.setattr(subject, "build_variant", fail)
    found = as_json(capsys, "inspect", "memory", "--model", str(save_classifier(tmp_path / "tiny")))
    assert found["variants"]
    assert {each["reduction_against_fp32"] for each in found["variants"]} == {None}
