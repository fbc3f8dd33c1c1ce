"""Edges of counters that keep no beat and whose polls come late: they stay in order, and nothing fails."""

from __future__ import annotations

import random

import pytest

from wattserve_server.energy.edges import EdgeFinder
from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import Energy, Reading

MS = 1_000_000
MODES = ("two periods", "heavy jitter", "drift", "stall", "mix")


def _next_period_ns(mode: str, period_ns: float, rng: random.Random) -> float:
    match mode:
        case "two periods":
            return rng.choice([period_ns, period_ns / 5])
        case "heavy jitter":
            return period_ns * rng.lognormvariate(0, 0.8)
        case "stall":
            return period_ns * (15 if rng.random() < 0.05 else 1)
        case "mix":
            return period_ns * rng.choice([1, 1, 1, 2, 0.1, rng.random()])
        case _:
            return period_ns


@pytest.mark.parametrize("period_ms", [2, 20, 100, 500])
@pytest.mark.parametrize("mode", MODES)
def test_edges_stay_in_order_and_hold_what_was_counted(mode: str, period_ms: int) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        ledger = Ledger()
        finder = EdgeFinder(ledger, None, may_stand_still=False)
        now_ns, due_ns, shown_uj = 1000 * MS, 1000.0 * MS, 0
        period_ns, last_ns, told_uj = period_ms * float(MS), 0, 0
        first_uj: int | None = None
        for _ in range(300):
            now_ns += int(rng.choice([1, 5, 10, 50]) * MS * rng.uniform(0.75, 1.25))
            if rng.random() < 0.02:
                now_ns += int(rng.uniform(0, 1.5e9))
            while due_ns <= now_ns:
                shown_uj += 1000 * rng.randrange(1, 9000)
                if mode == "drift":
                    period_ns *= rng.choice([0.97, 1.03])
                due_ns += max(_next_period_ns(mode, period_ns, rng), 0.1 * MS)
            first_uj = shown_uj if first_uj is None else first_uj
            edge = finder.observe(Reading(now_ns, Energy(shown_uj)))
            if edge is None:
                continue
            assert edge.start_ns < edge.at_ns <= now_ns
            assert edge.start_ns >= last_ns
            last_ns, told_uj = edge.start_ns, told_uj + edge.energy_uj
        assert told_uj == ledger.measured_uj <= shown_uj - (first_uj or 0)
