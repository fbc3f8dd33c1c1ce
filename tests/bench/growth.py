"""What a second lane, or a second server, brings: answers per second, CPU and joules a request.

    python -m tests.bench.growth [--rounds N] [--seconds S] [--tokens N]

Servers of each kind run side by side and are loaded by turns: whatever else the machine does meets all alike.
Joules are estimated from CPU time, idle draw included: so idle watts are those that the estimate declares.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.bench.client import Caller, used_s
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client

COMMON = ("--model", "demo", "--variants", "fp32", "--meter", "estimate")
KINDS: dict[str, tuple[Sequence[str], int]] = {  # flags, and how many such servers
    "one lane of one thread": (("--device", "cpu", "--threads", "1"), 1),
    "two lanes of one thread": (("--device", "cpu:0,cpu:1", "--threads", "1"), 1),
    "one lane of two threads": (("--device", "cpu", "--threads", "2"), 1),
    "two servers of one thread": (("--device", "cpu", "--threads", "1"), 2),
}
SETTLING_S = 2.0


@dataclass
class Kind:
    servers: list[RunningServer]
    per_second: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # of the servers, a request
    active_mj: list[float] = field(default_factory=list)  # a request
    idle_mj: list[float] = field(default_factory=list)


async def loaded(kind: Kind, seconds: float, tokens: int) -> None:
    """One round: closed loops against all its servers at once."""
    callers = [Caller(server.address, tokens) for server in kind.servers]
    try:
        before = [(used_s(server.process.pid), joules(server)) for server in kind.servers]
        rates = await asyncio.gather(*(caller.capacity(seconds) for caller in callers))
        await asyncio.sleep(SETTLING_S)
    finally:
        for caller in callers:
            await caller.close()
    answers = sum(rates) * seconds
    active_uj = idle_uj = cpu_s = 0.0
    for server, (used_before, (active_before, idle_before)) in zip(kind.servers, before, strict=True):
        active, idle = joules(server)
        active_uj += active - active_before
        # What is idle while it settles is not of the load: by time.
        idle_uj += (idle - idle_before) * seconds / (seconds + SETTLING_S)
        cpu_s += used_s(server.process.pid) - used_before
    kind.per_second.append(sum(rates))
    kind.cpu_us.append(cpu_s * 1e6 / answers)
    kind.active_mj.append(active_uj / answers / 1e3)
    kind.idle_mj.append(idle_uj / answers / 1e3)


def joules(server: RunningServer) -> tuple[int, int]:
    """Active and idle microjoules so far, of all its devices."""
    with Client(server.address) as client:
        report = client.energy_report()
    ledgers = {ledger.device: ledger for ledger in (report, *report.other_devices)}.values()
    active = sum(energy.active_uj or 0 for ledger in ledgers for energy in ledger.active)
    return active, sum(ledger.idle_uj or 0 for ledger in ledgers)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args(argv)
    with ExitStack() as stack:
        kinds = {
            name: Kind(
                [stack.enter_context(running_server(*COMMON, *flags, fresh=True)) for _ in range(count)]
            )
            for name, (flags, count) in KINDS.items()
        }
        for number in range(asked.rounds):
            order = list(kinds)
            random.Random(number).shuffle(order)
            for name in order:
                asyncio.run(loaded(kinds[name], asked.seconds, asked.tokens))
    base = next(iter(kinds.values()))
    print(f"{'':28}{'answers/s':>10}{'over one':>10}{'CPU us':>9}{'active mJ':>11}{'idle mJ':>9}")
    for name, kind in kinds.items():
        ratios = [own / other for own, other in zip(kind.per_second, base.per_second, strict=True)]
        print(
            f"{name:28}{statistics.median(kind.per_second):10.0f}{statistics.median(ratios):10.2f}"
            f"{statistics.median(kind.cpu_us):9.0f}{statistics.median(kind.active_mj):11.2f}"
            f"{statistics.median(kind.idle_mj):9.2f}"
        )


if __name__ == "__main__":
    main()
