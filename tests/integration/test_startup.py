"""A user's mistake at start-up: one line that says what to do, exit code 2, no traceback."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from tests.fixtures.models import save_bert_classifier, save_classifier, save_encoder
from tests.fixtures.server import command, environment


def refused(*arguments: str) -> str:
    """Run `wattserve ARGUMENTS`, see it refuse, and give its last line."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("wattserve: error: ")
    return last


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "fp32,int3"], "unknown variant 'int3'; known: fp32, bf16, fp16, int8"),
        (["--variants", "fp32", "--default-variant", "bf16"], "--default-variant 'bf16' is not loaded: fp32"),
        (["--device", "cuda:9"], "device 'cuda:9' is not there"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--task", "translation"], "unknown task 'translation'; known: sequence-classification"),
        (["--meter", "nvml"], "--meter nvml covers cuda only"),
        (["--meter", "wattmeter"], "unknown meter 'wattmeter'; known: auto, nvml"),
        (["--meter", "rapl", "--powercap-root", "/nowhere"], "RAPL"),
        (["--port", "many"], "--port 'many': must be a whole number"),
        (["--max-tokens", "65"], "takes at most 64 tokens"),
        (["--host", "192.0.2.1", "--metrics-port", "0"], "cannot listen on 192.0.2.1"),
    ],
)
def test_a_wrong_option_is_one_line(model: Path, arguments: list[str], words: str) -> None:
    ports = [] if "--port" in arguments else ["--port", "0"]
    metrics = [] if "--metrics-port" in arguments else ["--metrics-port", "0"]
    assert words in refused("serve", "--model", str(model), *ports, *metrics, *arguments)


@pytest.mark.parametrize(
    ("flag", "words"),
    [("--port", "choose another --port"), ("--metrics-port", "choose another --metrics-port")],
)
def test_a_port_in_use_is_one_line(model: Path, flag: str, words: str) -> None:
    other = "--metrics-port" if flag == "--port" else "--port"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = str(holder.getsockname()[1])
        assert words in refused("serve", "--model", str(model), flag, taken, other, "0")


def serve_refused(folder: Path | str, *arguments: str) -> str:
    return refused("serve", "--model", str(folder), "--port", "0", "--metrics-port", "0", *arguments)


def test_a_folder_that_is_not_there_is_named() -> None:
    assert "'/nowhere/model' does not exist" in serve_refused("/nowhere/model")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    assert "holds no config.json" in serve_refused(tmp_path)


def test_a_config_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert "cannot load model" in serve_refused(tmp_path)


def test_a_truncated_safetensors_file_is_named(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "broken")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "cannot load model" in serve_refused(folder)


def test_a_checkpoint_without_a_classifier_is_refused_rather_than_made_up(tmp_path: Path) -> None:
    line = serve_refused(save_encoder(tmp_path / "encoder"))
    assert "has no weights for classifier" in line
    assert "it is not a sequence-classification checkpoint" in line


def test_weights_that_are_not_finite_fail_the_warm_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_bert_classifier(tmp_path / "nan")
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"] = torch.full_like(tensors["classifier.bias"], float("nan"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "variant 'fp32' answered with NaN or infinity" in serve_refused(folder, "--variants", "fp32")


def test_a_hub_model_without_a_network_says_what_there_is_instead() -> None:
    line = serve_refused("nobody/no-such-model")
    assert "cannot load model 'nobody/no-such-model'" in line
    assert "built-in models: demo, random:distilbert-base" in line


def test_an_unknown_random_model_lists_the_known_ones() -> None:
    assert "distilbert-base" in serve_refused("random:nothing")


def test_a_model_that_needs_remote_code_is_not_run(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "remote", with_tokenizer=False)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "custom", "auto_map": {
        "AutoConfig": "code.Config", "AutoModelForSequenceClassification": "code.Model",
    }}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('remote code ran')")
    line = serve_refused(folder)
    assert "remote code ran" not in line
    assert "trust" in line.lower()


def test_the_table_of_variants_says_what_is_native_and_why(model: Path) -> None:
    done = subprocess.run(
        command("variants", "--model", str(model), "--device", "cpu"),
        capture_output=True, text=True, env=environment(), timeout=120, check=True,
    )  # fmt: skip
    for name in ("fp32", "bf16", "fp16", "int8"):
        assert name in done.stdout
    assert "every CPU" in done.stdout
