"""loadgen against a real MLServer, in an environment and a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.ports import free_ports
from wattserve_client import ServerInfo
from wattserve_common import dataset
from wattserve_loadgen.errors import TargetError
from wattserve_loadgen.target.oip import OipTarget
from wattserve_loadgen.target.wire import open_channel
from wattserve_proto.v1 import inference_pb2 as pb

IDS = {"datatype": "INT64", "shape": [-1, -1]}
DECLARED = {
    "platform": "arithmetic",
    "inputs": [{"name": "input_ids", **IDS}, {"name": "attention_mask", **IDS}],
    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 2]}],
}
START_S = 120.0


async def info_of(address: str, model: str) -> ServerInfo:
    target = OipTarget(address, model)
    try:
        return await target.server_info(10)
    finally:
        await target.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """It serves `parity`, and `bare`, which is the same and declares nothing."""
    program = os.environ.get("WATTSERVE_MLSERVER", "")
    if not program:
        pytest.skip("WATTSERVE_MLSERVER names no mlserver (tests/clients/get_mlserver.sh makes one)")
    folder = tmp_path_factory.mktemp("mlserver")
    shutil.copy(Path(__file__).with_name("mlserver_runtime.py"), folder)
    for name, more in (("parity", DECLARED), ("bare", {})):
        (folder / name).mkdir()
        model = {"name": name, "implementation": "mlserver_runtime.Parity"} | more
        (folder / name / "model-settings.json").write_text(json.dumps(model))
    http, rpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": rpc, "metrics_port": metrics}
    settings = {"host": "127.0.0.1", "parallel_workers": 0} | ports
    (folder / "settings.json").write_text(json.dumps(settings))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(Path(program).resolve()), "start", str(folder)],
            cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until_it_answers(process, f"127.0.0.1:{rpc}", folder / "log")
        yield f"127.0.0.1:{rpc}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    give_up = time.monotonic() + START_S
    while not answers(address):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < give_up, log.read_text()
        time.sleep(0.5)


def answers(address: str) -> bool:
    try:
        asyncio.run(info_of(address, "parity"))
    except TargetError:
        return False
    return True


def test_every_row_gets_its_label_alone_and_in_a_group(address: str, tmp_path: Path) -> None:
    rows = dataset.load(make_labelled(tmp_path / "d", rows=24))
    groups = [[row] for row in range(20)] + [[20, 21, 22, 23]]

    async def answered() -> list[pb.PredictResponse]:
        target, channel = OipTarget(address, "parity"), open_channel(address)
        try:
            await target.server_info(10)
            call: Any = channel.unary_unary(target.connection.method)
            requests = target.make_requests(rows, groups, "parity")
            return [target.read(await call(request, timeout=60)) for request in requests]
        finally:
            await channel.close()
            await target.close()

    found = asyncio.run(answered())
    assert {answer.variant for answer in found} == {"parity"}
    logits = [np.frombuffer(answer.output.data, "<f4").reshape(-1, 2) for answer in found]
    assert np.concatenate(logits).argmax(axis=1).tolist() == rows.labels.tolist()


def test_it_says_who_it_is_and_which_models_it_has(address: str) -> None:
    info = asyncio.run(info_of(address, "parity"))
    assert info.server_version.startswith("mlserver 1.")
    assert (info.model_source, list(info.labels)) == ("arithmetic", ["0", "1"])
    with pytest.raises(TargetError, match=r"model 'bare' cannot be fed .* its metadata does not declare"):
        asyncio.run(info_of(address, "bare"))
    with pytest.raises(TargetError, match=r"Model nope with version +not found; it has "):
        asyncio.run(info_of(address, "nope"))
