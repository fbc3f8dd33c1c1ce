"""`wattserve meter verify` whole and in real time, on the simulated board: `make test-verify`.

The board's counter steps every 100 ms and is 20 ms late; its power follows the CPU time of the process. What
a busy machine makes of the figures is its own affair: only what holds on any machine is asserted.
"""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.fixtures.children import Child
from tests.fixtures.meter_fakes import H200_UUID
from tests.fixtures.server import environment
from tests.fixtures.simulated_board import PROGRAM, SimulatedBoards
from wattserve_server.meters.recording import read_recording
from wattserve_server.verify.plan import PHASES

pytestmark = pytest.mark.long


def test_the_simulated_board_is_verified_whole(tmp_path: Path) -> None:
    boards = SimulatedBoards(tmp_path)
    first = boards.first
    first.most_mw, first.limit_mw, first.clocks_mhz[1] = 700_000, 700_000, 1980
    folder = tmp_path / "found"
    words = (*PROGRAM, "meter", "verify", "--out", str(folder), "--meter", "nvml", "--device", "cpu")
    surroundings = environment() | boards.environment() | {"WATTSERVE_TEST_GPU": H200_UUID}
    with Child((*words, "--variants", "fp32,bf16"), stdout=PIPE, stderr=PIPE, env=surroundings) as process:
        _, err = process.communicate()
    assert process.returncode in (0, 1, 3), err
    found = json.loads((folder / "verify.json").read_text())
    assert found["reached"] == [phase.name for phase in PHASES]
    assert found["took_s"] < 490
    assert found["board"]["power_limit_mw"] == 700_000
    assert found["board"]["meanwhile"]["sm_mhz"] == {"least": 1980, "most": 1980}
    assert found["sensor"]["idle"]["period_s"] == pytest.approx(0.1, rel=0.1)
    statuses = {verdict["name"]: verdict["status"] for verdict in found["verdicts"]}
    assert statuses["closure"] != "MISSED"
    assert "held" in [status for name, status in statuses.items() if name.startswith("response")]
    assert found["mixed"]["by_variant"].keys() == {"fp32", "bf16"}
    assert len(read_recording(folder / "readings.jsonl").lines) > 10_000
    assert (folder / "board.jsonl").stat().st_size > 0
