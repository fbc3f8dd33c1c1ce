"""A metered GPU's gauges, which `perf_analyzer --collect-metrics`, Triton's own load generator, reads.

WATTSERVE_PERF_ANALYZER names it; tests/clients/get_perf_analyzer.sh gets it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import grpc
import pytest

from tests.fixtures.meter_fakes import H200_UUID
from tests.fixtures.models import save_classifier
from tests.fixtures.server import running_server
from tests.fixtures.simulated_board import PROGRAM, SimulatedBoards
from tests.integration.test_metrics_served import PROMETHEUS, Served, until

COLUMNS = {
    "Avg GPU Utilization": "0.41",
    "Max GPU Memory Usage": "1500000000",
    "Total GPU Memory": "150119383040",
}


def test_it_reads_the_boards_figures(tmp_path: Path) -> None:
    named = os.environ.get("WATTSERVE_PERF_ANALYZER", "")
    if not named:
        pytest.skip("WATTSERVE_PERF_ANALYZER names no perf_analyzer")
    boards = SimulatedBoards(tmp_path)
    folder = save_classifier(tmp_path / "tiny")
    data, table = tmp_path / "data.json", tmp_path / "table.csv"
    data.write_text('{"data": [{"text": ["good film"]}]}')
    with running_server(
        *("--model", str(folder), "--variants", "fp32", "--threads", "1", "--device", "cpu"),
        *("--meter", "nvml", "--calibration-seconds", "0"),
        program=PROGRAM,
        extra=boards.environment() | {"WATTSERVE_TEST_GPU": H200_UUID.removeprefix("GPU-")},
    ) as running:
        command = [str(Path(named).resolve()), "-u", running.address, "-m", "tiny", "-i", "grpc"]
        command += ["--input-data", str(data), "--shape", "text:1", "--collect-metrics"]
        command += ["--metrics-url", running.metrics_url.removeprefix("http://"), "--metrics-interval", "200"]
        command += ["--measurement-interval", "1000", "-s", "90", "-f", str(table), "--verbose-csv"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    names, values = (line.split(",") for line in table.read_text().split("\n\n")[0].strip().splitlines()[:2])
    found = dict(zip(names, values, strict=False))
    for name, value in COLUMNS.items():
        assert found[name] == f"{H200_UUID}:{value};"
    uuid, _, watts = found["Avg GPU Power Usage"].rstrip(";").partition(":")
    assert uuid == H200_UUID
    assert 10 < float(watts) < 200


def perf_analyzer_reads(page: str, metric: str) -> dict[str, float]:
    """With its own pattern, of triton_client_backend.cc."""
    pattern = r"\n" + metric + r"\{gpu_uuid=\"([^\"]+)\"\} (\d+\.?\d*)"
    return {uuid: float(digits) for uuid, digits in re.findall(pattern, page)}


def test_a_metered_gpu_has_the_gauges_that_perf_analyzer_reads(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    boards = SimulatedBoards(tmp_path_factory.mktemp("boards"))
    folder = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    with (
        running_server(
            *("--model", str(folder), "--variants", "fp32", "--threads", "1", "--device", "cpu"),
            *("--meter", "nvml", "--calibration-seconds", "0"),
            program=PROGRAM,
            extra=boards.environment() | {"WATTSERVE_TEST_GPU": H200_UUID.removeprefix("GPU-")},
        ) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        server = Served(running, channel)
        for accept in ("*/*", PROMETHEUS):
            page = server.page(accept)
            assert perf_analyzer_reads(page, "nv_gpu_utilization") == {H200_UUID: 0.41}
            assert perf_analyzer_reads(page, "nv_gpu_memory_used_bytes") == {H200_UUID: 1_500_000_000}
            assert perf_analyzer_reads(page, "nv_gpu_memory_total_bytes") == {H200_UUID: 150_119_383_040}
            ((uuid, watts),) = perf_analyzer_reads(page, "nv_gpu_power_usage").items()
            assert uuid == H200_UUID
            assert 10 < watts < 200
        boards.first.utilization_return = 3  # NVML_ERROR_NOT_SUPPORTED, as with MIG
        page = server.page()
        assert perf_analyzer_reads(page, "nv_gpu_utilization") == {}
        assert perf_analyzer_reads(page, "nv_gpu_power_usage")
        boards.control.stuck = 1  # the driver hangs
        until("a page without the board's figures", lambda: "nv_gpu_" not in server.page())
        assert "wattserve_meter_reads_total" in server.page()
        boards.control.stuck = 0
        until("the board answers again", lambda: "nv_gpu_power_usage" in server.page())
        boards.first.fall_off_the_bus()
        until("a board that is lost says nothing", lambda: "nv_gpu_" not in server.page())
        boards.first.come_back()
        until("and does again", lambda: "nv_gpu_power_usage" in server.page())
        assert running.terminate() == 0
