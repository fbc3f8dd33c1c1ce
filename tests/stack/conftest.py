"""Where `make test-stack` put what these tests run, and a Prometheus that watches two loaded servers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.models import save_classifier
from tests.fixtures.server import running_server
from tests.fixtures.simulated_board import PROGRAM, SimulatedBoards
from tests.stack.load import Load
from tests.stack.prometheus import Prometheus, Stack, committed_config

FOLDER = "WATTSERVE_STACK"
SCRAPES = 25
"""Under load, before anything is asked: `dashboards.REPLACED` looks back for less."""

WHY = f"make test-stack fetches it; otherwise name the folder that get_stack.sh made by {FOLDER}"


def stack_folder() -> Path | None:
    named = os.environ.get(FOLDER)
    return Path(named).resolve() if named else None


def _tool(name: str) -> str:
    folder = stack_folder()
    found = shutil.which(name, path=str(folder / "bin")) if folder else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here: {WHY}")
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    return _tool("promtool")


@pytest.fixture(scope="session")
def schema() -> Path:
    """The folder with Grafana's types and a compiler."""
    folder = stack_folder()
    if folder is None:
        pytest.skip(f"no schema of Grafana's here: {WHY}")
    return folder / "schema"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Prometheus, a loaded server with a simulated meter, and one beside it on a simulated GPU board.

    The second is not there without a C compiler, and what only it has is skipped.
    """
    program = _tool("prometheus")
    folder = tmp_path_factory.mktemp("stack")
    model = save_classifier(folder / "demo")
    common = ("--model", str(model), "--device", "cpu", "--threads", "1", "--calibration-seconds", "0.5")
    boards = SimulatedBoards(folder) if shutil.which("cc") else None
    with running_server(*common, "--variants", "fp32,bf16", "--meter", "simulated") as server:
        if boards is None:
            yield from _watched(program, folder, Stack(server, None))
        else:
            arguments = (*common, "--variants", "fp32", "--meter", "nvml")
            with running_server(*arguments, program=PROGRAM, extra=boards.environment()) as gpu:
                yield from _watched(program, folder, Stack(server, gpu))


def _watched(program: str, folder: Path, made: Stack) -> Iterator[Stack]:
    targets = [made.target, *([made.gpu_target] if made.gpu else [])]
    with (
        Prometheus(program, folder / "prometheus", committed_config(targets)) as made.prometheus,
        Load([made.server.address, *([made.gpu.address] if made.gpu else [])]),
    ):
        made.prometheus.wait_for_scrapes(SCRAPES)
        yield made
