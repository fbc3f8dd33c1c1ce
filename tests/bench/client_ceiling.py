"""`python -m tests.bench.client_ceiling`: what loadgen's client can send, and how well it keeps a schedule.

Against a null server on this machine, in one process. Unary and stream take turns, so that what else the
machine does meets both; medians over the repetitions.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from dataclasses import dataclass

from wattserve_loadgen.drive.calibration import WARMUP_S, lag_ns, null_server, steady
from wattserve_loadgen.drive.job import Job
from wattserve_loadgen.drive.processes import JobRun
from wattserve_loadgen.plan.load import closed

GOAL_PER_SECOND = 4_000
GOAL_LAG_MS = 1.0
KINDS = ("unary", "stream")
PARTS = (0.25, 0.5)


@dataclass(frozen=True)
class Turn:
    """One kind, measured once."""

    per_second: float
    cpu_us: float
    process_share: float
    lags_ms: tuple[tuple[float, float, float], ...]  # per part of PARTS: p50, p99, highest


async def take_turn(kind: str, seconds: float, concurrency: int, size: int) -> Turn:
    async with null_server(kind) as connection:
        requests, load, most = [bytes(size)], closed(concurrency), round(seconds * 200_000)
        job = Job(connection, requests, load, 10.0, WARMUP_S, seconds, most_requests=most)
        result = await JobRun(job).run()
        rate = result.done_per_second
        lags = []
        for part in PARTS:
            late = await JobRun(steady(connection, requests, rate * part, seconds)).run()
            p50, p99, highest = lag_ns(late)
            lags.append((p50 / 1e6, p99 / 1e6, highest / 1e6))
    return Turn(
        per_second=rate,
        cpu_us=result.client_cpu_s * 1e6 / int(result.done_in_window().sum()),
        process_share=result.client_cpu_share_max or 0.0,
        lags_ms=tuple(lags),
    )


async def measure(repetitions: int, seconds: float, concurrency: int, size: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {kind: [] for kind in KINDS}
    for _ in range(repetitions):
        for kind in KINDS:
            turns[kind].append(await take_turn(kind, seconds, concurrency, size))
    return turns


def table(turns: dict[str, list[Turn]]) -> str:
    """Medians; the lags of each part as p50 / p99 / highest."""
    heads = [f"lag at {part:g} of it, ms" for part in PARTS]
    lines = [f"{'':8}{'requests/s':>12}{'CPU each':>11}{'process':>9}  " + "  ".join(heads)]
    for kind, found in turns.items():
        lags = [
            " / ".join(
                f"{statistics.median(turn.lags_ms[part][place] for turn in found):.2f}" for place in range(3)
            )
            for part in range(len(PARTS))
        ]
        lines.append(
            f"{kind:8}{statistics.median(turn.per_second for turn in found):>12,.0f}"
            f"{statistics.median(turn.cpu_us for turn in found):>8.1f} us"
            f"{statistics.median(turn.process_share for turn in found):>9.0%}  "
            + "  ".join(f"{lag:>{len(head)}}" for lag, head in zip(lags, heads, strict=True))
        )
    unary, stream = (turns[kind] for kind in KINDS)
    ratio = statistics.median(b.per_second / a.per_second for a, b in zip(unary, stream, strict=True))
    cpu = statistics.median(b.cpu_us / a.cpu_us for a, b in zip(unary, stream, strict=True))
    lines.append(f"stream over unary, median of pairs: requests/s x {ratio:.2f}, CPU each x {cpu:.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--request-bytes", type=int, default=256)
    given = parser.parse_args()
    turns = asyncio.run(measure(given.repetitions, given.seconds, given.concurrency, given.request_bytes))
    print(table(turns))
    print(f"goals: unary {GOAL_PER_SECOND:,}/s, stream above unary, lag p99 at 0.5 below {GOAL_LAG_MS:g} ms")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs, {given.repetitions} repetitions")


if __name__ == "__main__":
    main()
