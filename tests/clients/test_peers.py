"""Clients of the protocol's other servers, mlserver and kserve, by their own stubs, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.server import RunningServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder() -> Path:
    named = os.environ.get("WATTSERVE_PEERS", "")
    if not named:
        pytest.skip(
            "WATTSERVE_PEERS names no folder with the peers' stubs (tests/clients/get_peers.sh fills one)"
        )
    return Path(named).resolve()


def what_it_sees(peer: str, folder: Path, server: RunningServer) -> dict[str, Any]:
    """What the peer's client got, from a process of its own: two peers' stubs cannot share one."""
    command = [sys.executable, "-m", "tests.clients.peer_calls", peer, str(folder), server.address]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def check_what_both_see(seen: dict[str, Any]) -> None:
    assert (seen["live"], seen["ready"]) == (True, True)
    assert seen["server"] == "wattserve"
    assert seen["inputs"] == [
        ["input_ids", "INT64", [-1, -1]],
        ["attention_mask", "INT64", [-1, -1]],
        ["text", "BYTES", [-1, 1]],
    ]
    assert seen["typed_and_raw_agree"] is True
    assert seen["shape"] == [1, 3]
    assert (seen["id"], seen["variant"], seen["tokens"]) == ("mine", "bf16", 4)
    assert seen["refused"] == ["NOT_FOUND", "model_name: unknown model 'other'"]


def test_mlservers_client_is_served(folder: Path, server: RunningServer) -> None:
    seen = what_it_sees("mlserver", folder, server)
    check_what_both_see(seen)
    states = {name: state for name, _, state in seen["index"]}
    assert states == {"demo": "READY", "demo@fp32": "READY", "demo@bf16": "READY"}
    assert seen["loaded"] is None  # the reply is empty, as Triton's


def test_kserves_client_is_served_and_can_load(folder: Path, server: RunningServer) -> None:
    """Its requests to load name the model in field 1, where Triton's name the repository."""
    seen = what_it_sees("kserve", folder, server)
    check_what_both_see(seen)
    assert seen["unloaded"] == ["demo@bf16", True, False]
    assert seen["loaded"] == ["demo@bf16", True, True]
