"""`wattserve inspect ...` and `wattserve bench seed-table`, as a user meets them, on the tiny classifier."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.inspection_data import make_dataset
from tests.fixtures.models import save_classifier, save_encoder
from wattserve_tools.cli import main

ROWS = 24


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WATTSERVE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("inspect")
    labels = [index % 3 for index in range(ROWS - 2)] + [-1, -1]
    return {
        "model": str(save_classifier(folder / "model")),
        "encoder": str(save_encoder(folder / "encoder")),
        "dataset": str(make_dataset(folder / "dataset", ROWS, seed=1, labels=labels)),
        "calibration": str(make_dataset(folder / "calibration", 512, seed=2)),
    }


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found = json.loads(shown(capsys, *arguments, "--json", "-"))
    assert found["schema_version"] == 1
    assert {"date", "seed", "versions", "hardware", "torch_threads"} <= set(found["environment"])
    return dict(found)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert "Traceback" not in written.err
    lines = [line for line in written.err.splitlines() if line.startswith("wattserve: error: ")]
    assert len(lines) == 1
    return lines[0]


def test_layers_are_sorted_worst_first_over_a_datasets_rows(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(
        capsys, "inspect", "layers", "--model", places["model"], "--dataset", places["dataset"],
        "--rows", "8", "--variants", "int8,bf16",
    )  # fmt: skip
    assert found["schema"] == "wattserve.inspect.layers"
    assert (found["data"]["rows"], found["data"]["made_up"]) == (8, False)
    assert [each["variant"] for each in found["variants"]] == ["int8", "bf16"]
    for each in found["variants"]:
        errors = [layer["relative_error"] for layer in each["layers"]]
        assert errors == sorted(errors, reverse=True)
        assert {"layer", "type", "mse", "cosine", "max_abs_error", "values"} <= set(each["layers"][0])


def test_made_up_examples_are_said_to_be_made_up(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    out = shown(capsys, "inspect", "layers", "--model", places["model"], "--rows", "4", "--variants", "int8")
    assert "int8 against fp32 on cpu" in out
    assert "4 made-up examples" in out


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_figure_is_drawn_into_the_file(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"layers.{suffix}"
    shown(
        capsys, "inspect", "layers", "--model", places["model"], "--rows", "4", "--variants", "int8",
        "--figure", str(file),
    )  # fmt: skip
    assert file.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_without_matplotlib_a_figure_is_refused_naming_the_extra(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    words = refused(capsys, "inspect", "layers", "--model", places["model"], "--figure", "x.png")
    assert "pip install '.[loadgen]'" in words


def test_outliers_are_counted_for_each_linear_layer(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    arguments = [
        "inspect",
        "outliers",
        "--model",
        places["model"],
        "--dataset",
        places["dataset"],
        "--rows",
        "9",
    ]
    low = as_json(capsys, *arguments, "--threshold", "0.5")
    high = as_json(capsys, *arguments, "--threshold", "1000")
    assert low["outlier_features"] > 0 == high["outlier_features"]
    assert len(low["layers"]) == 14
    assert "largest magnitude" in shown(capsys, *arguments)


def test_memory_gives_theory_and_measurement_side_by_side(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(capsys, "inspect", "memory", "--model", places["model"], "--variants", "int8,fp16")
    fp32, int8, fp16 = found["variants"]
    assert fp32["theoretical_bytes"] == fp32["tensor_bytes"]
    assert int8["theoretical_bytes"] == int8["tensor_bytes"]
    assert fp16["reduction_against_fp32"] == 2.0


def test_accuracy_leaves_unlabelled_rows_to_agreement(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(
        capsys, "inspect", "accuracy", "--model", places["model"], "--dataset", places["dataset"],
        "--variants", "int8",
    )  # fmt: skip
    fp32, int8 = found["variants"]
    assert found["data"]["rows_without_label"] == 2
    assert fp32["accuracy"]["of"] == ROWS - 2
    assert int8["agreement"]["of"] == ROWS
    assert 0 < int8["rms_error"] <= int8["max_abs_error"]
    assert set(int8["mcnemar"]) == {"fp32_right_variant_wrong", "fp32_wrong_variant_right", "p"}


def test_static_quantisation_is_calibrated_on_rows_that_are_not_evaluated(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(
        capsys, "inspect", "accuracy", "--model", places["model"], "--dataset", places["dataset"],
        "--variants", "int8-static", "--calibration", places["calibration"],
    )  # fmt: skip
    assert "512 rows of calibration" in found["calibration"]["origin"]
    assert found["variants"][1]["agreement"]["share"] > 0.5


def test_evaluating_on_the_calibration_data_is_refused(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    words = refused(
        capsys, "inspect", "accuracy", "--model", places["model"], "--dataset", places["calibration"],
        "--variants", "int8-static", "--calibration", places["calibration"],
    )  # fmt: skip
    assert "512 of the 512 rows" in words


def test_embeddings_have_cosines_and_no_accuracy(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(
        capsys, "inspect", "accuracy", "--model", places["encoder"], "--task", "feature-extraction",
        "--dataset", places["dataset"], "--variants", "int8",
    )  # fmt: skip
    int8 = found["variants"][1]
    assert int8["accuracy"] is None
    assert 0.99 < int8["cosine_min"] <= int8["cosine_mean"] <= 1.0000001


def test_a_precision_that_is_emulated_here_is_marked_in_accuracy_and_refused_where_speed_counts(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from wattserve_server.engine.variants.catalogue import KINDS
    from wattserve_server.engine.variants.port import Support

    lacking = replace(KINDS["fp16"], support=lambda device: Support(False, "no such unit here"))
    monkeypatch.setitem(KINDS, "fp16", lacking)
    model = ["--model", places["model"], "--variants", "fp16"]
    data = ["--dataset", places["dataset"]]
    assert "fp16 (emulated)" in shown(capsys, "inspect", "accuracy", *model, *data)
    assert "no such unit here" in refused(capsys, "bench", "seed-table", *model, *data)
    assert "no such unit here" in refused(capsys, "inspect", "kernels", *model)


def test_kernels_name_what_each_variant_multiplies(
    capsys: pytest.CaptureFixture[str], places: dict[str, str]
) -> None:
    found = as_json(capsys, "inspect", "kernels", "--model", places["model"], "--variants", "int8")
    assert [each["variant"] for each in found["variants"]] == ["int8"]


def test_a_seed_table_has_a_row_for_each_variant_on_standard_output_and_in_both_files(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], tmp_path: Path
) -> None:
    out = shown(
        capsys, "bench", "seed-table", "--model", places["model"], "--dataset", places["dataset"],
        "--variants", "int8", "--warmup", "2", "--iterations", "15", "--meter", "estimate",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert "**ESTIMATED** from CPU time" in out
    assert (tmp_path / "out" / "seed-table.md").read_text() == out
    found = json.loads((tmp_path / "out" / "seed-table.json").read_text())
    assert [row["variant"] for row in found["rows"]] == ["fp32", "int8"]
    assert found["data"]["sha256"] in json.dumps(found)
    for row in found["rows"]:
        assert row["verified"] is True
        assert row["timed_runs"] == 15
        assert row["warmup_runs"] >= 2
        assert row["energy_quality"] == "estimated"
        assert 0 < row["energy_active_mj"] < row["energy_total_mj"]
        assert row["latency_p95_ms"] is None
    assert found["rows"][1]["speed_up"]["ratio"] > 0
    assert set(found["fp32_against_itself"]["cpu"]) == {"speed_up", "energy_ratio"}


def test_a_variant_that_is_not_what_it_says_has_a_footnote_and_no_number(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from wattserve_server.engine.variants.verification import Verification
    from wattserve_server.errors import ConfigError
    from wattserve_tools.inspect import seed_table

    def verify(variant: Any) -> Verification:
        if variant.name == "int8":
            raise ConfigError("it ran in fp32: refused; --no-verify serves it anyway")
        return Verification(True, "seen")

    monkeypatch.setattr(seed_table, "verify", verify)
    out = shown(
        capsys, "bench", "seed-table", "--model", places["model"], "--dataset", places["dataset"],
        "--variants", "int8", "--warmup", "0", "--iterations", "11", "--meter", "none",
    )  # fmt: skip
    assert "int8 was refused, so it has no figures: it ran in fp32: refused\n" in out
    assert "**unknown**: no meter was asked for" in out


def test_without_a_verified_fp32_there_are_no_ratios(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from wattserve_server.engine.variants.verification import Verification
    from wattserve_server.errors import ConfigError
    from wattserve_tools.inspect import seed_table

    def verify(variant: Any) -> Verification:
        if variant.name == "fp32":
            raise ConfigError("it ran in tf32")
        return Verification(True, "seen")

    monkeypatch.setattr(seed_table, "verify", verify)
    out = shown(
        capsys, "bench", "seed-table", "--model", places["model"], "--dataset", places["dataset"],
        "--variants", "int8", "--warmup", "0", "--iterations", "11", "--meter", "estimate",
    )  # fmt: skip
    assert "no ratio: fp32 was refused" in out
    assert "fp32 against itself" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "layers", "--rows", "0"], "--rows '0': must be a whole number, 1 or more"),
        (["inspect", "layers", "--seed", "x"], "--seed 'x': must be a whole number"),
        (["inspect", "layers", "--figure", "x.pdf"], "must end in .png or .svg"),
        (["inspect", "layers", "--json", "no/such/folder/x.json"], "its folder does not exist"),
        (["inspect", "layers", "--variants", "int4"], "unknown variant 'int4'"),
        (["inspect", "layers", "--variants", "int8,int8"], "listed twice"),
        (["inspect", "layers", "--variants", "tf32@cpu"], "cannot run on cpu"),
        (["inspect", "layers", "--dataset", "no/such"], "no such dataset folder"),
        (["inspect", "outliers", "--threshold", "-1"], "--threshold: -1 must be more than 0"),
        (["inspect", "accuracy", "--dataset", "no/such"], "no such dataset folder"),
        (["bench", "seed-table", "--dataset", "no/such"], "no such dataset folder"),
        (["bench", "seed-table", "--dataset", "x", "--iterations", "0"], "--iterations '0'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], arguments: list[str], words: str
) -> None:
    assert words in refused(capsys, *arguments, "--model", places["model"])


def test_the_flags_are_known_without_torch() -> None:
    """The parsers are built for every command, `wattserve meter` too."""
    program = "import sys, wattserve_tools.cli as cli; cli._parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
