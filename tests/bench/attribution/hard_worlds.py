"""Worlds that a real device or a real day may be, and that the lawful ones are not."""

from __future__ import annotations

from dataclasses import replace

from tests.bench.attribution.receipts import Span
from tests.bench.attribution.scenarios import DEVICE, Scenario
from tests.bench.attribution.world import (
    Bursts,
    ClosedLoop,
    CounterModel,
    ForeignLoad,
    IdleModel,
    LawChange,
    Poisson,
    Workload,
)

ONE_CLIENT = Workload(ClosedLoop(1), 20)
LOW_LOAD = Workload(Poisson(15), 60)
EACH_2_S = Workload(Poisson(0.5), 120, max_batch=4)
A_TENTH_BUSY = Workload(Poisson(45), 60)

SENSORS = {
    "lag 150 ms": CounterModel(lag_s=0.15),
    "average of 100 ms": CounterModel(box_s=0.1),
    "average of 1 s": CounterModel(box_s=1.0),
    "samples 25 of 100 ms": CounterModel(sampled_s=0.025),
}

CHANGES_AT_S = 20.0
LESS = LawChange(CHANGES_AT_S, None, 0.8, 1.15)
AFTER_CHANGE = (
    Span("before", 0, CHANGES_AT_S),
    *(
        Span(f"{a} to {b} s after", CHANGES_AT_S + a, CHANGES_AT_S + b)
        for a, b in ((0, 2), (5, 10), (20, 30))
    ),
)

IDLE_STRANGER = ForeignLoad(watts=0.0, is_listed=True, is_regular=True, use=0.0)
BUSY_STRANGER = ForeignLoad(watts=90.0, on_s=5.0, off_s=5.0, is_listed=True, is_regular=True, use=0.6)


def hard_worlds() -> list[Scenario]:
    return [*_idle_states(), *_sensors(), *_changes_and_strangers()]


def _idle_states() -> list[Scenario]:
    t4 = replace(DEVICE, idle=IdleModel(27, offset_watts=2, asleep_watts=10))
    large = replace(DEVICE, idle=IdleModel(85, offset_watts=5, asleep_watts=50))
    return [
        Scenario("idle 10 to 27 W", t4, EACH_2_S, None),
        Scenario("idle 10 to 27 W, bursts", t4, Workload(Bursts(15, 40), 120), None),
        Scenario("idle 50 to 85 W", large, EACH_2_S, None),
    ]


def _sensors() -> list[Scenario]:
    return [
        Scenario(f"{name}, {load}", replace(DEVICE, counter=counter), workload, None)
        for name, counter in SENSORS.items()
        for load, workload in (("1 client", ONE_CLIENT), ("low load", LOW_LOAD))
    ]


def _changes_and_strangers() -> list[Scenario]:
    changed = replace(DEVICE, changes=(LESS,))
    beside_idle, beside_busy = replace(DEVICE, foreign=IDLE_STRANGER), replace(DEVICE, foreign=BUSY_STRANGER)
    both_idle, both_busy = replace(changed, foreign=IDLE_STRANGER), replace(changed, foreign=BUSY_STRANGER)
    return [
        Scenario("law -20 % at 11 % load", changed, A_TENTH_BUSY, None, AFTER_CHANGE),
        Scenario("idle stranger", beside_idle, A_TENTH_BUSY, None),
        Scenario("idle stranger, law -20 %", both_idle, A_TENTH_BUSY, None, AFTER_CHANGE),
        Scenario("busy stranger", beside_busy, A_TENTH_BUSY, None),
        Scenario("busy stranger, law -20 %", both_busy, A_TENTH_BUSY, None, AFTER_CHANGE),
    ]
