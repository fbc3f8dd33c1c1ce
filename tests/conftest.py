"""What every test runs under: what `wattserve` sets for libraries, no network for the hub, no progress bars,
no terminal's width, a CPU that multiplies bf16 and int8, if need be by emulation, and Ctrl-C.
"""

import gc
import os
import signal
from pathlib import Path

import hypothesis
import pytest

import wattserve_tools  # noqa: F401  before libraries are loaded that read what it sets
from tests.fixtures.bf16_cpu import sitecustomize
from tests.fixtures.children import share_zygote

gc.disable()  # until everything is imported and collected

# A shell ignores Ctrl-C for what it starts in the background, and so would every process of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers
# Hypothesis would fail an example that takes 200 ms: on a busy machine each may.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

if sitecustomize.is_needed():
    path = [str(Path(sitecustomize.__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(path)))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        share_zygote()


def pytest_collection_finish() -> None:
    """What is imported and collected stays: no test pays for another look at it for garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str | None:
    if sitecustomize.is_needed():
        return "this CPU has no AVX512-BF16: bf16, and int8 without VNNI, are emulated"
    return None
