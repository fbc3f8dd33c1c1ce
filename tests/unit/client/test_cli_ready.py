"""`wattserve-client ready`, for scripts: its exit code, and why a server is not ready."""

from __future__ import annotations

import json
import time

import pytest

from tests.fixtures.fake_server.scripted import ScriptedServer
from wattserve_client import cli
from wattserve_client._cli import commands
from wattserve_client.testing import FakeServer
from wattserve_proto.v1 import inference_pb2 as pb

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


def variants(**states: pb.VariantState.ValueType) -> pb.ServerInfo:
    return pb.ServerInfo(
        variants=[
            pb.VariantInfo(
                name=name, state=state, state_reason="no memory" if state == pb.VARIANT_STATE_FAILED else ""
            )
            for name, state in states.items()
        ]
    )


READY, UNLOADED, FAILED = pb.VARIANT_STATE_READY, pb.VARIANT_STATE_UNLOADED, pb.VARIANT_STATE_FAILED
LOADING, CALIBRATING = pb.VARIANT_STATE_LOADING, pb.VARIANT_STATE_CALIBRATING


@pytest.mark.parametrize(
    ("flags", "seen", "code", "out", "error"),
    [
        ([], [variants(fp32=READY, int8=LOADING)], 0, " is ready\n", ""),
        (
            ["--wait", "60"],
            [
                variants(fp32=READY, int8=LOADING),
                variants(fp32=READY, int8=CALIBRATING),
                variants(fp32=READY, int8=READY),
            ],
            0,
            " is ready\n",
            "",
        ),
        (["--wait", "60"], [variants(fp32=READY, int8=UNLOADED)], 0, " is ready\n", ""),
        (
            ["--wait", "60"],
            [variants(fp32=READY, int8=LOADING), variants(fp32=READY, int8=FAILED)],
            0,
            " is ready; int8 has failed: no memory\n",
            "",
        ),
        (
            ["--wait", "60", "--variant", "bf16"],
            [variants(fp32=READY, bf16=CALIBRATING, int8=LOADING), variants(bf16=READY, int8=LOADING)],
            0,
            " is ready\n",
            "",
        ),
        (
            ["--wait", "60", "--variant", "int8"],
            [variants(fp32=READY, int8=LOADING), variants(fp32=READY, int8=FAILED)],
            1,
            "",
            ": not ready: int8 has failed: no memory\n",
        ),
        (["--variant", "int8"], [variants(int8=CALIBRATING)], 1, "", ": not ready: int8 is calibrating\n"),
        (["--variant", "int8"], [variants(int8=UNLOADED)], 1, "", ": not ready: int8 is unloaded\n"),
        (["--variant", "int9"], [variants(fp32=READY, int8=READY)], 1, "", "this server has fp32, int8\n"),
    ],
)
def test_it_waits_for_the_variants_that_are_coming(
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    seen: list[pb.ServerInfo],
    code: int,
    out: str,
    error: str,
) -> None:
    with ScriptedServer() as server:
        server.say_health(serving=True)
        server.script["GetServerInfo"] = [*seen]
        monkeypatch.setattr(commands, "pause", lambda seconds: None)
        assert cli.main(["--target", server.target, "ready", *flags]) == code
        assert len(server.calls["GetServerInfo"]) == (len(seen) if flags else 0)
    written = capsys.readouterr()
    assert written.out == (out and f"{server.target}{out}")
    assert written.err.endswith(error)
    assert bool(written.err) == bool(error)


def test_after_the_time_it_gives_up(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as server:
        server.say_health(serving=False)
        now = iter(range(0, 1000, 10))
        monkeypatch.setattr(time, "monotonic", lambda: next(now))
        monkeypatch.setattr(commands, "pause", lambda seconds: None)
        assert cli.main(["--target", server.target, "ready", "--wait", "25"]) == 1
    assert "not ready after 25 s: it is starting or shutting down" in capsys.readouterr().err
