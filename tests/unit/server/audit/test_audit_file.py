"""The audit file: good up to its last whole block whatever happens, and never taken for what it is not."""

from __future__ import annotations

import errno
import json
import logging
import os
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.audited import HEADER, AuditedDevice, recorder
from wattserve_server.audit import file as audit_file
from wattserve_server.audit import recorder as audit_recorder
from wattserve_server.audit.events import Ended, Heard
from wattserve_server.audit.file import BlockReader, BlockWriter
from wattserve_server.audit.recompute import recompute
from wattserve_server.audit.recorder import Recorder
from wattserve_server.energy.receipt import ACCELERATOR
from wattserve_server.errors import ConfigError


def in_blocks(path: Path) -> int:
    """A run of several blocks; how many bytes the last one takes."""
    device = AuditedDevice(path, declared_w=50.0)
    device.warm_up(trial_ms=50.0, pause_ms=200.0)
    for index in range(12):
        device.run("fp32", (1 + index % 3, 20))
        device.recorder.flush()
        device.rest(100.0)
        device.settle()
    device.run("fp32")
    device.recorder.flush()
    before = path.stat().st_size
    device.rest(2000.0)
    device.settle()
    device.recorder.flush()
    return path.stat().st_size - before


def test_a_file_that_is_cut_off_anywhere_is_good_up_to_its_last_block(tmp_path: Path) -> None:
    last = in_blocks(tmp_path / "run.audit")
    whole = (tmp_path / "run.audit").read_bytes()
    made = recompute(tmp_path / "run.audit")
    assert (made.is_proved, made.is_whole, made.cut_at) == (True, False, None)  # as after a kill -9
    begin = len(whole) - last
    for size in (begin + 1, begin + 7, begin + 8, begin + 9, len(whole) - 1):
        (tmp_path / "cut.audit").write_bytes(whole[:size])
        cut = recompute(tmp_path / "cut.audit")
        assert (cut.is_proved, cut.is_whole, cut.cut_at) == (True, False, begin)
        assert 0 < cut.receipts < made.receipts


def test_a_block_that_was_changed_is_refused_with_its_place(tmp_path: Path) -> None:
    last = in_blocks(tmp_path / "run.audit")
    whole = bytearray((tmp_path / "run.audit").read_bytes())
    whole[-last + 20] ^= 1
    (tmp_path / "run.audit").write_bytes(whole)
    place = f"the block at byte {len(whole) - last} is not what was written: its checksum is another"
    with pytest.raises(ConfigError, match=place):
        recompute(tmp_path / "run.audit")


def test_a_block_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BlockWriter(tmp_path / "run.audit")
    writer.begin(HEADER)
    writer.write(b"0" * (3 << 20))
    writer.close()
    monkeypatch.setattr(audit_file, "MOST_BYTES", 2 << 20)
    with pytest.raises(ConfigError, match="holds more than 2 MiB"):
        recompute(tmp_path / "run.audit")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no audit file; `wattserve audit record` makes them"),
        (b'{"format": "wattserve-meter-recording"}\n', "is no audit file"),
        (
            b"wattserve-audit 1\n",
            "is an audit file of version 1, and this Wattserve reads version 3; recompute it with",
        ),
        (b"wattserve-audit 3", "was cut off in its first line"),
        (b"wattserve-audit 3\n", "ends before its first block"),
        (b"wattserve-audit 3\n" + struct.pack("<II", 500, 0), "ends before its first block"),
    ],
)
def test_what_is_no_audit_file_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "odd.audit").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        BlockReader(tmp_path / "odd.audit")


@pytest.mark.parametrize("first", [b"{}", b"[]", b"\xff", b'{"instance_id": 1}'])
def test_a_first_block_without_a_run_is_refused(first: bytes, tmp_path: Path) -> None:
    writer = BlockWriter(tmp_path / "odd.audit")
    writer.write(first)
    writer.close()
    with pytest.raises(ConfigError, match="does not say which run it is of"):
        BlockReader(tmp_path / "odd.audit")


