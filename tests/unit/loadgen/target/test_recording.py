"""A meter's recording, read while it is written: instants, wrap-arounds, failures, half a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wattserve_client import EnergyQuality
from wattserve_loadgen.target.recording import RecordingReader

MS = 1_000_000


def header(**replaced: Any) -> dict[str, Any]:
    source = {
        "name": "nvml:GPU-5", "method": "apportioned counter", "quality": "measured", "note": "counted",
        "boundary": "GPU board", "counts_server": False,
    }  # fmt: skip
    plain = {
        "format": "wattserve-meter-recording", "version": 1, "source": source, "wraps_at_uj": None,
        "idle_watts": None, "poll_period_s": 0.01, "started": "2026-11-20T12:00:00+00:00", "host": {},
        "origin_monotonic_ns": 5_000_000_000,
    }  # fmt: skip
    return plain | replaced


def reading(at_ms: int, uj: int) -> dict[str, Any]:
    return {"at_ns": at_ms * MS, "energy_uj": uj}


def written(path: Path, *lines: dict[str, Any], cut: str = "") -> RecordingReader:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    reader = RecordingReader(path, clock_offset_ns=0)
    reader.read_on()
    return reader


def test_only_the_steps_of_the_counter_are_kept_on_the_clock_of_the_host(tmp_path: Path) -> None:
    reader = written(
        tmp_path / "r",
        header(),
        *(reading(0, 500), reading(10, 500), reading(20, 900), reading(30, 900), reading(40, 1_300)),
    )
    track = reader.track()
    assert track.seconds.tolist() == [5.02, 5.04]
    assert track.joules.tolist() == [0.0, 0.0004]
    assert track.update_s == pytest.approx(0.02)
    assert reader.readings == 5


def test_the_offset_of_the_clocks_is_added(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("".join(json.dumps(line) + "\n" for line in (header(), reading(0, 1), reading(10, 2))))
    reader = RecordingReader(path, clock_offset_ns=2_000_000_000)
    reader.read_on()
    assert reader.track().seconds.tolist() == [7.01]


def test_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    lines = [reading(0, 7_000_000), reading(10, 9_000_000), reading(20, 1_000_000), reading(30, 2_000_000)]
    track = written(tmp_path / "r", header(wraps_at_uj=10_000_000), *lines).track()
    assert track.joules.tolist() == [0.0, 2.0, 3.0]


def test_a_counter_that_is_set_back_shows_it(tmp_path: Path) -> None:
    lines = [reading(0, 2_000_000), reading(10, 3_000_000), reading(20, 0), reading(30, 1_000_000)]
    assert written(tmp_path / "a", header(), *lines).track().joules.tolist() == [0.0, -3.0, -2.0]
    wrapping = header(wraps_at_uj=10_000_000)  # from so low it does not wrap
    assert written(tmp_path / "b", wrapping, *lines).track().joules.tolist() == [0.0, -3.0, -2.0]


def test_a_reading_that_failed_is_missing_and_its_words_are_kept(tmp_path: Path) -> None:
    failed = {"at_ns": 20 * MS, "error": "the GPU is lost"}
    track = written(tmp_path / "r", header(), reading(0, 1), reading(10, 2), failed, reading(30, 3)).track()
    assert track.seconds.tolist() == [5.01, 5.03]
    assert track.failures == ((5.02, "the GPU is lost"),)
    assert track.failure_between(5.0, 5.1) == "the GPU is lost"
    assert track.failure_between(5.0, 5.01) == ""


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "r"
    whole = json.dumps(reading(20, 9))
    reader = written(path, header(), reading(0, 1), reading(10, 2), cut=whole[:7])
    assert reader.track().seconds.tolist() == [5.01]
    with path.open("a") as file:
        file.write(whole[7:] + "\n" + json.dumps({"end_ns": 20 * MS, "lines": 3}) + "\n")
    reader.read_on()
    assert reader.track().seconds.tolist() == [5.01, 5.02]


def test_the_source_says_that_loadgen_read_it(tmp_path: Path) -> None:
    meter = written(tmp_path / "r", header()).meter
    assert meter is not None
    assert (meter.source.name, meter.source.method) == (
        "nvml:GPU-5",
        "counter over the window, read by loadgen",
    )
    assert meter.source.quality is EnergyQuality.MEASURED
    assert meter.source.note == "read by loadgen, not by the server; counted"
    assert (meter.boundary, meter.poll_period_seconds) == ("GPU board", 0.01)


def test_a_file_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    reader = RecordingReader(tmp_path / "r", clock_offset_ns=0)
    reader.read_on()
    assert (reader.meter, reader.readings, reader.track().update_s) == (None, 0, None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"format": "something else"}, "not that of a recording of version 1"),
        (header(version=2), "not that of a recording of version 1"),
        (header(origin_monotonic_ns=None), "its recorder is too old"),
        ({"format": "wattserve-meter-recording", "version": 1, "origin_monotonic_ns": 1}, "wraps_at_uj"),
    ],
    ids=["format", "version", "origin", "fields"],
)
def test_what_is_no_recording_is_said_to_be_none(tmp_path: Path, line: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        written(tmp_path / "r", line)
