"""What a caller with a few calls a second waits beside others who behave, and beside a flood: of `overload`.

The victim, the others and the flood are processes, whose CPU time is told, because it takes the server's. On
the loopback each of their connections is a caller. All come at random.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.bench.client import Caller, used_s
from tests.fixtures.server import RunningServer

VICTIM_RATE = 10.0  # calls a second; on a slow machine as small a part of what the server can do as
VICTIM_PART = 1 / 11  # ten are of the 110 a second that the goals were set for
SETTLING_S = 2.0  # for which all run before they count


class Client(NamedTuple):
    """A process. rate: of all its connections together."""

    name: str
    rate: float
    connections: int


@dataclass(frozen=True)
class Scene:
    """What the victim saw. Durations in seconds."""

    beside: str
    offered_per_s: float  # by the others
    answered_per_s: float  # of theirs
    victim_codes: dict[str, int]
    other_codes: dict[str, int]
    p50_s: float | None
    p99_s: float | None
    server_cpu_s: float
    client_cpu_s: float


def run_client(
    client: Client, address: str, tokens: int, seconds: float, deadline_s: float
) -> dict[str, Any]:
    """In a process of its own: what `Caller.offer` tells, and its CPU time."""

    async def offer() -> dict[str, Any]:
        caller, draws = Caller(address, tokens, client.connections), random.Random(client.name)
        await caller.offer(client.rate, SETTLING_S, deadline_s, draws)
        begun_s = used_s(os.getpid())
        told = await caller.offer(client.rate, seconds, deadline_s, draws)
        await caller.close()
        return {**told, "cpu_s": used_s(os.getpid()) - begun_s}

    return asyncio.run(offer())


def scene(
    server: RunningServer,
    beside: str,
    clients: tuple[Client, Client],  # the victim, and the others
    tokens: int,
    seconds: float,
    deadline_s: float,
) -> Scene:
    with ProcessPoolExecutor(len(clients), multiprocessing.get_context("spawn")) as processes:
        cpu_s = used_s(server.process.pid)
        told = [
            processes.submit(run_client, client, server.address, tokens, seconds, deadline_s)
            for client in clients
        ]
        victim, other = (each.result() for each in told)
        cpu_s = used_s(server.process.pid) - cpu_s
    return Scene(
        beside,
        other["offered_per_s"],
        other["codes"].get("OK", 0) / seconds,
        victim["codes"],
        other["codes"],
        victim["p50_s"],
        victim["p99_s"],
        round(cpu_s, 1),
        round(victim["cpu_s"] + other["cpu_s"], 1),
    )


HEAD = (
    "| victim beside | offered/s | answered/s | victim p50 / p99 ms | to the first | victim's calls ended "
    "| the others' | CPU s server / clients |\n|---|---|---|---|---|---|---|---|"
)


def row(found: Scene, first: Scene) -> str:
    p50, p99 = ("-" if value is None else f"{value * 1000:.0f}" for value in (found.p50_s, found.p99_s))
    ratio = f"{found.p99_s / first.p99_s:.2f}" if found.p99_s and first.p99_s else "-"
    codes = (
        ", ".join(f"{count} {name}" for name, count in of.items())
        for of in (found.victim_codes, found.other_codes)
    )
    return (
        f"| {found.beside} | {found.offered_per_s:.0f} | {found.answered_per_s:.0f} | {p50} / {p99} "
        f"| {ratio} | {' | '.join(codes)} | {found.server_cpu_s} / {found.client_cpu_s} |"
    )


def bench(
    server: RunningServer, capacity: float, tokens: int, seconds: float, deadline_s: float
) -> Sequence[Scene]:
    scenes: list[Scene] = []
    victim = Client("victim", min(VICTIM_RATE, VICTIM_PART * capacity), 1)
    print(f"\nthe victim asks {victim.rate:.1f} times a second\n\n{HEAD}", flush=True)
    for beside, others in (
        ("four who behave, 80 % load", Client("others", 0.8 * capacity - victim.rate, 4)),
        ("a flood, one connection", Client("flood", 10 * capacity, 1)),
        ("a flood, two connections", Client("flood", 10 * capacity, 2)),
    ):
        scenes.append(scene(server, beside, (victim, others), tokens, seconds, deadline_s))
        print(row(scenes[-1], scenes[0]), flush=True)
    return scenes
