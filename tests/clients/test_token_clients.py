"""AIPerf and guidellm against the front for OpenAI's clients: they stream, and count as the server counts."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fixtures.meter_fakes import H200_UUID
from tests.fixtures.server import RunningServer, environment, running_server
from tests.fixtures.simulated_board import PROGRAM, SimulatedBoards
from wattserve_server.engine.builtin.demo_llm import demo_llm_folder

REQUESTS, PROMPT, OUTPUT, IN_FLIGHT = 20, 20, 16, 4


def program(variable: str) -> str:
    named = os.environ.get(variable, "")
    if not named:
        pytest.skip(f"{variable} names no program (tests/clients/get_token_clients.sh gets it)")
    return str(Path(named).absolute())


@pytest.fixture(scope="module")
def aiperf() -> str:
    return program("WATTSERVE_AIPERF")


@pytest.fixture(scope="module")
def guidellm() -> str:
    return program("WATTSERVE_GUIDELLM")


@pytest.fixture(scope="module")
def model() -> Iterator[RunningServer]:
    quick = ("--variants", "fp32", "--threads", "1", "--meter", "simulated", "--calibration-seconds", "0")
    with running_server("--model", "demo-llm", *quick, "--http-port", "0") as running:
        yield running


@pytest.fixture(scope="module")
def gpu_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """As `model`, metered by the simulated NVML board, which it tells as DCGM does."""
    boards = SimulatedBoards(tmp_path_factory.mktemp("board"))
    quick = ("--variants", "fp32", "--threads", "1", "--device", "cpu", "--calibration-seconds", "0")
    metered = ("--meter", "nvml", "--dcgm-metrics", "--http-port", "0")
    with running_server(
        "--model", "demo-llm", *quick, *metered, program=PROGRAM, extra=boards.environment()
    ) as running:
        yield running


def totals(server: RunningServer) -> Callable[..., float]:
    """Of /metrics as it is now: the sum of a name's samples with these labels."""
    with urllib.request.urlopen(server.metrics_url) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = [sample for family in families for sample in family.samples]

    def total(name: str, **labels: str) -> float:
        return sum(
            each.value for each in samples if each.name == name and labels.items() <= each.labels.items()
        )

    return total


def counted(server: RunningServer) -> dict[str, float]:
    """So far: requests that were answered, the tokens of their answers, the times to a first one."""
    total = totals(server)
    return {
        "requests": total("wattserve_requests_total", code="OK"),
        "tokens": total("wattserve_output_tokens_total"),
        "first": total("wattserve_time_to_first_token_seconds_sum"),
    }


def run(command: list[str], folder: Path, **variables: str) -> None:
    ended = subprocess.run(
        command, cwd=folder, env=environment() | variables, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]


def test_aiperf_measures_a_stream(aiperf: str, model: RunningServer, tmp_path: Path) -> None:
    before = counted(model)
    # With the hub offline AIPerf 0.13 takes no folder for its tokenizer.
    run(
        [
            *(aiperf, "profile", "--model", "demo-llm", "--url", model.openai_url.removesuffix("/v1")),
            *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(demo_llm_folder())),
            *("--concurrency", str(IN_FLIGHT), "--request-count", str(REQUESTS)),
            *("--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(OUTPUT)),
            *("--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--no-gpu-telemetry"),
            *("--ui", "none", "--artifact-dir", str(tmp_path / "out")),
        ],
        tmp_path,
        HF_HUB_OFFLINE="",
    )
    report = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    after = counted(model)
    assert report["request_count"]["avg"] == after["requests"] - before["requests"] == REQUESTS
    assert report["total_output_tokens"]["avg"] == after["tokens"] - before["tokens"] == REQUESTS * OUTPUT
    own_ms = (after["first"] - before["first"]) / REQUESTS * 1e3  # without the way to the client
    assert report["time_to_first_token"]["avg"] >= own_ms


def test_aiperf_reads_the_energy_that_the_ledger_has(
    aiperf: str, gpu_model: RunningServer, tmp_path: Path
) -> None:
    # Of each page, what the board has counted and what the ledger had measured then, which may know it later.
    pages: list[tuple[float, float]] = []
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(0.02):
            total = totals(gpu_model)
            count_j = total("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total") / 1e3
            pages.append((count_j, total("wattserve_energy_measured_joules_total")))

    following = threading.Thread(target=follow)
    following.start()
    try:
        run(
            [
                *(aiperf, "profile", "--model", "demo-llm"),
                *("--url", gpu_model.openai_url.removesuffix("/v1")),
                *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(demo_llm_folder())),
                *("--concurrency", str(IN_FLIGHT), "--benchmark-duration", "25"),  # a page a second
                *("--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", "64"),
                *("--extra-inputs", "ignore_eos:true", "--use-server-token-count"),
                *("--gpu-telemetry", gpu_model.metrics_url),
                *("--ui", "none", "--artifact-dir", str(tmp_path / "out")),
            ],
            tmp_path,
            HF_HUB_OFFLINE="",
        )
    finally:
        ended.set()
        following.join()
    report = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    ((gpu,),) = ([*of["gpus"].values()] for of in report["telemetry_data"]["endpoints"].values())
    told = gpu["metrics"]["nvidia_energy_consumption"]
    assert told["unit"] == "MJ"
    assert (gpu["gpu_index"], gpu["gpu_uuid"], gpu["gpu_name"]) == (0, H200_UUID, "Simulated board")
    lines = (tmp_path / "out" / "gpu_telemetry_export.jsonl").read_text().splitlines()
    counts = [json.loads(line)["telemetry_data"]["nvidia_energy_consumption"] for line in lines]
    # Its figure is the difference of two of its records: the last before the first request, the last in time.
    assert min(abs(late - early - told["avg"]) for early, late in combinations(counts, 2)) < 1e-9
    # Between any two instants the ledger measures what the board counts: it is as far behind at the end as at
    # the beginning, to what the board draws while a page is made and the ledger has not read it yet.
    count_j, measured_j = np.array(sorted(set(pages))).T
    assert count_j[0] / 1e6 <= counts[0]
    assert counts[-1] <= count_j[-1] / 1e6
    early_j, late_j = np.array_split(count_j - measured_j, 2)
    assert len(early_j) > 10
    assert np.min(early_j) == pytest.approx(np.min(late_j), abs=0.02 * (count_j[-1] - count_j[0]))


def test_guidellm_measures_a_stream(guidellm: str, model: RunningServer, tmp_path: Path) -> None:
    before = counted(model)
    backend = f"target={model.openai_url},model=demo-llm,request_format=/v1/completions"
    run(
        [
            *(guidellm, "run", "--backend", f"kind=openai_http,{backend}"),
            *("--profile", f"kind=concurrent,streams={IN_FLIGHT}"),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--tokenizer", f"kind=hf_auto,model={demo_llm_folder()}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}"),
            *("--output", f"kind=json,path={tmp_path / 'out.json'}", "--disable-console"),
        ],
        tmp_path,
    )
    benchmark = json.loads((tmp_path / "out.json").read_text())["benchmarks"][0]
    after = counted(model)
    answered: list[Any] = benchmark["requests"]["successful"]
    assert not benchmark["requests"]["errored"]
    assert len(answered) == after["requests"] - before["requests"] == REQUESTS
    told = benchmark["metrics"]["output_token_count"]["successful"]["total_sum"]
    assert round(told) == after["tokens"] - before["tokens"] == REQUESTS * OUTPUT
