"""`python -m tests.bench.echo`: what the server adds to a call when there is nothing to compute.

An empty grpc.aio server and ours with the variant `echo` (see `echo_server`), each a process of its own, take
turns in every round; the client is this process, on the same cores, with the same bytes for all. Printed are
medians over the rounds, of ratios those of what ran in the same round, with their quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import numpy as np

from tests.bench.echo_server import ID_BYTES, SERVICE
from tests.fixtures.server import running_server
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.device import describe_device, resolve_device

OURS = "wattserve.v1.Inference"
MODEL = "random:distilbert-tiny"
PROGRAM = ("-m", "tests.bench.echo_server")
FLAGS = ("--model", MODEL, "--variants", "echo", "--no-verify", "--calibration-seconds", "1")
EMPTY, METERED, UNMETERED = "empty grpc.aio", "estimate", "no meter"
SERVERS = {
    EMPTY: (),
    METERED: (*FLAGS, "--meter", "estimate"),
    "simulated, 100 ms": (*FLAGS, "--meter", "simulated"),
    UNMETERED: (*FLAGS, "--meter", "none"),
}
GOAL, GOAL_METERED = 0.7, 0.99
WARMUP_S = 0.3
MEAN_TOKENS = 28


@dataclass(frozen=True)
class Server:
    address: str
    service: str
    pid: int


@dataclass(frozen=True)
class Load:
    """concurrency: calls, or messages of one stream, in flight."""

    name: str
    is_stream: bool
    concurrency: int


@dataclass(frozen=True)
class Turn:
    """One server under one load, once. cpu_us: of the server, per request; the rest in milliseconds."""

    per_second: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


def requests_of(number: int) -> list[bytes]:
    """Token ids of about the mean length of SST-2, each with an id of its own."""
    rng = np.random.default_rng(0)
    messages = []
    for index in range(number):
        sequence = pb.TokenIds(ids=rng.integers(5, 500, size=MEAN_TOKENS).tolist())
        tokens = pb.TokenInput(sequences=[sequence])
        messages.append(pb.PredictRequest(request_id=f"{index:05}", tokens=tokens).SerializeToString())
    return messages


def cpu_seconds(pid: int) -> float:
    """Of a process and all its threads, user and system."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def unary(channel: grpc.aio.Channel, service: str, load: Load, seconds: float) -> list[float]:
    """The latency of every call of a closed loop, in seconds."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{service}/Predict")
    end = time.perf_counter() + seconds
    latencies: list[float] = []

    async def slot(request: bytes) -> None:
        while (begun := time.perf_counter()) < end:
            await call(request)
            latencies.append(time.perf_counter() - begun)

    await asyncio.gather(*map(slot, requests_of(load.concurrency)))
    return latencies


async def stream(channel: grpc.aio.Channel, service: str, load: Load, seconds: float) -> list[float]:
    """As `unary`, over one stream: a reply makes its request go again."""
    start: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
        f"/{service}/PredictStream"
    )
    call = start()
    requests = {request[:ID_BYTES]: request for request in requests_of(load.concurrency)}
    begun: dict[bytes, float] = {}
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    for key, request in requests.items():
        begun[key] = time.perf_counter()
        await call.write(request)
    while begun:
        reply = await call.read()
        now = time.perf_counter()
        assert isinstance(reply, bytes), "the server ended the stream"
        key = reply[:ID_BYTES]
        latencies.append(now - begun.pop(key))
        if now < end:
            begun[key] = now
            await call.write(requests[key])
    await call.done_writing()
    return latencies


async def take_turn(server: Server, load: Load, seconds: float) -> Turn:
    drive = stream if load.is_stream else unary
    async with grpc.aio.insecure_channel(server.address) as channel:
        await drive(channel, server.service, load, WARMUP_S)
        cpu_s, begun = cpu_seconds(server.pid), time.perf_counter()
        latencies = await drive(channel, server.service, load, seconds)
        took_s, cpu_s = time.perf_counter() - begun, cpu_seconds(server.pid) - cpu_s
    p50, p99 = np.quantile(latencies, (0.5, 0.99))
    return Turn(len(latencies) / took_s, cpu_s * 1e6 / len(latencies), p50 * 1e3, p99 * 1e3)


def measure(loads: Sequence[Load], rounds: int, seconds: float) -> dict[tuple[str, str], list[Turn]]:
    """By the names of the load and of the server."""
    turns: dict[tuple[str, str], list[Turn]] = {(load.name, name): [] for load in loads for name in SERVERS}
    with ExitStack() as stack:
        servers = {}
        for name, flags in SERVERS.items():
            is_empty = name == EMPTY
            program = (*PROGRAM, "empty") if is_empty else PROGRAM
            running = stack.enter_context(
                running_server(*flags, program=program, fresh=True, waits_for_all=not is_empty)
            )
            service = SERVICE if is_empty else OURS
            servers[name] = Server(running.address, service, running.process.pid)
        for number in range(rounds):
            for load in loads:
                for name in list(servers)[:: 1 if number % 2 else -1]:
                    turn = asyncio.run(take_turn(servers[name], load, seconds))
                    turns[load.name, name].append(turn)
    return turns


def ratio(above: Sequence[Turn], below: Sequence[Turn]) -> str:
    """Of their rates, round by round: the median, and the quartiles where there are enough of them."""
    ratios = [a.per_second / b.per_second for a, b in zip(above, below, strict=True)]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def table(turns: dict[tuple[str, str], list[Turn]]) -> str:
    head = "load | server | requests/s | of the empty call | of no meter | server CPU, us | p50, ms | p99, ms"
    lines = [f"| {head} |", "|---" * 8 + "|"]
    for (load, server), found in turns.items():
        cells = [
            load,
            server,
            f"{statistics.median(turn.per_second for turn in found):,.0f}",
            ratio(found, turns[load, EMPTY]),
            "" if server in (EMPTY, UNMETERED) else ratio(found, turns[load, UNMETERED]),
            f"{statistics.median(turn.cpu_us for turn in found):.0f}",
            f"{statistics.median(turn.p50_ms for turn in found):.2f}",
            f"{statistics.median(turn.p99_ms for turn in found):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.echo", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--concurrency", type=int, default=64)
    options = parser.parse_args()
    loads = [
        Load(f"unary at {options.concurrency}", False, options.concurrency),
        Load(f"a stream at {options.concurrency}", True, options.concurrency),
        Load("unary at 1", False, 1),
    ]
    turns = measure(loads, options.rounds, options.seconds)
    machine = describe_device(resolve_device("cpu"))
    print(f"{machine}, grpc {grpc.__version__}; {options.rounds} rounds of {options.seconds:g} s\n")
    print(table(turns))
    unary_at_most = loads[0].name
    print(f"\ngoals: {unary_at_most}, {METERED}: {GOAL:g} of the empty call, {GOAL_METERED:g} of no meter")


if __name__ == "__main__":
    main()
