"""`python -m tests.bench.overload`: what a server answers in time when it is offered more than it can do.

Closed loops find what it can do; then requests come at fixed multiples of that, whether or not they are
answered, each with a deadline, from one process whose CPU time is told, because it takes the server's.
Goodput is what was answered within the deadline, counted from when it was due to be sent. Then who floods
meets who does not (`fairness`); not where a language model generates (`--new-tokens`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import urllib.request
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench import fairness
from tests.bench.client import Caller, used_s
from tests.fixtures.server import RunningServer, running_server

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
    caller = Caller(server.address, options.tokens, new_tokens=options.new_tokens)
    await caller.capacity(options.seconds / 2)
    capacity = await caller.capacity(options.seconds)
    asked = f"{options.tokens} tokens" + f" and {options.new_tokens} new ones" * bool(options.new_tokens)
    print(f"capacity: {capacity:.1f}/s, {asked}, deadline {options.deadline:g} s\n\n{HEAD}", flush=True)
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
    parser.add_argument("--new-tokens", type=int, default=0, help="that a language model generates")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds")
    parser.add_argument("--threads", type=int, default=0, help="of the server, that compute; 0: as it does")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--times", type=float, nargs="+", default=[0.8, 1.0, 4.0, 10.0])
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    options = parser.parse_args()
    model = ("--model", options.model, "--variants", "fp32", "--device", "cpu")
    settings = (*model, "--threads", str(options.threads))
    with running_server(*settings, fresh=True) as server:
        capacity, points = asyncio.run(bench(server, options))
        shared = (
            []
            if options.new_tokens
            else fairness.bench(server, capacity, options.tokens, options.seconds, options.deadline)
        )
    if options.out:
        found = {
            "capacity_per_s": capacity,
            "cores": os.cpu_count(),
            "points": [asdict(each) for each in points],
            "fairness": [asdict(each) for each in shared],
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
