"""What a second lane, a second server, or a second replica under Ray brings: answers per second, CPU and
joules a request.

    python -m tests.bench.growth [--rounds N] [--seconds S] [--tokens N]
    build/ray/bin/python -m tests.bench.growth --ray      (its environment: make build/ray/.ready)

Servers of each kind run side by side and are loaded by turns: whatever else the machine does meets all alike.
With --ray one lane is held beside one replica, then beside two, since a machine has one Ray. CPU is of all
processes of a kind (Ray's own too), less what they use at rest. Joules are the ledgers': estimated from the
CPU time of servers and replicas, idle watts as that estimate declares them. No ledger has Ray's ingress.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.client import Caller, used_s
from tests.fixtures.server import RunningServer, running_server
from tests.ray_serve.serving import Ray, running
from wattserve_client import Client

COMMON = ("--model", "demo", "--variants", "fp32", "--meter", "estimate")
ONE = "one lane of one thread"
KINDS: dict[str, tuple[Sequence[str], int]] = {  # flags, and how many such servers
    ONE: (("--device", "cpu", "--threads", "1"), 1),
    "two lanes of one thread": (("--device", "cpu:0,cpu:1", "--threads", "1"), 1),
    "one lane of two threads": (("--device", "cpu", "--threads", "2"), 1),
    "two servers of one thread": (("--device", "cpu", "--threads", "1"), 2),
}
REPLICAS = {"one Ray replica": 1, "two Ray replicas": 2}
SETTLING_S = 2.0


@dataclass
class Kind:
    """addresses: each gets closed loops of its own. ledgers: of the servers whose joules are summed."""

    addresses: Sequence[str]
    ledgers: Sequence[str]
    pids: Callable[[], list[int]]
    per_second: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # a request
    active_mj: list[float] = field(default_factory=list)  # a request
    idle_mj: list[float] = field(default_factory=list)

    def used_s(self) -> float:
        total = 0.0
        for pid in self.pids():
            try:
                total += used_s(pid)
            except OSError:  # it has ended meanwhile
                continue
        return total


def of_servers(servers: Sequence[RunningServer]) -> Kind:
    addresses = [server.address for server in servers]
    return Kind(addresses, addresses, lambda: [server.process.pid for server in servers])


def of_ray(ray: Ray, replicas: int) -> Kind:
    own = os.getpid()
    return Kind(
        [ray.address] * replicas, [ray.address], lambda: [pid for pid in ray.processes() if pid != own]
    )


async def loaded(kind: Kind, seconds: float, tokens: int) -> None:
    """One round: closed loops against all its servers at once."""
    callers = [Caller(address, tokens) for address in kind.addresses]
    try:
        used_before, begun = kind.used_s(), time.monotonic()
        await asyncio.sleep(SETTLING_S)
        rest = (kind.used_s() - used_before) / (time.monotonic() - begun)
        used_before, begun = kind.used_s(), time.monotonic()
        before = [joules(address) for address in kind.ledgers]
        rates = await asyncio.gather(*(caller.capacity(seconds) for caller in callers))
        await asyncio.sleep(SETTLING_S)
    finally:
        for caller in callers:
            await caller.close()
    answers = sum(rates) * seconds
    after = [joules(address) for address in kind.ledgers]
    passed_s = time.monotonic() - begun
    cpu_s = kind.used_s() - used_before - rest * passed_s
    active_uj, idle_uj = (
        sum(now[part] - then[part] for now, then in zip(after, before, strict=True)) for part in (0, 1)
    )
    kind.per_second.append(sum(rates))
    kind.cpu_us.append(cpu_s * 1e6 / answers)
    kind.active_mj.append(active_uj / answers / 1e3)
    # What is idle while it settles is not of the load: by time.
    kind.idle_mj.append(idle_uj * seconds / passed_s / answers / 1e3)


def joules(address: str) -> tuple[int, int]:
    """Active and idle microjoules so far, of all its devices; of all replicas."""
    with Client(address) as client:
        report = client.energy_report()
    ledgers = {ledger.device: ledger for ledger in (report, *report.other_devices)}.values()
    active = sum(energy.active_uj or 0 for ledger in ledgers for energy in ledger.active)
    return active, sum(ledger.idle_uj or 0 for ledger in ledgers)


def by_turns(kinds: Mapping[str, Kind], rounds: int, seconds: float, tokens: int) -> None:
    """Loads them, and prints a line for each; the first is what the others are held against."""
    for number in range(rounds):
        order = list(kinds)
        random.Random(number).shuffle(order)
        for name in order:
            asyncio.run(loaded(kinds[name], seconds, tokens))
    base = next(iter(kinds.values()))
    for name, kind in kinds.items():
        ratios = [own / other for own, other in zip(kind.per_second, base.per_second, strict=True)]
        print(
            f"{name:28}{statistics.median(kind.per_second):10.0f}{statistics.median(ratios):10.2f}"
            f"{statistics.median(kind.cpu_us):9.0f}{statistics.median(kind.active_mj):11.2f}"
            f"{statistics.median(kind.idle_mj):9.2f}",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ray", action="store_true", help="replicas under Ray instead")
    asked = parser.parse_args(argv)
    how = asked.rounds, asked.seconds, asked.tokens
    print(f"{'':28}{'answers/s':>10}{'over one':>10}{'CPU us':>9}{'active mJ':>11}{'idle mJ':>9}")

    def servers(stack: ExitStack, name: str) -> Kind:
        flags, count = KINDS[name]
        made = [stack.enter_context(running_server(*COMMON, *flags, fresh=True)) for _ in range(count)]
        return of_servers(made)

    if not asked.ray:
        with ExitStack() as stack:
            by_turns({name: servers(stack, name) for name in KINDS}, *how)
        return
    for name, count in REPLICAS.items():
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            one = servers(stack, ONE)
            ray = stack.enter_context(running(folder, count, variants="fp32", meter="estimate", threads=1))
            by_turns({ONE: one, name: of_ray(ray, count)}, *how)


if __name__ == "__main__":
    main()
