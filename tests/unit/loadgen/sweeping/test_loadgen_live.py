"""The running cell as Prometheus metrics."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from tests.fixtures.loadgen_results import FP32, make_cell
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.plan.schedule import cells, make_plan
from wattserve_loadgen.sweeping.live import LiveMetrics
from wattserve_loadgen.sweeping.progress import Tick

CELLS = cells(make_plan("look", [FP32], loads=[closed(4)]))
ARM = 'arm="fp32",load="concurrency 4"'


def scraped(live: LiveMetrics) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{live.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if not line.startswith("#") and "_created" not in line]


def test_the_running_cell_is_there_while_it_runs_and_gone_after() -> None:
    live = LiveMetrics(0)
    try:
        live.begin(CELLS)
        live.cell_started(CELLS[1])
        live.tick(Tick(500.0, 2_000_000, 9_000_000, 50.0))
        during = scraped(live)
        live.cell_done(CELLS[1], make_cell(answered=90, failed=2))
        live.end()
        after = scraped(live)
    finally:
        live.close()
    for line in (
        'wattserve_loadgen_cell_info{arm="fp32",block="1",load="concurrency 4"} 1.0',
        f"wattserve_loadgen_answers_per_second{{{ARM}}} 500.0",
        f'wattserve_loadgen_latency_seconds{{{ARM},quantile="0.5"}} 0.002',
        f'wattserve_loadgen_latency_seconds{{{ARM},quantile="0.99"}} 0.009',
        f"wattserve_loadgen_power_watts{{{ARM}}} 50.0",
        f"wattserve_loadgen_joules_per_request{{{ARM}}} 0.1",
        "wattserve_loadgen_cells_planned 4.0",
    ):
        assert line in during
    assert sorted(after) == [
        "wattserve_loadgen_cells_done 2.0",
        "wattserve_loadgen_cells_planned 4.0",
        f'wattserve_loadgen_requests_total{{{ARM},outcome="answered"}} 90.0',
        f'wattserve_loadgen_requests_total{{{ARM},outcome="failed"}} 2.0',
    ]


def test_a_cell_that_warms_up_has_no_rate_and_no_latency() -> None:
    live = LiveMetrics(0)
    try:
        live.cell_started(CELLS[0])
        live.tick(Tick(None, None, None, None))
        found = scraped(live)
    finally:
        live.close()
    assert 'wattserve_loadgen_cell_info{arm="fp32",block="heat-up",load="concurrency 4"} 1.0' in found
    assert not any("per_second" in line or "latency" in line for line in found)


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PlanError) as caught:
            LiveMetrics(port)
    assert str(caught.value) == f"--metrics-port {port}: cannot be had (Address already in use); name another"
