"""The phases, in their order, and how long each may take."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from wattserve_server.console import say
from wattserve_server.verify.beside import measure_perturbation
from wattserve_server.verify.idle import measure_idle
from wattserve_server.verify.mixed import measure_mixed
from wattserve_server.verify.response import measure_response
from wattserve_server.verify.results import Results
from wattserve_server.verify.rig import Rig
from wattserve_server.verify.sensor import measure_sensor
from wattserve_server.verify.waves import measure_waves

END_S = 4.0  # for what is open at the end: receipts, the files
LEAST_S = 20.0  # however long the loading took


@dataclass(frozen=True)
class Phase:
    name: str
    title: str
    weight: float  # of the time; about the seconds of it where there are eight minutes
    measure: Callable[[Rig, Results, float], Awaitable[None]]


async def _idle(rig: Rig, results: Results, seconds: float) -> None:
    results.idle = await measure_idle(rig, seconds)


async def _sensor(rig: Rig, results: Results, seconds: float) -> None:
    results.sensor = await measure_sensor(rig, seconds)


async def _response(rig: Rig, results: Results, seconds: float) -> None:
    results.response = await measure_response(rig, seconds)


async def _waves(rig: Rig, results: Results, seconds: float) -> None:
    period_s = None if results.sensor is None else results.sensor.period_s
    results.waves = await measure_waves(rig, period_s, seconds)


async def _mixed(rig: Rig, results: Results, seconds: float) -> None:
    results.mixed = await measure_mixed(rig, seconds)


async def _perturbation(rig: Rig, results: Results, seconds: float) -> None:
    results.perturbation = await measure_perturbation(rig, seconds)


PHASES = (
    Phase("idle", "idle draw by state and by polling rate", 60.0, _idle),
    Phase("sensor", "the counter's period, jitter and read cost", 20.0, _sensor),
    Phase("response", "step response", 60.0, _response),
    Phase("waves", "part-time sampling, by square waves", 60.0, _waves),
    Phase("mixed", "solo against mixed", 200.0, _mixed),
    Phase("perturbation", "latency and power with the sampler on and off", 35.0, _perturbation),
)


async def go_through(
    rig: Rig, results: Results, left_s: float, now_s: Callable[[], float] = time.monotonic
) -> None:
    """Every phase within `left_s` seconds, each as long as its weight among those still to come."""
    end_s = now_s() + max(left_s, LEAST_S) - END_S
    for index, phase in enumerate(PHASES):
        left_s = max(end_s - now_s(), 0.0)
        weights = sum(each.weight for each in PHASES[index:])
        seconds = left_s * phase.weight / weights
        say(f"[{index + 1}/{len(PHASES)}] {phase.title}: {seconds:.0f} s; {_minutes(left_s)} left")
        await phase.measure(rig, results, seconds)
        results.reached.append(phase.name)


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
