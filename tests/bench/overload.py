"""`python -m tests.bench.overload`: what a server answers in time when it is offered more than it can do.

Closed loops find what it can do; then requests come at fixed multiples of that, whether or not they are
answered, each with a deadline, from one process whose CPU time is told, because it takes the server's.
Goodput is what was answered within the deadline, counted from when it was due to be sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
import urllib.request
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.fixtures.server import RunningServer, running_server
from wattserve_client.errors import details_in
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

CONNECTIONS = 4
CLOSED_LOOPS = 32
COUNTED = ("wattserve_tokens_total", "wattserve_abandoned_sequences_total", "wattserve_batch_sequences_sum")


@dataclass(frozen=True)
class Point:
    """One load. Durations in seconds, memory in MB."""

    offered_per_s: float
    goodput_per_s: float
    answered_late: int
    codes: dict[str, int]
    refused: dict[str, int]  # by the limit that was met
    p50_s: float | None  # of what was answered, from when it was due
    p99_s: float | None
    retry_after_s: float | None  # the median of what the refused were told
    computed: int  # sequences
    abandoned: int  # of those
    server_cpu_s: float
    client_cpu_s: float
    memory_mb: float  # of the server, at the end


class Caller:
    def __init__(self, address: str, tokens: int) -> None:
        self._channels = [
            grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CONNECTIONS)
        ]
        self._stubs: list[Any] = [pb_grpc.InferenceStub(channel) for channel in self._channels]
        ids = pb.TokenIds(ids=[5 + index % 50 for index in range(tokens)])
        self._request = pb.PredictRequest(tokens=pb.TokenInput(sequences=[ids]))

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def call(self, number: int, left_s: float | None) -> None:
        await self._stubs[number % CONNECTIONS].Predict(self._request, timeout=left_s)

    async def capacity(self, duration_s: float) -> float:
        """Answers per second of closed loops."""
        until_s, answered = time.monotonic() + duration_s, 0

        async def loop(number: int) -> None:
            nonlocal answered
            while time.monotonic() < until_s:
                await self.call(number, None)
                answered += 1

        await asyncio.gather(*(loop(number) for number in range(CLOSED_LOOPS)))
        return answered / duration_s

    async def offer(self, rate: float, duration_s: float, deadline_s: float) -> dict[str, Any]:
        """Open loop, evenly spaced; what is late in being sent has less of its deadline left."""
        codes: Counter[str] = Counter()
        took_s: list[float] = []
        told_s: list[float] = []

        async def one(due_s: float, number: int) -> None:
            left_s = due_s + deadline_s - time.monotonic()
            if left_s <= 0:
                codes["not sent in time"] += 1
                return
            try:
                await self.call(number, left_s)
            except grpc.aio.AioRpcError as error:
                codes[error.code().name] += 1
                retry_s = details_in(error.trailing_metadata()).retry_after_s
                told_s.extend([] if retry_s is None else [retry_s])
            else:
                codes["OK"] += 1
                took_s.append(time.monotonic() - due_s)

        begun_s, sent, open_calls = time.monotonic(), 0, set[asyncio.Task[None]]()
        while (passed_s := time.monotonic() - begun_s) < duration_s:
            while sent < passed_s * rate:
                task = asyncio.create_task(one(begun_s + sent / rate, sent))
                open_calls.add(task)
                task.add_done_callback(open_calls.discard)
                sent += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*open_calls)
        good = [seconds for seconds in took_s if seconds <= deadline_s]
        return {
            "offered_per_s": sent / duration_s,
            "goodput_per_s": len(good) / duration_s,
            "answered_late": len(took_s) - len(good),
            "codes": dict(codes),
            "p50_s": percentile(took_s, 0.5),
            "p99_s": percentile(took_s, 0.99),
            "retry_after_s": statistics.median(told_s) if told_s else None,
        }


def percentile(values: list[float], part: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else None


def counters(server: RunningServer) -> dict[str, float]:
    """Sums over their labels, and refusals by limit."""
    found: dict[str, float] = defaultdict(float)
    with urllib.request.urlopen(server.metrics_url, timeout=30) as page:
        lines = page.read().decode().splitlines()
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.startswith("wattserve_refused_requests_total"):
            found[name.split('"')[1]] += float(value)
        elif name.partition("{")[0] in COUNTED:
            found[name.partition("{")[0]] += float(value)
    return found


def used_s(pid: int) -> float:
    """CPU time of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


async def measured(server: RunningServer, caller: Caller, rate: float, options: argparse.Namespace) -> Point:
    pid = server.process.pid
    before, cpu_s, own_s = counters(server), used_s(pid), used_s(os.getpid())
    told = await caller.offer(rate, options.seconds, options.deadline)
    after, cpu_after_s, own_after_s = counters(server), used_s(pid), used_s(os.getpid())
    gained = {name: round(after[name] - before.get(name, 0)) for name in after}
    abandoned = gained.pop("wattserve_abandoned_sequences_total")
    computed = gained.pop("wattserve_batch_sequences_sum", 0)
    gained.pop("wattserve_tokens_total", None)
    return Point(
        **told,
        refused={name: count for name, count in gained.items() if count},
        computed=computed,
        abandoned=abandoned,
        server_cpu_s=round(cpu_after_s - cpu_s, 1),
        client_cpu_s=round(own_after_s - own_s, 1),
        memory_mb=resident_mb(pid),
    )


def row(point: Point, capacity: float) -> str:
    def ms(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds * 1000:.0f}"

    codes, refused = (", ".join(f"{count} {name}" for name, count in found.items())
                      for found in (point.codes, point.refused))  # fmt: skip
    return (
        f"| {point.offered_per_s / capacity:.1f} | {point.offered_per_s:.0f} | {point.goodput_per_s:.0f} "
        f"| {ms(point.p50_s)} / {ms(point.p99_s)} | {codes} | {refused or '-'} | {ms(point.retry_after_s)} "
        f"| {point.abandoned / max(1, point.computed):.1%} | {point.server_cpu_s} / {point.client_cpu_s} "
        f"| {point.memory_mb:.0f} |"
    )


HEAD = (
    "| x capacity | offered/s | in time/s | p50 / p99 ms | ended | refused by | told to wait, ms "
    "| for nobody | CPU s server / client | MB |\n|---|---|---|---|---|---|---|---|---|---|"
)


async def bench(server: RunningServer, options: argparse.Namespace) -> tuple[float, list[Point]]:
    caller = Caller(server.address, options.tokens)
    await caller.capacity(options.seconds / 2)
    capacity = await caller.capacity(options.seconds)
    print(
        f"capacity: {capacity:.0f}/s, {options.tokens} tokens, deadline {options.deadline:g} s\n\n{HEAD}",
        flush=True,
    )
    points = []
    for times in options.times:
        points.append(await measured(server, caller, times * capacity, options))
        print(row(points[-1], capacity), flush=True)
    await caller.close()
    return capacity, points


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="random:distilbert-base")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--times", type=float, nargs="+", default=[0.8, 1.0, 4.0, 10.0])
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    options = parser.parse_args()
    settings = ("--model", options.model, "--variants", "fp32", "--device", "cpu")
    with running_server(*settings, fresh=True) as server:
        capacity, points = asyncio.run(bench(server, options))
    if options.out:
        found = {
            "capacity_per_s": capacity,
            "cores": os.cpu_count(),
            "points": [asdict(each) for each in points],
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
