"""A peer as loadgen sees it: a real server through the Open Inference Protocol, and the meter that loadgen
reads itself with the real recorder, on a simulated board.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fixtures.meter_fakes import H200_UUID
from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from tests.fixtures.simulated_board import SimulatedBoards, library_folder
from wattserve_client import EnergyQuality
from wattserve_common import dataset
from wattserve_loadgen.target.energy_window import NoEnergy
from wattserve_loadgen.target.oip import OipTarget
from wattserve_loadgen.target.own_meter import OwnMeter
from wattserve_loadgen.target.wire import open_channel
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "demo")
    with running_server(
        *("--model", str(folder), "--variants", "fp32,bf16"),
        *("--meter", "none", "--threads", "1"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dataset.Dataset:
    generator = np.random.default_rng(11)
    tokens = [generator.integers(1, 60, size=length).tolist() for length in (1, 3, 7, 20, 41, 64, 12, 5)]
    folder = tmp_path_factory.mktemp("rows") / "d"
    dataset.save(folder, tokens, [0] * len(tokens), {})
    return dataset.load(folder)


def native_logits(server: RunningServer, rows: dataset.Dataset, group: list[int], variant: str) -> np.ndarray:
    sequences = [pb.TokenIds(ids=rows.rows[row].tolist()) for row in group]
    request = pb.PredictRequest(variant=variant, tokens=pb.TokenInput(sequences=sequences))
    with grpc.insecure_channel(server.address) as channel:
        return logits(pb_grpc.InferenceStub(channel).Predict(request, timeout=LIMIT_S))


async def peer_answers(
    address: str, rows: dataset.Dataset, groups: list[list[int]], model: str
) -> list[pb.PredictResponse]:
    """One after another, so that none shares a batch with another."""
    target, channel = OipTarget(address, model), open_channel(address)
    try:
        await target.server_info(LIMIT_S)
        call: Any = channel.unary_unary(target.connection.method)
        requests = target.make_requests(rows, groups, model)
        return [target.read(await call(request, timeout=LIMIT_S)) for request in requests]
    finally:
        await channel.close()
        await target.close()


def logits(answer: pb.PredictResponse) -> np.ndarray:
    assert answer.output.datatype == "FP32"
    return np.frombuffer(answer.output.data, "<f4").reshape(tuple(answer.output.shape))


@pytest.mark.parametrize("groups", [[[row] for row in range(8)], [[0, 5, 2], [7, 6]]], ids=["rows", "groups"])
@pytest.mark.parametrize("variant", ["fp32", "bf16"])
def test_a_server_predicts_the_same_through_either_protocol(
    server: RunningServer, rows: dataset.Dataset, groups: list[list[int]], variant: str
) -> None:
    name = f"demo@{variant}"
    peer = asyncio.run(peer_answers(server.address, rows, groups, name))
    assert [answer.variant for answer in peer] == [name] * len(groups)
    for group, answer in zip(groups, peer, strict=True):
        np.testing.assert_array_equal(logits(answer), native_logits(server, rows, group, variant))


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedBoards:
    """A board that draws 20 W, for the processes that this one starts."""
    found = SimulatedBoards(tmp_path)
    found.first.watts_per_core = 0.0
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library_folder()), prepend=os.pathsep)
    return found


def test_loadgens_own_meter_reads_the_board_with_the_real_recorder(
    boards: SimulatedBoards, tmp_path: Path
) -> None:
    async def recorded() -> OwnMeter:
        meter = OwnMeter(tmp_path / "meter.jsonl", "nvml")
        try:
            await meter.start()
            assert meter.reason == ""
            rest = await meter.rest(1.0)
            assert (rest.watts or 0.0) > 0  # how well, is tried in virtual time (test_peer_energy)
            boards.first.fall_off_the_bus()
            lost = time.perf_counter()
            while not meter.track().failures:
                assert time.perf_counter() < lost + LIMIT_S
                await asyncio.sleep(0.02)
            assert meter.watts_between(lost - 0.5, time.perf_counter()) is NoEnergy.NO_READING_AFTER
        finally:
            await meter.stop()
        return meter

    meter = asyncio.run(recorded())
    assert meter.info.source.name == f"nvml:{H200_UUID}"
    assert meter.info.source.quality is EnergyQuality.MEASURED
    assert meter.info.source.note.startswith("read by loadgen, not by the server; ")
    assert meter.info.boundary
    assert (tmp_path / "meter.jsonl").read_text().splitlines()[-1].startswith('{"end_ns": ')


def test_a_killed_loadgen_leaves_no_recorder(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux ends a child with its parent")
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from wattserve_loadgen.target.own_meter import OwnMeter\n"
        "meter = OwnMeter(Path(sys.argv[1]), 'simulated')\n"
        "asyncio.run(meter.start())\n"
        "os._exit(9)\n"
    )
    path = tmp_path / "meter.jsonl"
    ended = subprocess.run([sys.executable, "-c", script, str(path)], timeout=60, env=dict(os.environ))
    assert ended.returncode == 9
    give_up = time.monotonic() + LIMIT_S
    while '"end_ns"' not in path.read_text():
        assert time.monotonic() < give_up
        time.sleep(0.05)
