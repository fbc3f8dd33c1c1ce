"""One server for the clients that run outside this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """It serves `demo`, a tiny classifier, as fp32 and bf16."""
    folder = save_classifier(tmp_path_factory.mktemp("models") / "demo")
    with running_server(
        *("--model", str(folder), "--variants", "fp32,bf16"),
        *("--meter", "none", "--threads", "1"),
    ) as running:
        yield running
