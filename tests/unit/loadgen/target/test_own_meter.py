"""The meter that loadgen reads itself, with recorders of a few lines: what it records, refuses, survives."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.virtual_meter import VirtualRecorder
from tests.fixtures.virtual_time import run_in_virtual_time
from tests.unit.loadgen.target.test_recording import header
from wattserve_client import EnergyQuality
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.target.energy_window import NoEnergy
from wattserve_loadgen.target.own_meter import OwnMeter

# A counter of 10 W that steps every 10 ms; its last argument but four is the file.
RECORDER = """
import json, sys, time
path, header, readings, words = sys.argv[3], json.loads(sys.argv[1]), int(sys.argv[2]), {words!r}
print(words, file=sys.stderr, flush=True)
file = open(path, "x", buffering=1)
start = time.monotonic_ns()
print(json.dumps(header | {{"origin_monotonic_ns": start}}), file=file)
for number in range(readings):
    print(json.dumps({{"at_ns": number * 10_000_000, "energy_uj": number * 100_000}}), file=file)
    time.sleep(max(0, (start + number * 10_000_000 - time.monotonic_ns()) / 1e9))
{end}
"""
FOREVER = 1_000_000


def recorder(readings: int = FOREVER, words: str = "", end: str = "", **replaced: Any) -> tuple[str, ...]:
    script = RECORDER.format(words=words, end=end)
    return ("-c", script, json.dumps(header(**replaced)), str(readings))


def source(quality: str, note: str = "counted") -> dict[str, Any]:
    whole: dict[str, Any] = header()["source"]
    return whole | {"quality": quality, "note": note}


def test_it_records_until_it_is_stopped_and_says_what_is_drawn_at_rest(tmp_path: Path) -> None:
    async def recorded() -> tuple[OwnMeter, Any]:
        meter = OwnMeter(tmp_path / "r", recorder=recorder())
        await meter.start(30)
        assert meter.reason == ""
        rest = await meter.rest(0.2)
        await meter.stop()
        return meter, rest

    meter, rest = asyncio.run(recorded())
    assert (rest.watts, rest.reason) == (pytest.approx(10.0), "")
    assert meter.reason == "loadgen's own meter was stopped"
    assert meter.info.source.name == "nvml:GPU-5"
    assert meter.info.update_period_seconds == pytest.approx(0.01)
    track = meter.track()
    first, last = float(track.seconds[0]), float(track.seconds[-1])
    assert meter.watts_between(first, last) == pytest.approx(10.0)
    assert meter.watts_between(first, last + 1) is NoEnergy.NO_READING_AFTER


def test_a_recorder_that_dies_is_a_reason_and_what_it_recorded_stays(tmp_path: Path) -> None:
    async def recorded() -> OwnMeter:
        meter = OwnMeter(tmp_path / "r", recorder=recorder(20, end="sys.exit('error: the disk is full')"))
        await meter.start(30)
        assert meter.reason == ""
        assert not await meter.covers(1e12, limit_s=30)
        return meter

    meter = asyncio.run(recorded())
    assert meter.reason == ("the meter's recorder ended by itself, with exit code 1: error: the disk is full")
    assert len(meter.track().seconds) == 19
    assert meter.info.source.quality == EnergyQuality.MEASURED


@pytest.mark.parametrize(
    ("words", "quality", "reason"),
    [
        (
            "wattserve: NO ENERGY SENSOR: RAPL: no zones; joules are ESTIMATED from CPU time (4 W)",
            "estimated",
            "no energy sensor on this machine (RAPL: no zones); of the estimate: it counts the CPU time of"
            " the process that reads it, so it would miss the peer",
        ),
        ("", "none", "no energy sensor: no GPU energy meter: no driver"),
    ],
)
def test_a_machine_without_a_sensor_has_a_reason_and_no_meter(
    tmp_path: Path, words: str, quality: str, reason: str
) -> None:
    async def recorded() -> OwnMeter:
        told = source(quality, "no GPU energy meter: no driver")
        meter = OwnMeter(tmp_path / "r", recorder=recorder(words=words, source=told))
        await meter.start(30)
        assert (await meter.rest(60)).reason == reason
        await meter.stop()
        return meter

    meter = asyncio.run(recorded())
    assert meter.reason == reason
    assert (meter.info.source.quality, meter.info.source.note) == (EnergyQuality.NONE, reason)


def test_a_simulated_meter_stays_one(tmp_path: Path) -> None:
    async def recorded() -> OwnMeter:
        meter = OwnMeter(tmp_path / "r", recorder=recorder(source=source("simulated")))
        await meter.start(30)
        await meter.stop()
        return meter

    assert asyncio.run(recorded()).info.source.quality == EnergyQuality.SIMULATED


def test_a_recorder_that_does_not_start_is_a_reason_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("")

    async def started(*program: str) -> str:
        meter = OwnMeter(tmp_path / "r", recorder=program)
        await meter.start(30)
        await meter.stop()
        return meter.reason

    refused = ("-c", "import sys; sys.exit('wattserve: error: r: is there already; choose another name')")
    assert asyncio.run(started(*refused)) == "no meter: r: is there already; choose another name"
    assert asyncio.run(started("-c", "pass")) == "no meter: its recorder said nothing"


def test_a_meter_that_gives_no_reading_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def started() -> str:
        meter = OwnMeter(tmp_path / "r")
        await meter.start(30)
        return meter.reason

    monkeypatch.setattr(asyncio, "create_subprocess_exec", VirtualRecorder(None, "probing\n"))
    assert run_in_virtual_time(started()) == "the meter gave no reading within 30 s: probing"


@pytest.mark.parametrize("meter", ["estimate", "nvml+estimate", "none"])
def test_a_meter_that_cannot_see_a_peer_is_refused(tmp_path: Path, meter: str) -> None:
    with pytest.raises(PlanError, match="use auto, nvml or rapl"):
        OwnMeter(tmp_path / "r", meter)
