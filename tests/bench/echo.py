"""`python -m tests.bench.echo`: what the server adds to a call when there is nothing to compute.

An empty grpc.aio server and ours with the variant `echo` (see `echo_server`), each a process of its own, take
turns in every round; the client is this process, on the same cores, with the same bytes for all. Printed are
medians over the rounds, of ratios those of what ran in the same round, with their quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import numpy as np
from numpy.typing import NDArray

from tests.bench.echo_server import ID_BYTES, SERVICE
from tests.bench.speed.machine import cpu_seconds
from tests.fixtures.server import python_path, running_server
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.device import describe_device, resolve_device

NATIVE, OIP = "wattserve.v1.Inference", "inference.GRPCInferenceService"
MODEL = "random:distilbert-tiny"
PROGRAM = ("-m", "tests.bench.echo_server")
FLAGS = ("--model", MODEL, "--variants", "echo", "--no-verify", "--calibration-seconds", "1")
EMPTY, METERED, UNMETERED, OTHER = "empty grpc.aio", "estimate", "no meter", "estimate, the other tree"
GOAL, GOAL_METERED, GOAL_CPU = 0.7, 0.99, 1.5
WARMUP_S = 0.3
MEAN_TOKENS = 28


@dataclass(frozen=True)
class Program:
    """A server to start. tree: a checkout whose server it is, if not this one's."""

    flags: Sequence[str]
    tree: str = ""


@dataclass(frozen=True)
class Server:
    address: str
    is_empty: bool
    pid: int


@dataclass(frozen=True)
class Load:
    """kind: of the calls, for people. path: of our method. concurrency: calls, or messages of one stream, in
    flight."""

    kind: str
    path: str
    concurrency: int
    is_refused: bool = False  # by our server; the empty one answers it

    @property
    def name(self) -> str:
        return f"{self.kind} at {self.concurrency}"

    @property
    def is_stream(self) -> bool:
        return self.path == STREAM


PREDICT, STREAM, INFER = f"/{NATIVE}/Predict", f"/{NATIVE}/PredictStream", f"/{OIP}/ModelInfer"


def metered_programs(against: str = "") -> dict[str, Program]:
    """The empty server, ours, and, where it is named, that of another tree."""
    flags = (*FLAGS, "--meter", "estimate")
    programs = {EMPTY: Program(()), METERED: Program(flags)}
    if against:
        programs[OTHER] = Program(flags, tree=against)
    return programs


def all_programs(against: str = "") -> dict[str, Program]:
    """The same, and our server with other meters."""
    return metered_programs(against) | {
        "simulated, 100 ms": Program((*FLAGS, "--meter", "simulated")),
        UNMETERED: Program((*FLAGS, "--meter", "none")),
    }


@dataclass(frozen=True)
class Turn:
    """One server under one load, once. cpu_us: of the server, per request; the rest in milliseconds."""

    per_second: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


def requests_of(load: Load) -> list[bytes]:
    """Token ids of about the mean length of SST-2, each with an id of its own; one for each call in
    flight."""
    rng = np.random.default_rng(0)
    variant = "none" if load.is_refused else ""
    messages = []
    for index in range(load.concurrency):
        ids, request_id = rng.integers(5, 500, size=MEAN_TOKENS), f"{index:05}"
        if load.path == INFER:
            messages.append(_infer_request(request_id, ids, variant))
        else:
            tokens = pb.TokenInput(sequences=[pb.TokenIds(ids=ids.tolist())])
            request = pb.PredictRequest(request_id=request_id, variant=variant, tokens=tokens)
            messages.append(request.SerializeToString())
    return messages


def _infer_request(request_id: str, ids: NDArray[np.int64], variant: str) -> bytes:
    """As tritonclient makes it: the ids as bytes."""
    name = MODEL.rpartition(":")[2]
    request = oip.ModelInferRequest(
        model_name=f"{name}@{variant}" if variant else name,
        id=request_id,
        inputs=[
            oip.ModelInferRequest.InferInputTensor(name="input_ids", datatype="INT64", shape=[1, len(ids)])
        ],
        raw_input_contents=[ids.astype("<i8").tobytes()],
    )
    return request.SerializeToString()


