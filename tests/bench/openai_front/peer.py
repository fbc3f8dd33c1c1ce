"""This server beside `transformers serve`, on the same weights, by AIPerf, which nobody here wrote."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.client import used_s
from tests.fixtures.ports import free_ports
from tests.fixtures.server import environment, running_server
from wattserve_server.engine.builtin.byte_tokenizer import byte_tokenizer
from wattserve_server.engine.builtin.random_weights import build_random_model

OURS = "this server"
WATTS_A_CORE = 7.5  # as `--meter estimate` has it
PROMPT = 64
# Without the two bounds its cache takes half of the machine's memory.
BATCHING = ("--continuous-batching", "--cb-num-blocks", "128", "--cb-max-batch-tokens", "256")


@dataclass
class Served:
    url: str
    pid: int
    model: str  # as requests name it


@dataclass(frozen=True)
class Run:
    """As AIPerf tells it, but the CPU, in seconds, which is the server's."""

    tokens: float
    tokens_per_s: float
    first_ms: float
    inter_ms: float
    cpu_s_per_token: float


def save(name: str, folder: Path) -> None:
    """A model that ends at no token, so that each answer is as long as it was asked for."""
    model: Any = build_random_model(name)
    tokenizer = byte_tokenizer(model.config)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def ours(folder: Path, variant: str) -> Iterator[Served]:
    flags = ("--model", str(folder), "--variants", variant, "--http-port", "0")
    with running_server(*flags, fresh=True) as server:
        yield Served(server.openai_url.removesuffix("/v1"), server.process.pid, folder.name)


@contextmanager
def theirs(program: str, folder: Path, *flags: str) -> Iterator[Served]:
    (port,) = free_ports(1)
    command = [program, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, *flags], env=environment(), stdout=said, stderr=said, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(240):
                if process.poll() is not None:
                    said.seek(0)
                    raise RuntimeError(said.read().decode()[-4000:])
                if _is_up(url):
                    break
                time.sleep(0.5)
            yield Served(url, process.pid, str(folder))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def measured(aiperf: str, served: Served, folder: Path, args: argparse.Namespace, requests: int) -> Run:
    with tempfile.TemporaryDirectory() as out:
        command = [
            *(aiperf, "profile", "--model", served.model, "--url", served.url, "--streaming"),
            *("--endpoint-type", "completions", "--use-legacy-max-tokens", "--tokenizer", str(folder)),
            *("--concurrency", str(min(requests, args.in_flight)), "--request-count", str(requests)),
            *("--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(args.longest)),
            *("--extra-inputs", "temperature:0", "--random-seed", str(args.seed), "--no-gpu-telemetry"),
            *("--use-server-token-count", "--ui", "none", "--artifact-dir", out),
        ]
        before_s = used_s(served.pid)
        ended = subprocess.run(
            command, env=environment() | {"HF_HUB_OFFLINE": ""}, capture_output=True, text=True, cwd=out
        )
        if ended.returncode:
            raise RuntimeError((ended.stdout + ended.stderr)[-4000:])
        cpu_s = used_s(served.pid) - before_s
        report = json.loads((Path(out) / "profile_export_aiperf.json").read_text())
    tokens = report["total_output_tokens"]["avg"]
    return Run(
        tokens,
        report["output_token_throughput"]["avg"],
        report["time_to_first_token"]["avg"],
        report["inter_token_latency"]["avg"],
        cpu_s / tokens,
    )


def compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / args.model
        save(args.model, folder)
        batching = "transformers serve --continuous-batching"
        ways = {
            OURS: lambda: ours(folder, args.variant),
            batching: lambda: theirs(args.transformers, folder, *BATCHING),
            "transformers serve": lambda: theirs(args.transformers, folder),
        }
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        for number in range(args.rounds):
            names = list(ways)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                with ways[name]() as served:
                    measured(args.aiperf, served, folder, args, 2)  # whose first answer is slower
                    runs[name].append(measured(args.aiperf, served, folder, args, args.requests))
                    print(name, runs[name][-1], flush=True)
    print(f"\n{args.requests} requests of {PROMPT} and {args.longest} tokens, {args.in_flight} in flight")
    print("\n| server | output tokens/s | first token, ms | between tokens, ms | CPU ms a token | est. mJ |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, found in runs.items():
        figures = [
            statistics.median(getattr(run, field) for run in found)
            for field in ("tokens_per_s", "first_ms", "inter_ms", "cpu_s_per_token")
        ]
        cpu_ms = figures.pop() * 1e3
        told = " | ".join(f"{figure:.1f}" for figure in figures)
        print(f"| {name} | {told} | {cpu_ms:.2f} | {cpu_ms * WATTS_A_CORE:.1f} |")
