"""The meters' readings of a results folder: read, and held against what the cells say that was counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import ROOT
from tests.fixtures.loadgen_results import TARGET, make_results, reading_lines
from wattserve_loadgen.errors import ResultsError
from wattserve_loadgen.model.results import Results
from wattserve_loadgen.results.readings import MeterReadings, last_instant, read_meters, readings_agree
from wattserve_loadgen.results.validate import validate_folder

SWEEP = ROOT / "docs" / "results" / "2026-11-21-sweeps" / "distilbert-base"
WATTS = 6.6  # of the fixture's windows


def test_readings_are_grouped_by_meter_and_a_line_without_its_end_is_passed_over(tmp_path: Path) -> None:
    text = reading_lines(
        ("a", 0.0, 1.0, None), ("b", 0.0, 9.0, None), ("a", 1.0, 6.0, 4.5), ("a", 1.0, 7.0, None)
    )
    (tmp_path / "readings.jsonl").write_text(text + '{"target": "a", "sec')
    (meter,) = read_meters(tmp_path)
    assert (meter.target, meter.device, meter.idle_watts) == ("a", "", 4.5)
    assert meter.joules.tolist() == [1.0, 6.0]
    assert last_instant(tmp_path) == 1.0


def test_no_file_is_no_meter(tmp_path: Path) -> None:
    assert read_meters(tmp_path) == []
    assert last_instant(tmp_path) == 0.0


@pytest.mark.parametrize("line", [b"[]", b'{"target": "\xff"}', b'{"later": ' + b"[" * 100_000])
def test_a_line_that_is_no_reading_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "readings.jsonl").write_bytes(reading_lines(("a", 0.0, 1.0, None)).encode() + line + b"\n")
    with pytest.raises(ResultsError, match=r"readings\.jsonl: line 2: not a reading of a meter"):
        read_meters(tmp_path)
    with pytest.raises(ResultsError, match="line 2: not a reading"):
        last_instant(tmp_path)


@pytest.mark.parametrize("field", ["seconds", "joules", "idle_watts"])
def test_what_no_meter_counts_is_no_reading(tmp_path: Path, field: str) -> None:
    reading = {"target": "a", "seconds": 1.0, "joules": 1.0, "idle_watts": 1.0, field: 1e300}
    (tmp_path / "readings.jsonl").write_text(json.dumps(reading) + "\n")
    with pytest.raises(ResultsError, match=r"line 1: not a reading"):
        read_meters(tmp_path)


def timed(**changes: Any) -> Results:
    """Every cell's window, one after the other."""
    results = make_results()
    cells = []
    for place, cell in enumerate(results.cells):
        meter = cell.energy.meter
        assert meter is not None
        energy = replace(cell.energy, meter=replace(meter, **{"measured_uj": 82_500_000, **changes}))
        cells.append(replace(cell, window_start_seconds=20.0 * place, energy=energy))
    return replace(results, cells=cells)


def counted(watts: float, *, until: float = 1000.0, device: str = "cpu") -> MeterReadings:
    seconds = np.arange(-1.0, until, 0.1)
    return MeterReadings(TARGET, device, seconds, watts * seconds, None)


def test_windows_are_made_again_from_the_readings() -> None:
    check = readings_agree(timed(), [counted(WATTS)])
    assert check.passed is True, check.text
    beside = [counted(WATTS / 3, device="cuda:0"), counted(WATTS / 3 * 2, device="cuda:1"), counted(90.0)]
    assert readings_agree(timed(), beside).passed is True


def test_what_the_readings_do_not_make_is_found() -> None:
    more = readings_agree(timed(), [counted(WATTS * 1.01)])
    assert more.passed is False
    assert ": the meter counted 82.5 J, and its readings make 83.3 J" in more.text
    short = readings_agree(timed(), [counted(WATTS, until=10.0)])
    assert short.passed is False
    assert "no readings around its window" in short.text
    empty = readings_agree(timed(seconds=0.0), [counted(WATTS)])
    assert (empty.passed, "its window from 0 s to 0 s is empty" in empty.text) == (False, True)
    of_another = [replace(counted(WATTS), target="another")]
    assert readings_agree(timed(), of_another).passed is False


def test_without_readings_or_windows_it_does_not_apply() -> None:
    assert readings_agree(timed(), []).passed is None
    assert readings_agree(timed(measured_uj=None), [counted(WATTS)]).passed is None


def test_a_sweep_whose_meter_was_edited_fails_and_one_that_lost_its_readings_says_so(tmp_path: Path) -> None:
    def found() -> bool | None:
        (check,) = [one for one in validate_folder(tmp_path) if one.name == "readings agree"]
        return check.passed

    results = json.loads((SWEEP / "results.json").read_text())
    for name in ("results.json", "readings.jsonl"):
        (tmp_path / name).write_bytes((SWEEP / name).read_bytes())
    assert found() is True
    results["cells"][3]["energy"]["meter"]["measured_uj"] += 100_000
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert found() is False
    (tmp_path / "readings.jsonl").unlink()
    assert found() is None
