"""The named scenarios, and what each must reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.bench.attribution.receipts import Span
from tests.bench.attribution.world import (
    Bursts,
    ClosedLoop,
    CounterModel,
    ForeignLoad,
    LawChange,
    Lengths,
    Poisson,
    VariantLaw,
    Workload,
    World,
)

FP32 = VariantLaw("fp32", 0.0020, 60e3, 6e-9, 260, 0.35, 400)
BF16 = VariantLaw("bf16", 0.0016, 200e3, 2e-9, 320, 0.30, 900)
INT8 = VariantLaw("int8", 0.0025, 260e3, 2e-9, 240, 0.30, 1200)
NF4 = VariantLaw("nf4", 0.0034, 90e3, 2e-9, 290, 0.40, 500)

DEVICE = World((FP32, BF16, INT8))


@dataclass(frozen=True, slots=True)
class Goal:
    """Greatest median and p95 error per request, worst variant's bias and idle error, in %."""

    median: float
    p95: float
    bias: float
    idle: float | None = None


LAWFUL = Goal(3.5, 10, 3, 1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """goal: what the issue demands of lawful workloads; of the others, what the prototype reached; None:
    nothing is demanded. spans: parts of the workload that are told apart from the whole.
    beside: other devices, each of which takes its batches from the same queue and has a counter and an
    accountant of its own. host: a device that every batch runs on besides; is_summed: its counter is added to
    the first one's, and they have one accountant, not one each."""

    name: str
    world: World
    workload: Workload
    goal: Goal | None
    spans: tuple[Span, ...] = ()
    beside: tuple[World, ...] = ()
    host: World | None = None
    is_summed: bool = False


def with_period(world: World, period_s: float) -> World:
    """The same device with another counter, polled as the server would."""
    counter = CounterModel(period_s, 0.02 * period_s, world.counter.lag_s)
    return replace(world, counter=counter, polls=replace(world.polls, period_s=max(0.005, period_s / 10)))


TINY = Lengths(median=24, sigma=0.4, low=8, high=64)
WIDE = Lengths(median=64, sigma=1.0, low=8, high=512)
MIXED_16 = Workload(ClosedLoop(16), 60)


def scenarios() -> list[Scenario]:
    return [
        Scenario("sparse tiny", DEVICE, Workload(Poisson(4), 120, TINY, 1), LAWFUL),
        Scenario("dense tiny", DEVICE, Workload(Poisson(120), 40, TINY, 2), LAWFUL),
        Scenario("mixed, 1 client", DEVICE, Workload(ClosedLoop(1), 30), LAWFUL),
        Scenario("mixed, 16 clients", DEVICE, MIXED_16, LAWFUL),
        Scenario("mixed, 64 clients", DEVICE, Workload(ClosedLoop(64), 60), LAWFUL),
        Scenario("mixed, 16, overlapping", replace(DEVICE, slots=3, sublinear=0.02), MIXED_16, LAWFUL),
        Scenario("poisson, low load", DEVICE, Workload(Poisson(15), 90), LAWFUL),
        Scenario("bursts", DEVICE, Workload(Bursts(1.5, 40), 90), LAWFUL),
        Scenario("mixed lengths", DEVICE, Workload(ClosedLoop(32), 60, WIDE), LAWFUL),
        Scenario("mixed, 16, 50 ms", with_period(DEVICE, 0.05), MIXED_16, LAWFUL),
        Scenario("mixed, 16, 20 ms", with_period(DEVICE, 0.02), replace(MIXED_16, seconds=40), LAWFUL),
        Scenario(
            "law -20 % in mid-run",
            replace(DEVICE, changes=(LawChange(30, None, 0.8, 1.15),)),
            MIXED_16,
            Goal(3.4, 10, 2.9),
        ),
        Scenario(
            "one variant +25 %",
            replace(DEVICE, changes=(LawChange(30, "bf16", 1.25, 1.0),)),
            replace(MIXED_16, seconds=90),
            Goal(3.5, 10, 10),
        ),
        Scenario(
            "foreign load, seen",
            replace(DEVICE, foreign=ForeignLoad(is_visible=True)),
            Workload(Poisson(40), 60),
            Goal(7.6, 51, 18),
        ),
        Scenario(
            "foreign load, unseen",
            replace(DEVICE, foreign=ForeignLoad(is_visible=False)),
            Workload(Poisson(40), 60),
            Goal(7.6, 51, 18),
        ),
        Scenario(
            "cold isolated",
            replace(DEVICE, cold_energy=1.2, cold_duration=1.3),
            Workload(Poisson(0.6), 120, max_batch=4),
            Goal(14, 25, 13),
        ),
        Scenario(
            "law of another form",
            replace(
                DEVICE,
                variants=tuple(replace(v, step_tokens=600, step_factor=1.35) for v in DEVICE.variants),
            ),
            MIXED_16,
            Goal(6.3, 17, 6),
        ),
        Scenario(
            "saturated",
            replace(DEVICE, variants=(*DEVICE.variants, NF4), turnaround_s=0.0),
            Workload(ClosedLoop(96, 0.0), 60),
            None,
        ),
    ]