@pytest.mark.parametrize(
    "changed",
    [
        {"started_unix_ns": "now"},
        {"started_unix_ns": None},
        {"started_unix_ns": 10**30},
        {"started_unix_ns": True},
        {"started_ns": -1},
        {"settings": ["demo"]},
        {"made_on": None},
        {"made_on": ["here"]},
        {"made_on": {"python": 3}},
        {"instance_id": 7},
    ],
)
def test_a_header_of_other_kinds_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    writer = BlockWriter(tmp_path / "odd.audit")
    writer.write(json.dumps({**asdict(HEADER), **changed}).encode())
    writer.close()
    with pytest.raises(ConfigError, match="does not say which run it is of"):
        BlockReader(tmp_path / "odd.audit")


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is no regular file; give what `wattserve audit record` made"):
        recompute(tmp_path / "pipe")


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "run.audit").write_text("mine")
    with pytest.raises(ConfigError, match="is there already; choose another name or remove it"):
        Recorder(tmp_path / "run.audit")
    with pytest.raises(ConfigError, match="cannot be written"):
        Recorder(tmp_path / "nowhere" / "run.audit")
    with pytest.raises(ConfigError, match="cannot be read"):
        recompute(tmp_path / "nowhere")
    assert (tmp_path / "run.audit").read_text() == "mine"


def test_of_a_server_that_did_not_start_no_file_is_left(tmp_path: Path) -> None:
    Recorder(tmp_path / "run.audit").close()
    assert not (tmp_path / "run.audit").exists()
    begun = recorder(tmp_path / "run.audit")
    begun.discard()
    assert not (tmp_path / "run.audit").exists()
    begun.close()


class FullDisk:
    """Takes a part of what it is given, then nothing."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: memoryview) -> int:
        taken = min(len(data), self._room)
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= taken
        written: int = self._file.write(data[:taken])
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = AuditedDevice(tmp_path / "run.audit", declared_w=50.0)
    device.warm_up(trial_ms=50.0, pause_ms=200.0)
    device.run("fp32")
    device.rest(1000.0)
    device.settle()
    device.recorder.flush()
    size = (tmp_path / "run.audit").stat().st_size
    device.recorder._file._file = FullDisk(device.recorder._file._file, 30)  # type: ignore[assignment]
    device.run("fp32")
    device.rest(300.0)
    device.recorder.flush()
    assert not device.recorder.is_recording
    assert (tmp_path / "run.audit").stat().st_size == device.recorder.size == size
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert "THE AUDIT IS NO LONGER RECORDED" in line.getMessage()
    assert "No space left on device" in line.getMessage()
    device.rest(3000.0)
    device.settle()
    assert all(receipt.is_final for receipt in device.receipts)
    device.recorder._file._file = device.recorder._file._file._file  # type: ignore[attr-defined]
    device.recorder.close()
    made = recompute(tmp_path / "run.audit")
    assert (made.receipts, made.is_proved, made.is_whole) == (1, True, False)


def test_a_disk_that_hangs_does_not_fill_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_recorder, "MOST_WAITING", 10)
    keeper = recorder(tmp_path / "run.audit")
    for _ in range(11):
        keeper.put(Ended())
    assert not keeper.is_recording
    assert "the disk hangs: 10 events wait for it" in caplog.text
    keeper.close()


def test_a_bug_of_the_recorder_is_none_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = recorder(tmp_path / "run.audit")
    keeper.put(Heard(7, "observe", ()))
    keeper.flush()
    assert not keeper.is_recording
    assert "THE AUDIT IS NO LONGER RECORDED" in caplog.text
    keeper.close()


def test_its_thread_writes_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_recorder, "EVERY_S", 0.01)
    keeper = recorder(tmp_path / "run.audit")
    keeper.start()
    accountant = keeper.accountant_of("accelerator of cuda:0", ACCELERATOR, "simulated")(50.0)
    accountant.failed(5, "the GPU is lost")
    keeper.close()
    made = recompute(tmp_path / "run.audit")
    assert made.is_whole
    assert made.counters[0].accountant.ledger == accountant.ledger
