"""For the client's tests: a scripted server, and each client in turn talking to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import ScriptedServer
from wattserve_client import _channel


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture(params=BOTH, ids=["sync", "async"])
def client(request: Any, server: ScriptedServer) -> Iterator[Any]:
    with request.param(server.target) as client:
        yield client


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between tries, which are as many as ever. grpc never wakes from a pause that rounds down to 0 ms."""
    monkeypatch.setattr(_channel, "_FIRST_PAUSE_S", 0.01)
    for config in _channel._RETRIES:
        policy: Any = config["retryPolicy"]
        monkeypatch.setitem(policy, "initialBackoff", "0.01s")
