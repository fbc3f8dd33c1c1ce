"""Triton's own load generator against a running server: it measures, and its figures of the server add up."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import grpc
import pytest

from tests.clients.oip_stub import OipStub
from tests.fixtures.server import RunningServer
from wattserve_proto.oip import open_inference_pb2 as oip

INPUTS = {
    "ids": '{"data":[{"input_ids":{"content":[1,2,3,4],"shape":[4]}}]}',
    "text": '{"data":[{"text":["a fine film"]}]}',
}
REQUESTS = 30
COMMANDS: dict[str, tuple[str, str, tuple[str, ...], int]] = {
    "sync": ("demo", "ids", (), 1),
    "async": ("demo", "ids", ("--async", "--concurrency-range", "2"), 1),
    "streaming": ("demo", "ids", ("--async", "--streaming", "--concurrency-range", "2"), 1),
    "batches": ("demo", "ids", ("-b", "4"), 4),
    "text": ("demo", "text", (), 1),
    "parameter": ("demo", "ids", ("--request-parameter", "variant:bf16:string"), 1),
    "alias": ("demo@bf16", "ids", (), 1),
}


@pytest.fixture(scope="session")  # as the server is: no server is started only to be skipped
def perf_analyzer() -> str:
    named = os.environ.get("WATTSERVE_PERF_ANALYZER", "")
    if not named:
        pytest.skip(
            "WATTSERVE_PERF_ANALYZER names no perf_analyzer (tests/clients/get_perf_analyzer.sh gets it)"
        )
    return str(Path(named).resolve())


def figures(report: str, side: str) -> dict[str, int]:
    """The whole numbers that it prints of the client or of the server."""
    part = report.partition(f"  {side}: ")[2].partition("\n  Server:")[0]
    return {name: int(value) for name, value in re.findall(r"^    ([A-Z][a-z ]+ count): (\d+)", part, re.M)}


def served(server: RunningServer, model: str) -> int:
    """The sequences of all requests for that name which the server has answered."""
    with grpc.insecure_channel(server.address) as channel:
        found = OipStub(channel).ModelStatistics(oip.ModelStatisticsRequest(name=model))
    return sum(each.inference_count for each in found.model_stats)


@pytest.mark.parametrize("name", COMMANDS)
def test_it_measures_the_server(perf_analyzer: str, server: RunningServer, tmp_path: Path, name: str) -> None:
    model, inputs, options, batch = COMMANDS[name]
    data = tmp_path / f"{inputs}.json"
    data.write_text(INPUTS[inputs])
    before = served(server, model)
    command = [perf_analyzer, "-u", server.address, "-m", model, "-i", "grpc", "--input-data", str(data)]
    ended = subprocess.run(
        [*command, "--request-count", str(REQUESTS), *options], capture_output=True, text=True, timeout=600
    )
    report = ended.stdout + ended.stderr
    assert ended.returncode == 0, report
    assert figures(report, "Client")["Request count"] == REQUESTS, report
    assert served(server, model) - before == REQUESTS * batch
    counted = figures(report, "Server")
    # Its workers begin before it asks for the first statistics: the first requests may be in them already.
    assert REQUESTS - 2 <= counted["Successful request count"] <= REQUESTS, report
    assert counted["Inference count"] == counted["Successful request count"] * batch, report
    assert 1 <= counted["Execution count"] <= counted["Inference count"]
    assert re.search(r"compute input \d+ usec \+ compute infer \d+ usec \+ compute output \d+ usec", report)
