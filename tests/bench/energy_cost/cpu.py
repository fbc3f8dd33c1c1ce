"""(a) CPU per request of every part of the energy path, in its steady state after the calibration."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from statistics import median
from typing import Any

from tests.bench.energy_cost.rig import NS, PARTS, SENSORS, Block, Load, Rig

LOADS = (Load(32, 0.020), Load(8, 0.006), Load(1, 0.001), Load(1, 0.020))

ENERGY = ("run log", "provisional", "tick", "charge")
"""The parts that turn readings into figures; the others would be there for receipts without figures."""


def measure(quick: bool) -> dict[str, Any]:
    """A virtual second of each case by turns, so that a noisy neighbour is on everybody's bill."""
    cases: list[tuple[str, Load, Rig, list[Block]]] = []
    idle: dict[str, float] = {}
    for sensor in SENSORS:
        for load in LOADS:
            rig = Rig(sensor)
            rig.start()
            rig.serve(load, 4.0)
            cases.append((sensor.name, load, rig, []))
        resting = Rig(sensor)
        resting.start()
        idle[sensor.name] = 100 * resting.rest(10).ns["tick"] / (10 * NS)
    try:
        for _ in range(4 if quick else 22):
            for _, load, rig, blocks in cases:
                gc.freeze()  # a case pays for collecting its own garbage, not for passing over the others'
                blocks.append(rig.serve(load, 1.0))
    finally:
        gc.unfreeze()
    rows = [_row(name, load, blocks) for name, load, _, blocks in cases]
    return {"cases": rows, "idle_core_percent": idle}


def _row(name: str, load: Load, blocks: Sequence[Block]) -> dict[str, Any]:
    def per_request(*parts: str) -> float:
        return median(sum(block.ns[part] for part in parts) / block.requests / 1e3 for block in blocks)

    all_ns = sum(sum(block.ns.values()) for block in blocks)
    return {
        "counter": name,
        "requests": f"{load.requests} every {load.every_s * 1e3:g} ms",
        **{part: per_request(part) for part in PARTS},
        "energy": per_request(*ENERGY),
        "all": per_request(*PARTS),
        "mean": all_ns / sum(block.requests for block in blocks) / 1e3,
        "core %": 100 * all_ns / (len(blocks) * NS),
        "tick ms": max(block.longest_tick_ns for block in blocks) / 1e6,
    }


def render(figures: dict[str, Any]) -> str:
    lines = [
        "CPU microseconds per request, after calibration; medians over virtual seconds.",
        f"    energy: {' + '.join(ENERGY)}. all: with the receipt, opened and ended, and the reply's",
        "    message of it; mean: of all, with what happens now and then. core: percent of one core for all",
        "    at that load. tick ms: the longest tick's CPU time.\n",
    ]
    rows = figures["cases"]
    lines.append("".join(f"{head:{_width(head)}}" for head in rows[0]))
    for row in rows:
        cells = (
            f"{cell:{_width(head)}}" if isinstance(cell, str) else f"{cell:<{_width(head)}.1f}"
            for head, cell in row.items()
        )
        lines.append("".join(cells))
    idle = ", ".join(f"{name} {percent:.2f} %" for name, percent in figures["idle_core_percent"].items())
    return "\n".join([*lines, f"\n    of one core while nothing runs: {idle}"])


def _width(head: str) -> int:
    return {"counter": 14, "requests": 16}.get(head, max(8, len(head) + 2))
