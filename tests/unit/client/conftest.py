"""For the client's tests: a scripted server, and each client in turn talking to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture(params=BOTH, ids=["sync", "async"])
def client(request: Any, server: ScriptedServer) -> Iterator[Any]:
    with request.param(server.target) as client:
        yield client
