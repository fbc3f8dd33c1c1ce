"""A folder of `meter verify` is shared again by the bench, and says what the run itself said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.attribution.recorded import render, share_again
from tests.fixtures.verify_rig import VirtualRig, played
from wattserve_server.meters.recording import Header, RecordedReading, end_line, header_line, reading_line
from wattserve_server.verify.command import write_windows
from wattserve_server.verify.mixed import measure_mixed
from wattserve_server.verify.results import Results


def test_a_recorded_run_is_shared_again(tmp_path: Path) -> None:
    rig, results = VirtualRig(), Results("2026-11-22T12:00:00+00:00", 30.0, {})

    async def run() -> None:
        await rig.calibrate()
        results.mixed = await measure_mixed(rig, 24.0)

    played(run())
    header = Header(rig.board.source, None, None, 0.005, "2026-11-22", {}, origin_monotonic_ns=0)
    readings = [RecordedReading(reading.at_ns, reading.energy) for reading in rig.given]
    with (tmp_path / "readings.jsonl").open("w") as file:
        file.writelines([header_line(header), *map(reading_line, readings)])
        file.write(end_line(rig.now_ns(), len(readings)))
    write_windows(tmp_path / "windows.jsonl", rig.windows(0, rig.now_ns()), origin_ns=0)
    (tmp_path / "verify.json").write_text(json.dumps(results.as_plain()))

    assert results.mixed is not None
    shared = {each.variant: each for each in share_again(tmp_path)}
    assert shared.keys() == set(rig.variants)
    for variant, company in results.mixed.by_variant.items():
        again = shared[variant]
        assert (again.requests, again.withheld) == (company.requests, 0)
        assert again.told_j == pytest.approx(company.mixed_j, rel=0.05)
    assert "| fp32 |" in render(list(shared.values()))
