"""A sweep of a server and a peer: the peer's joules come from a meter that loadgen reads itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.fake_server.memory import MemoryServer
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.fake_server.peer import OipPeer
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.loadgen_sweeps import measured
from tests.fixtures.virtual_meter import VirtualRecorder
from tests.unit.loadgen.target.test_recording import header
from wattserve_loadgen.figures.account import ABOVE_REST
from wattserve_loadgen.model.results import Results
from wattserve_loadgen.plan.options import Peer
from wattserve_loadgen.results.records import read_records
from wattserve_loadgen.sweeping import energy as energies
from wattserve_loadgen.sweeping.energy import OwnMeterWitness
from wattserve_loadgen.sweeping.readings import SweepClock
from wattserve_loadgen.target.own_meter import Rest
from wattserve_loadgen.target.recording import Track

REST_W, LOADED_W = 10.0, 40.0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """A native arm with the server's own joules, a peer with loadgen's meter, and one without any, in virtual
    time. The peer's machine draws 10 W until it is first asked, and 40 W from then on.
    """
    folder = tmp_path_factory.mktemp("peer")
    data = make_labelled(folder / "rows")
    one, other = MemoryServer(OipPeer(seconds=0.002)), MemoryServer(OipPeer(seconds=0.002))
    peers = (
        Peer("metered", one.address, ("parity",), "simulated"),
        Peer("bare", other.address, ("parity",)),
    )
    source = header()["source"] | {"quality": "simulated"}
    recorder = VirtualRecorder(lambda: LOADED_W if one.calls["ModelInfer"] else REST_W, source=source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", recorder)
        results = measured(MemoryServer(Metered()), data, folder / "out", peers=peers, seconds=0.6)
    return results, folder / "out"


def test_a_peers_joules_are_labelled_as_loadgens_own_and_as_simulated(found: tuple[Results, Path]) -> None:
    targets = {one.name: one for one in found[0].targets}
    assert [targets[name].meter_origin for name in ("server", "metered", "bare")] == [
        "server",
        "loadgen",
        "none",
    ]
    source = targets["metered"].meter["source"]
    assert source["quality"] == "simulated"
    assert source["note"].startswith("read by loadgen, not by the server; ")
    assert "metered: a meter that loadgen read itself covers " in found[0].boundary
    assert "bare: no meter." in found[0].boundary


def test_a_peers_cells_say_how_their_joules_were_found(found: tuple[Results, Path]) -> None:
    cells = {cell.arm: cell for cell in found[0].cells}
    assert found[0].ended == "complete"
    energy = cells["metered:parity"].energy
    assert energy.method == ABOVE_REST
    assert energy.reason == ""
    assert energy.idle_watts == pytest.approx(REST_W, rel=1e-3)
    assert energy.meter is not None
    assert energy.meter.watts == pytest.approx(LOADED_W, rel=1e-3)
    assert energy.active_uj == pytest.approx((LOADED_W - REST_W) * energy.meter.seconds * 1e6, rel=1e-3)
    assert (energy.accounts_residual_uj, energy.receipts_uj) == (None, None)
    assert cells["fp32"].energy.method == "receipts"
    bare = cells["bare:parity"].energy
    assert bare.active_uj_per_request is None
    assert bare.reason == "no meter is read for bare: --peer-meter names one of its machine"


def test_all_arms_answered_the_same_rows(found: tuple[Results, Path]) -> None:
    results, out = found
    assert [arm.name for arm in results.plan.arms] == ["fp32", "metered:parity", "bare:parity"]
    assert {name: one.share for name, one in results.accuracy.items()} == {
        "fp32": 1.0,
        "metered:parity": 1.0,
        "bare:parity": 1.0,
    }
    assert all(record.ok for record in read_records(out))


def test_a_meter_that_cannot_be_had_leaves_the_peer_without_joules_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        reason = "no energy sensor on this machine"
        gap_limit_s = 0.25

        def __init__(self, *about: Any) -> None:
            pass

        async def start(self) -> None:
            pass

        async def rest(self, seconds: float) -> Rest:
            return Rest(None, seconds, self.reason)

    monkeypatch.setattr(energies, "OwnMeter", Broken)
    witness = OwnMeterWitness(Peer("p", "h:1", ("m",), "rapl"), tmp_path, SweepClock())
    asyncio.run(witness.start())
    assert (witness.origin, witness.meter(), witness.method) == ("none", {}, ABOVE_REST)


def test_a_window_without_joules_names_the_reading_that_failed_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SweepClock()
    at = clock.perf_counter_at(0.0) + np.array([0.0, 0.1, 0.9, 1.0])
    recorded = Track(at, np.arange(4.0), ((float(at[1]) + 0.2, "the GPU is lost"),))

    class Lost:
        gap_limit_s = 0.25

        def __init__(self, *about: Any) -> None:
            pass

        def track(self) -> Track:
            return recorded

    monkeypatch.setattr(energies, "OwnMeter", Lost)
    witness = OwnMeterWitness(Peer("p", "h:1", ("m",), "nvml"), tmp_path, clock)
    assert witness.window("m", 0.05, 0.95).reason.endswith("two readings in the window (the GPU is lost)")
    assert witness.window("m", 0.05, 0.25).reason.endswith("around the window's end")
    assert witness.window("m", 0.01, 0.09).reason == ""
