"""`wattserve meter probe` and `wattserve meter record`, as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.fixtures.children import Child
from tests.fixtures.server import WATTSERVE, environment
from wattserve_common.words import counted
from wattserve_tools.cli import main


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WATTSERVE_")]:
        monkeypatch.delenv(name)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["meter", *arguments]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    lines = written.err.strip().splitlines()
    assert "Traceback" not in written.err
    assert lines[-1].startswith("wattserve: error: ")
    return lines[-1]


def test_a_probe_is_told_to_people_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["meter", "probe", "--meter", "estimate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("joules are ESTIMATED from CPU time: only the CPU time of this process")
    assert "  updates           not seen as steps" in lines
    assert "  declared idle     5 W" in lines
    assert "  the server reads  every 100 ms" in lines


def test_a_probe_is_told_to_programs_as_json_with_null_for_what_is_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["meter", "probe", "--meter", "none", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"]["quality"] == "none"
    assert found["probe"]["update_period_s"] is None
    assert found["probe"]["unsupported"]["reading"] == "no meter was asked for (--meter none)"
    assert (found["poll_period_s"], found["parts"], found["idle_watts"]) == (0.05, [], None)


def test_the_parts_of_a_sum_are_shown_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["meter", "probe", "--meter", "simulated+estimate", "--json", "--seconds", "0.25"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"]["name"] == "simulated+estimate"
    assert [part["source"]["name"] for part in found["parts"]] == ["simulated", "estimate"]
    assert [part["probe"]["reads"] > 0 for part in found["parts"]] == [True, True]


def test_a_recording_is_made_and_played_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "recorded.jsonl")
    assert main(["meter", "record", file, "--meter", "estimate", "--seconds", "0.2"]) == 0
    assert "readings" in capsys.readouterr().out
    assert main(["meter", "probe", "--meter", "replay", "--replay-file", file]) == 0
    out = capsys.readouterr().out
    assert out.startswith("joules are SIMULATED by replay of estimate: what was recorded, not this server's")
    assert "estimated then" in out


def test_ctrl_c_ends_a_recording_properly(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    words = (*WATTSERVE, "meter", "record", str(file), "--meter", "estimate")
    with Child(words, stdout=PIPE, stderr=PIPE, env=environment()) as process:
        assert process.stderr is not None
        while "Ctrl-C ends it" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    lines = file.read_text().splitlines()
    assert json.loads(lines[-1])["lines"] == len(lines) - 2
    assert out == f"{file}: {counted(len(lines) - 2, 'reading')}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["probe", "--meter", "wattmeter"], "unknown meter 'wattmeter'; known: auto, nvml, rapl"),
        (["probe", "--meter", "rapl", "--powercap-root", "/nowhere"], "RAPL: /nowhere has no intel-rapl"),
        (["probe", "--meter", "rapl", "--device", "cuda"], "device 'cuda' is not there"),
        (
            ["probe", "--meter", "rapl+estimate"],
            "--meter rapl+estimate: estimate and rapl cannot be added up",
        ),
        (["probe", "--meter", "replay"], "--meter replay needs --replay-file FILE"),
        (["probe", "--replay-file", "x"], "--replay-file x: is for --meter replay, not auto"),
        (["probe", "--meter", "replay", "--replay-file", "/nowhere/r"], "/nowhere/r: cannot be read"),
        (["probe", "--meter", "none", "--seconds", "0"], "--seconds: 0 must be more than 0"),
        (["probe", "--meter", "none", "--seconds", "soon"], "--seconds: 'soon' is not a number"),
        (["record", "/nowhere/file", "--meter", "simulated"], "/nowhere/file: cannot be written"),
        (["record", "file", "--meter", "none"], "--meter none: there is nothing to record"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert words in refused(capsys, *arguments)


def test_a_recording_that_may_not_grow_ends_in_one_line(tmp_path: Path) -> None:
    """What waits in its buffer is written when it is closed, and fails once more."""
    path = tmp_path / "r.jsonl"
    record = (sys.executable, *WATTSERVE, "meter", "record", str(path), "--meter", "simulated")
    command = ("bash", "-c", 'ulimit -f 1 && exec "$@"', "record", *record, "--seconds", "60")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{path}: cannot be written (File too large); what is there is no whole recording" in done.stderr
    assert "Traceback" not in done.stderr
