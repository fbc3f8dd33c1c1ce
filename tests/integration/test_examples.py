"""Every example in docs/examples runs, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SHOWN = {
    "predict.py": "(settled, apportioned from joules simulated",
    "predict_async.py": "'not bad at all':",
    "stream.py": "input 100: text.texts[0]: the text is empty\n100 sequences cost",
    "choose_variant.py": "bf16 products on cpu, verified",
    "settled_energy.py": "uJ over all accounts",
    "triton_client.py": "sequences by bf16",
    "reflection.sh": "inference.GRPCInferenceService/ModelStreamInfer",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    quick = ["--variants", "fp32,bf16", "--calibration-seconds", "0", "--threads", "1"]
    with running_server("--model", str(model), "--meter", "simulated", *quick) as running:
        yield running


def test_the_examples_are_those_that_are_tried_and_listed() -> None:
    there = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    assert there == set(SHOWN)
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in sorted(there) if f"({name})" not in listed] == []


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_runs_and_shows_what_it_promises(server: RunningServer, name: str) -> None:
    program = [sys.executable] if name.endswith(".py") else ["bash"]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # buf lies beside python
    ran = subprocess.run(
        [*program, str(EXAMPLES / name), server.address, "tiny"],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PATH": tools},
    )
    assert ran.returncode == 0, ran.stderr
    assert SHOWN[name] in ran.stdout


def test_the_fake_server_of_the_documentation_does_what_it_says() -> None:
    text = (EXAMPLES.parent / "clients.md").read_text()
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "FakeServer" in each]
    exec(compile(block, "docs/clients.md", "exec"), {})