async def unary(channel: grpc.aio.Channel, path: str, load: Load, seconds: float) -> list[float]:
    """The latency of every call of a closed loop, in seconds."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    end = time.perf_counter() + seconds
    latencies: list[float] = []
    refused = grpc.StatusCode.NOT_FOUND if load.is_refused else None

    async def slot(request: bytes) -> None:
        while (begun := time.perf_counter()) < end:
            try:
                await call(request)
            except grpc.aio.AioRpcError as error:
                if error.code() is not refused:
                    raise
            latencies.append(time.perf_counter() - begun)

    await asyncio.gather(*map(slot, requests_of(load)))
    return latencies


async def stream(channel: grpc.aio.Channel, path: str, load: Load, seconds: float) -> list[float]:
    """As `unary`, over one stream: a reply makes its request go again."""
    start: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
    call = start()
    requests = {request[:ID_BYTES]: request for request in requests_of(load)}
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
    path = f"/{SERVICE}/{load.path.rpartition('/')[2]}" if server.is_empty else load.path
    async with grpc.aio.insecure_channel(server.address) as channel:
        await drive(channel, path, load, WARMUP_S)
        cpu_s, begun = cpu_seconds(server.pid), time.perf_counter()
        latencies = await drive(channel, path, load, seconds)
        took_s, cpu_s = time.perf_counter() - begun, cpu_seconds(server.pid) - cpu_s
    p50, p99 = np.quantile(latencies, (0.5, 0.99))
    return Turn(len(latencies) / took_s, cpu_s * 1e6 / len(latencies), p50 * 1e3, p99 * 1e3)


def measure(
    loads: Sequence[Load], programs: Mapping[str, Program], rounds: int, seconds: float
) -> dict[tuple[str, str], list[Turn]]:
    """By the names of the load and of the server."""
    turns: dict[tuple[str, str], list[Turn]] = {(load.name, name): [] for load in loads for name in programs}
    with ExitStack() as stack:
        servers = {name: _started(program, stack) for name, program in programs.items()}
        for number in range(rounds):
            for load in loads:
                for name in list(servers)[:: 1 if number % 2 else -1]:
                    turn = asyncio.run(take_turn(servers[name], load, seconds))
                    turns[load.name, name].append(turn)
    return turns


def _started(program: Program, stack: ExitStack) -> Server:
    is_empty = not program.flags
    words = (*PROGRAM, "empty") if is_empty else PROGRAM
    path = {"PYTHONPATH": python_path(program.tree)} if program.tree else {}
    running = stack.enter_context(
        running_server(*program.flags, program=words, extra=path, fresh=True, waits_for_all=not is_empty)
    )
    return Server(running.address, is_empty, running.process.pid)


def ratio(above: Sequence[Turn], below: Sequence[Turn]) -> str:
    """Of their rates, round by round: the median, and the quartiles where there are enough of them."""
    return _spread([a.per_second / b.per_second for a, b in zip(above, below, strict=True)])


def cpu_ratio(above: Sequence[Turn], below: Sequence[Turn]) -> str:
    """The same of their servers' CPU time per request."""
    return _spread([a.cpu_us / b.cpu_us for a, b in zip(above, below, strict=True)])


def _spread(ratios: Sequence[float]) -> str:
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def table(turns: Mapping[tuple[str, str], Sequence[Turn]]) -> str:
    head = (
        "load | server | requests/s | of the empty call | of no meter | server CPU, us | of the empty call "
        "| p50, ms | p99, ms"
    )
    lines = [f"| {head} |", "|---" * 9 + "|"]
    for (load, server), found in turns.items():
        unmetered = turns.get((load, UNMETERED))
        cells = [
            load,
            server,
            f"{statistics.median(turn.per_second for turn in found):,.0f}",
            ratio(found, turns[load, EMPTY]),
            "" if server in (EMPTY, UNMETERED) or unmetered is None else ratio(found, unmetered),
            f"{statistics.median(turn.cpu_us for turn in found):.0f}",
            cpu_ratio(found, turns[load, EMPTY]),
            f"{statistics.median(turn.p50_ms for turn in found):.2f}",
            f"{statistics.median(turn.p99_ms for turn in found):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def loads_of(concurrency: int) -> list[Load]:
    """Calls by both protocols, and those that are refused."""
    return [
        Load("Predict", PREDICT, concurrency),
        Load("ModelInfer", INFER, concurrency),
        Load("Predict that is refused", PREDICT, concurrency, is_refused=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.echo", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--against", default="", metavar="DIR", help="another checkout: its server as well")
    parser.add_argument("--calls", action="store_true", help="unary calls with the usual meter alone")
    options = parser.parse_args()
    loads = loads_of(options.concurrency)
    if not options.calls:
        loads.append(Load("a stream", STREAM, options.concurrency))
        loads.append(Load("Predict", PREDICT, 1))
    programs = (metered_programs if options.calls else all_programs)(options.against)
    turns = measure(loads, programs, options.rounds, options.seconds)
    machine = describe_device(resolve_device("cpu"))
    print(f"{machine}, grpc {grpc.__version__}; {options.rounds} rounds of {options.seconds:g} s\n")
    print(table(turns))
    print(
        f"\ngoals: {loads[0].name}, {METERED}: {GOAL:g} of the empty call's rate, {GOAL_METERED:g} of no "
        f"meter's; server CPU at most {GOAL_CPU:g} times the empty call's"
    )


if __name__ == "__main__":
    main()
