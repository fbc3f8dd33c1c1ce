"""A user's mistake at start-up: one line that says what to do, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    ViTConfig,
    ViTModel,
)

from tests.fixtures.children import Child
from tests.fixtures.models import save_bert_classifier, save_classifier, save_encoder
from tests.fixtures.server import WATTSERVE, environment
from wattserve_server.engine.checkpoint import skeleton
from wattserve_server.engine.model import load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.errors import ConfigError
from wattserve_tools.cli import main


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WATTSERVE_")]:
        monkeypatch.delenv(name)


@dataclass
class Shell:
    """Runs the command in this process: the same `main`, without a fresh import of torch each time."""

    capture: pytest.CaptureFixture[str]

    def refused(self, *arguments: str) -> str:
        """See `wattserve ARGUMENTS` refuse, and give its last line."""
        assert main(arguments) == 2
        written = self.capture.readouterr()
        assert "Traceback" not in written.err
        assert written.out == ""
        last = written.err.strip().splitlines()[-1]
        assert last.startswith("wattserve: error: ")
        return last

    def serve_refused(self, folder: Path | str, *arguments: str) -> str:
        return self.refused("serve", "--model", str(folder), "--port", "0", "--metrics-port", "0", *arguments)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "fp32,int3"], "unknown variant 'int3'; known: fp32, tf32, bf16, fp16, int8"),
        (["--variants", "fp32", "--default-variant", "bf16"], "--default-variant 'bf16' is not loaded: fp32"),
        (["--device", "cuda:9"], "device 'cuda:9' is not there"),
        (["--device", "cpu:0,cpu:0"], "--device 'cpu:0,cpu:0': cpu:0 is listed twice; name each device once"),
        (["--device", "cpu:0,cpu:1", "--threads", "9999999"], "--threads 9999999 on each of 2 lanes: this"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--task", "translation"], "unknown task 'translation'; known: sequence-classification"),
        (["--meter", "nvml"], "--meter nvml covers cuda only"),
        (["--dcgm-metrics", "--meter", "none"], "--dcgm-metrics tells what a GPU's board counted, and the"),
        (["--meter", "wattmeter"], "unknown meter 'wattmeter'; known: auto, nvml"),
        (["--meter", "rapl", "--powercap-root", "/nowhere"], "RAPL"),
        (["--threads", "10000000"], "--threads 10000000: this process may use"),
        (["--port", "many"], "--port 'many': must be a whole number"),
        (["--max-tokens", "65"], "takes at most 64 tokens"),
        (["--host", "192.0.2.1", "--insecure", "--metrics-port", "0"], "cannot listen on 192.0.2.1"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1 can be reached from other machines"),
        (["--tls-cert", "/nowhere/c", "--tls-key", "/nowhere/k"], "--tls-cert /nowhere/c: No such file"),
    ],
)
def test_a_wrong_option_is_one_line(shell: Shell, model: Path, arguments: list[str], words: str) -> None:
    ports = [] if "--port" in arguments else ["--port", "0"]
    metrics = [] if "--metrics-port" in arguments else ["--metrics-port", "0"]
    assert words in shell.refused("serve", "--model", str(model), *ports, *metrics, *arguments)


@pytest.mark.parametrize(
    ("flag", "words"),
    [("--port", "choose another --port"), ("--metrics-port", "choose another --metrics-port")],
)
def test_a_port_in_use_is_one_line(shell: Shell, model: Path, flag: str, words: str) -> None:
    other = "--metrics-port" if flag == "--port" else "--port"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = str(holder.getsockname()[1])
        assert words in shell.refused("serve", "--model", str(model), flag, taken, other, "0")


def test_a_folder_that_is_not_there_is_named(shell: Shell) -> None:
    assert "'/nowhere/model' does not exist" in shell.serve_refused("/nowhere/model")


def test_a_folder_without_a_model_is_named(shell: Shell, tmp_path: Path) -> None:
    assert "holds no config.json" in shell.serve_refused(tmp_path)


def test_a_config_that_is_not_json_is_named(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert "cannot load model" in shell.serve_refused(tmp_path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"n_layers": 1_001}, "its config.json has n_layers 1,001: a model of more than 1,000 layers is not"),
        ({"text_config": {"depths": [1, 1_000]}}, "has depths 1,001: a model of more than 1,000 layers is"),
        ({"dim": 10**9}, "its config.json gives some of its weights other sizes than they have"),
    ],
)
def test_a_config_of_absurd_sizes_is_named_before_anything_is_built(
    tmp_path: Path, said: dict[str, Any], words: str
) -> None:
    classify = task_named("sequence-classification")
    folder = save_classifier(tmp_path / "absurd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | said))
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_model(str(folder), classify)
    if "dim" not in said:  # which a model without numbers may have
        with pytest.raises(ConfigError, match=re.escape(words)):
            skeleton(str(folder), classify)


def test_a_truncated_safetensors_file_is_named(shell: Shell, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "broken")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "cannot load model" in shell.serve_refused(folder)


def test_pickled_weights_are_not_read_and_the_error_says_how_to_convert_them(
    shell: Shell, tmp_path: Path
) -> None:
    folder = save_classifier(tmp_path / "pickled")
    saved = AutoModelForSequenceClassification.from_pretrained(folder)
    torch.save(saved.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    line = shell.serve_refused(folder)
    assert (
        "holds its weights only as a pickle (pytorch_model.bin), which can run code when it is read" in line
    )
    convert = re.search(r'python -c "(.+)"', line)
    assert convert is not None
    exec(convert[1])
    model = load_model(str(folder), task_named("sequence-classification"))
    assert torch.equal(model.weights.module.state_dict()["classifier.weight"], saved.classifier.weight)


def test_a_checkpoint_without_a_classifier_is_not_made_up(shell: Shell, tmp_path: Path) -> None:
    line = shell.serve_refused(save_encoder(tmp_path / "encoder"))
    assert "has no weights for classifier" in line
    assert "--task feature-extraction" in line
    assert "it is not a sequence-classification checkpoint" in line


def test_weights_that_are_not_finite_are_counted_and_named(shell: Shell, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_bert_classifier(tmp_path / "nan")
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"] = torch.full_like(tensors["classifier.bias"], float("nan"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    line = shell.serve_refused(folder, "--variants", "fp32")
    assert "holds 2 weights that are NaN or infinite, in 1 tensors, e.g. 2 in classifier.bias" in line


def test_a_hub_model_without_a_network_says_what_there_is_instead(shell: Shell) -> None:
    line = shell.serve_refused("nobody/no-such-model")
    assert "model 'nobody/no-such-model': there is no such folder, the hub's local cache does not" in line
    assert "built-in models: demo, demo-llm, random:distilbert-base" in line


def test_a_model_that_takes_no_tokens_is_refused(shell: Shell, tmp_path: Path) -> None:
    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    ViTModel(config).save_pretrained(tmp_path)
    assert "does not take token ids" in shell.serve_refused(tmp_path, "--task", "feature-extraction")


def test_int8_of_a_model_without_linear_layers_is_refused(shell: Shell, tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=1, n_head=2, pad_token_id=0)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    assert "int8 would leave most of this model as it is" in shell.serve_refused(
        tmp_path, "--variants", "int8"
    )


def test_an_unknown_random_model_lists_the_known_ones(shell: Shell) -> None:
    assert "distilbert-base" in shell.serve_refused("random:nothing")


def test_a_model_that_needs_remote_code_is_not_run(shell: Shell, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "remote", with_tokenizer=False)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "custom", "auto_map": {
        "AutoConfig": "code.Config", "AutoModelForSequenceClassification": "code.Model",
    }}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('remote code ran')")
    line = shell.serve_refused(folder)
    assert "remote code ran" not in line
    assert "if you trust it, pass --trust-remote-code" in line


def test_the_table_of_variants_says_what_is_native_and_why(model: Path) -> None:
    words = (*WATTSERVE, "variants", "--model", str(model), "--device", "cpu")
    with Child(words, stdout=PIPE, stderr=PIPE, env=environment()) as table:
        said, complaints = table.communicate()
    assert table.returncode == 0, complaints
    for name in ("fp32", "bf16", "fp16", "int8"):
        assert name in said
    assert "every CPU" in said


def test_the_command_itself_exits_with_2() -> None:
    ports = ("--port", "0", "--metrics-port", "0")
    done = subprocess.run(
        [sys.executable, *WATTSERVE, "serve", *ports, "--model", "/nowhere/model"],
        capture_output=True, text=True, env=environment(), timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("wattserve: error: model folder '/nowhere/model'")
    assert "Traceback" not in done.stderr
