"""The status page in a real browser. It has no scripts (a unit test says so), so what is drawn needs none."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    quick = [
        "--variants",
        "fp32,bf16",
        "--meter",
        "simulated",
        "--calibration-seconds",
        "0",
        "--threads",
        "1",
    ]
    with running_server("--model", str(model), *quick) as running:
        with Client(running.address) as client:
            client.predict(["good", "bad"], variant="bf16", wait_for_settled_energy=True)
        yield running


def browse(*arguments: str) -> str:
    assert CHROMIUM is not None
    ran = subprocess.run(
        [CHROMIUM, *QUIET, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return ran.stdout


def test_the_page_is_whole(server: RunningServer) -> None:
    dom = browse("--dump-dom", server.metrics_url.removesuffix("metrics"))
    assert 'id="variants"' in dom
    assert "bf16 products on cpu" in dom
    assert "all together" in dom
