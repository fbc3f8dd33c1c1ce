"""What every test runs under: no network for the hub, no progress bars, no terminal's width, and a CPU that
multiplies bf16, if need be by emulation."""

import os
from pathlib import Path

import hypothesis
import pytest

from tests.fixtures.bf16_cpu import sitecustomize

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers
# Hypothesis would fail an example that takes 200 ms: on a busy machine each may.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

if sitecustomize.is_needed():
    path = [str(Path(sitecustomize.__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(path)))


def pytest_report_header(config: pytest.Config) -> str | None:
    if sitecustomize.is_needed():
        return "this CPU has no AVX512-BF16: the tests' servers emulate bf16"
    return None
