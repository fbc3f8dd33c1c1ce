"""`wattserve meter verify`, as a user meets it; its phases are tested in virtual time, and whole by
`make test-verify`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.fixtures.children import Child
from tests.fixtures.server import WATTSERVE, environment
from wattserve_server.meters.recording import read_recording
from wattserve_tools.cli import main


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WATTSERVE_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--meter", "none"], "--meter none: there is nothing to verify"),
        (["--meter", "estimate", "--seconds", "0"], "--seconds: 0 must be more than 0"),
        (["--meter", "estimate", "--device", "cuda"], "device 'cuda' is not there"),
        (["--meter", "estimate", "--device", "cpu:0,cpu:1"], "on one device, not on cpu:0, cpu:1: name one"),
        (["--meter", "estimate", "--variants", "fp31"], "fp31"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["meter", "verify", "--out", str(tmp_path / "new"), *arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("wattserve: error: ")
    assert words in said


def test_a_folder_that_holds_something_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("kept")
    assert main(["meter", "verify", "--out", str(tmp_path), "--meter", "estimate"]) == 2
    assert f"--out {tmp_path}: is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_ctrl_c_leaves_what_was_measured_marked_as_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "found"
    words = (
        *WATTSERVE, "meter", "verify", "--out", str(folder), "--meter", "simulated", "--variants", "fp32",
        "--threads", "1", "--calibration-seconds", "0", "--no-verify",
    )  # fmt: skip
    with Child(words, stdout=PIPE, stderr=PIPE, env=environment()) as process:
        assert process.stderr is not None
        while "[1/6]" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert out == f"{folder / 'verify.md'}\n"
    assert "**INTERRUPTED.**" in (folder / "verify.md").read_text()
    found = json.loads((folder / "verify.json").read_text())
    assert (found["is_interrupted"], found["exit_code"], found["mixed"]) == (True, 130, None)
    assert found["source"]["name"] == "simulated"
    assert found["before_w"] == pytest.approx(40.0, rel=0.05)
    recording = read_recording(folder / "readings.jsonl")  # what --meter replay reads
    assert recording.lines[-1].energy is not None
    windows = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
    assert {window["variant"] for window in windows} == {"fp32"}
    assert all(0 <= window["start_ns"] <= window["end_ns"] <= recording.end_ns for window in windows)
