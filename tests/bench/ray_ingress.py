"""What Ray's ingress costs a call: CPU seconds of all processes per call, beside one bare server, by turns.

    build/ray/bin/python -m tests.bench.ray_ingress [--calls 1500] [--rounds 3] [--in-flight 8]

Both serve the demo model in fp32 with the simulated meter, one thread each; the same process sends the same
texts, its own CPU time apart. Ray has its two replicas, its ingress, its controller and what else it runs:
what they use while nothing is asked is measured before, and taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fixtures.server import running_server
from tests.ray_serve.serving import running
from wattserve_client import AsyncClient

TEXT = "a delightful film"
TICKS = os.sysconf("SC_CLK_TCK")
SETTINGS: dict[str, Any] = {"variants": "fp32", "meter": "simulated", "threads": 1}


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of these processes."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


async def _send(address: str, calls: int, in_flight: int) -> None:
    left = iter(range(calls))
    async with AsyncClient(address) as client:

        async def ask() -> None:
            for _ in left:
                await client.predict(TEXT)

        await asyncio.gather(*(ask() for _ in range(in_flight)))


def measured(address: str, pids: Callable[[], list[int]], calls: int, in_flight: int) -> tuple[float, float]:
    """Microseconds of CPU per call above rest, and calls a second."""
    asyncio.run(_send(address, 50, in_flight))
    used_s = cpu_seconds(pids())
    begun_s = time.perf_counter()
    time.sleep(3)
    rest = (cpu_seconds(pids()) - used_s) / (time.perf_counter() - begun_s)
    used_s = cpu_seconds(pids())
    begun_s = time.perf_counter()
    asyncio.run(_send(address, calls, in_flight))
    took_s = time.perf_counter() - begun_s
    return (cpu_seconds(pids()) - used_s - rest * took_s) / calls * 1e6, calls / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=8)
    args = parser.parse_args()
    flags = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
    told: dict[str, list[tuple[float, float]]] = {"bare": [], "ray": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(*flags, fresh=True) as bare,
        running(Path(folder), **SETTINGS) as ray,
    ):
        sides = (("bare", bare.address, lambda: [bare.process.pid]), ("ray", ray.address, ray.processes))
        for _ in range(args.rounds):
            for name, address, pids in sides:
                cpu_us, rate = measured(address, pids, args.calls, args.in_flight)
                told[name].append((cpu_us, rate))
                print(f"{name}: {cpu_us:.0f} us of CPU per call, {rate:.0f} calls/s", flush=True)
    medians = {name: statistics.median(cpu for cpu, _ in rounds) for name, rounds in told.items()}
    print(f"{medians['ray'] / medians['bare']:.1f} times the CPU of a bare server per call")


if __name__ == "__main__":
    main()
