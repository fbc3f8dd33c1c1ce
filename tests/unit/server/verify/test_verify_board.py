"""What is asked of an NVIDIA board meanwhile: the real binding, a simulated board."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fixtures.meter_fakes import H200_UUID
from tests.fixtures.simulated_board import simulated_boards
from wattserve_server.verify.board import BoardWatch


def test_identity_caps_and_state_are_written_down(tmp_path: Path) -> None:
    file = tmp_path / "board.jsonl"
    with simulated_boards(tmp_path) as boards:
        first = boards.first
        first.most_mw, first.limit_mw = 700_000, 600_000
        first.clocks_mhz[:] = [1980, 1980, 3201]
        first.performance_state, first.temperature_c = 0, 41
        watch = BoardWatch(H200_UUID, lambda: file.open("w"))
        watch.look()
        first.clocks_mhz[1], first.performance_state, first.throttle_reasons = 1200, 2, 0x4
        watch.look()
        watch.stop()
    identity = watch.identity
    assert (identity["uuid"], identity["driver"], identity["persistence_mode"]) == (H200_UUID, "570.00.00", 1)
    assert (identity["power_limit_mw"], identity["power_limits_mw"]) == (600_000, [350_000, 700_000])
    assert (identity["mig"], identity["vbios"]) == (None, None)
    assert {"mig", "vbios"} <= watch.unanswered.keys()
    summary = watch.summary()
    assert summary["sm_mhz"] == {"least": 1200, "most": 1980}
    assert summary["performance_state"] == {"least": 0, "most": 2}
    assert (summary["throttled_share"], summary["throttle_reasons_seen"]) == (0.5, [4])
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["sm_mhz"] for line in lines] == [1980, 1200]


def test_without_a_board_there_is_a_reason() -> None:
    def no_file() -> None:
        raise AssertionError("nothing is to be written")

    watch = BoardWatch("", no_file)  # type: ignore[arg-type]
    watch.start()
    watch.stop()
    assert (watch.identity, watch.why) == ({}, "the meter reads no NVIDIA board")
