"""Worlds that a real device or a real day may be, and that the lawful ones are not."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.bench.attribution.preparing import CALIBRATION_BUDGET_S
from tests.bench.attribution.receipts import Span
from tests.bench.attribution.scenarios import BF16, DEVICE, FP32, MIXED_16, Scenario
from tests.bench.attribution.world import (
    Arrivals,
    Bursts,
    ClosedLoop,
    CounterModel,
    ForeignLoad,
    IdleModel,
    LawChange,
    Lengths,
    Loading,
    Pause,
    Poisson,
    PollModel,
    SideBySide,
    VariantLaw,
    Workload,
    World,
)

HOT = VariantLaw("hot", 0.0020, 60e3, 6e-9, 260, 0.90, 400)
"""Takes as long as fp32 and draws about twice as much."""

ONE_CLIENT = Workload(ClosedLoop(1), 20)
LOW_LOAD = Workload(Poisson(15), 60)
EACH_2_S = Workload(Poisson(0.5), 120, max_batch=4)
A_TENTH_BUSY = Workload(Poisson(45), 60)

SENSORS = {
    "lag 150 ms": CounterModel(lag_s=0.15),
    "average of 100 ms": CounterModel(box_s=0.1),
    "average of 1 s": CounterModel(box_s=1.0, declares_average=True),
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

ON_S, OFF_S = 10.0, 15.0
STOPS_S = OFF_S + ON_S
FOR_90_S = replace(A_TENTH_BUSY, seconds=90)
AROUND_PAUSES = (
    Span("while it draws", OFF_S, STOPS_S, every_s=STOPS_S),
    Span("until 5 s after it stopped", STOPS_S, STOPS_S + 5, every_s=STOPS_S),
    Span("from 5 s after it stopped", STOPS_S + 5, STOPS_S + OFF_S, every_s=STOPS_S),
)
"""Of strangers with long pauses: they draw for ON_S, after OFF_S."""

HOST_STRANGER = ForeignLoad(watts=40.0, on_s=5.0, off_s=5.0, is_visible=False, is_regular=True, use=1.0)
"""On a host no driver lists processes; what others use of its processors is told."""

HOST = World(
    tuple(replace(law, peak_watts=25.0, low=1.0) for law in DEVICE.variants),
    idle=IdleModel(30.0, offset_watts=2.0),
    counter=CounterModel(period_s=0.005, jitter_s=0.0, lag_s=0.0),
    polls=PollModel(period_s=0.02),
    ramp_s=0.0,
    counts_server=True,
)
"""Processors that feed a board: for each batch they draw so much for as long as it runs."""

ANOTHER = replace(
    DEVICE,
    variants=tuple(replace(law, peak_watts=0.85 * law.peak_watts) for law in DEVICE.variants),
    idle=IdleModel(55.0, offset_watts=5.0),
    counter=CounterModel(lag_s=0.06),
    ramp_s=0.04,
)
"""A second board of the same kind: as quick as the first, but no two draw alike or are counted alike."""


def hard_worlds() -> list[Scenario]:
    return [
        *_idle_states(),
        *_sensors(),
        *_changes_and_strangers(),
        *_night(),
        *_loads(),
        *_side_by_side(),
        *_board_and_host(),
        *_two_boards(),
    ]


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
    host = replace(DEVICE, idle=IdleModel(30.0), counts_server=True, foreign=HOST_STRANGER)
    return [
        Scenario("law -20 % at 11 % load", changed, A_TENTH_BUSY, None, AFTER_CHANGE),
        Scenario("idle stranger", beside_idle, A_TENTH_BUSY, None),
        Scenario("idle stranger, law -20 %", both_idle, A_TENTH_BUSY, None, AFTER_CHANGE),
        Scenario("busy stranger", beside_busy, A_TENTH_BUSY, None),
        Scenario("busy stranger, law -20 %", both_busy, A_TENTH_BUSY, None, AFTER_CHANGE),
        Scenario("busy stranger on a host", host, A_TENTH_BUSY, None),
        *(
            Scenario(f"{name}, long pauses", _with_long_pauses(world), FOR_90_S, None, AROUND_PAUSES)
            for name, world in (("busy stranger", beside_busy), ("busy stranger on a host", host))
        ),
    ]


def _with_long_pauses(world: World) -> World:
    assert world.foreign is not None
    return replace(world, foreign=replace(world.foreign, on_s=ON_S, off_s=OFF_S))


def _night() -> list[Scenario]:
    """The evening's requests, hours without one, the morning's."""
    evening_s, night_s = 40.0, 7200.0
    workload = Workload(Poisson(4), 2 * evening_s, pause=Pause(evening_s, night_s))
    morning_s = evening_s + night_s
    spans = (
        Span("evening", 0, evening_s),
        Span("first 10 s of the morning", morning_s, morning_s + 10),
        Span("later", morning_s + 10, math.inf),
    )
    calm = replace(DEVICE, idle=replace(DEVICE.idle, walk=0.02))
    return [Scenario("night", calm, workload, None, spans)]


def _loads() -> list[Scenario]:
    """A second variant is loaded while the first one serves, so often asked for that it keeps a part of the
    device busy."""
    device = replace(DEVICE, variants=(FP32, BF16))
    found = []
    for busy, rate in ((0.4, 155), (0.7, 300)):
        for has_trials in (True, False):
            loading = Loading("bf16", at_s=10.0, rate=6.0, has_trials=has_trials)
            workload = Workload(Poisson(rate), 80, weights=(1, 0), loading=loading)
            name = f"load beside {busy:.0%} traffic".replace("%", " %")
            found.append(Scenario(name + ("" if has_trials else ", no trials"), device, workload, None))
    return found


def _side_by_side() -> list[Scenario]:
    """Two variants that nobody has calibrated, never one without the other."""
    device = replace(DEVICE, variants=(FP32, HOT))
    always = Workload(SideBySide(40), 40, Lengths(sigma=0.0), is_calibrated=False)
    once_alone = replace(always, arrivals=SideBySide(40, alone_at_s=5.0, alone_s=1.0))
    spans = (Span("from 10 s on", 10, math.inf),)
    return [
        Scenario("side by side", device, always, None, spans),
        Scenario("side by side, each alone for 1 s", device, once_alone, None, spans),
    ]


def _board_and_host() -> list[Scenario]:
    """Batches draw on a board and on the processors of its host, which others use too."""
    beside = replace(HOST, foreign=HOST_STRANGER)
    load = replace(A_TENTH_BUSY, seconds=40)
    return [
        Scenario(f"board and host{others}, {how}", DEVICE, load, None, host=host, is_summed=is_summed)
        for others, host in (("", HOST), (" beside a stranger", beside))
        for how, is_summed in (("counters added", True), ("an accountant each", False))
    ]


def _two_boards() -> list[Scenario]:
    """Two boards run what is in one queue, with their host or without, and the same without the second: as
    much for each board, which is calibrated with the same pauses between its variants."""
    loads: dict[str, tuple[Workload, Arrivals]] = {
        "a tenth busy": (replace(A_TENTH_BUSY, seconds=40), Poisson(90)),
        "16 clients each": (replace(MIXED_16, seconds=20), ClosedLoop(32)),
    }
    found = []
    for name, (load, twice) in loads.items():
        of_one, of_two = replace(load, apart_s=CALIBRATION_BUDGET_S), replace(load, arrivals=twice)
        for parts, host in (("", None), (" and host", HOST)):
            found += [
                Scenario(f"one board{parts}, {name}", DEVICE, of_one, None, host=host),
                Scenario(f"two boards{parts}, {name}", DEVICE, of_two, None, beside=(ANOTHER,), host=host),
            ]
    return found
