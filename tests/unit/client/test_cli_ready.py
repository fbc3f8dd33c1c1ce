"""`wattserve-client ready`, for scripts: its exit code, and why a server is not ready."""

from __future__ import annotations

import json
import time

import pytest

from tests.fixtures.fake_server.scripted import ScriptedServer
from wattserve_client import cli
from wattserve_client._cli import commands
from wattserve_client.testing import FakeServer

Output = pytest.CaptureFixture[str]


def test_a_server_that_takes_requests_is_ready(capsys: Output) -> None:
    with FakeServer() as one, FakeServer() as other:
        assert cli.main(["--target", f"{one.target},{other.target}", "ready"]) == 0
    assert capsys.readouterr() == (f"{one.target} is ready\n{other.target} is ready\n", "")


def test_one_that_is_not_there_is_told_with_the_reason(capsys: Output) -> None:
    with FakeServer() as gone:
        target = gone.target
    assert cli.main(["--target", target, "ready", "--json"]) == 1
    out, error = capsys.readouterr()
    assert error.startswith(f"wattserve-client: {target}: not ready: no server took the call")
    assert json.loads(out)["ready"] is False


def test_it_waits_for_one_that_starts(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as server:
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            server.say_health(serving=len(pauses) == 3)

        monkeypatch.setattr(commands, "pause", pause)
        server.say_health(serving=False)
        arguments = ["--target", server.target, "ready"]
        assert cli.main(arguments) == 1
        assert "not ready: it is starting or shutting down" in capsys.readouterr().err
        assert (cli.main([*arguments, "--wait", "60"]), len(pauses)) == (0, 3)
    assert capsys.readouterr() == (f"{server.target} is ready\n", "")


def test_after_the_time_it_gives_up(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as server:
        server.say_health(serving=False)
        now = iter(range(0, 1000, 10))
        monkeypatch.setattr(time, "monotonic", lambda: next(now))
        monkeypatch.setattr(commands, "pause", lambda seconds: None)
        assert cli.main(["--target", server.target, "ready", "--wait", "25"]) == 1
    assert "not ready after 25 s: it is starting or shutting down" in capsys.readouterr().err
