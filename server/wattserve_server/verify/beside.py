"""What accounting disturbs: latency and power of the same requests with the server's sampler on and off; and
the host's windows against the device's own time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattserve_common.stats import Interval, mean_interval, ratio_interval
from wattserve_server.energy.receipt import Window
from wattserve_server.verify.rig import Rig, work

LEAST_PAIRS, MOST_PAIRS = 4, 10
REST_S = 0.6
LEAST_RUN_S = 0.5


@dataclass(frozen=True)
class Perturbation:
    """Ratios are of the sampler on over off, by pairs of runs."""

    pairs: int
    p50_ratio: Interval | None
    p99_ratio: Interval | None
    watts_ratio: Interval | None  # of all that was drawn while requests ran back to back
    p50_on_s: float | None
    p50_off_s: float | None


@dataclass(frozen=True)
class _Run:
    p50_s: float
    p99_s: float
    watts: float | None


async def measure_perturbation(rig: Rig, seconds: float) -> Perturbation:
    """Takes about `seconds`. "Off" is a sampler that reads once a run."""
    pairs = int(min(max(seconds / (2 * (REST_S + 2 * LEAST_RUN_S)), LEAST_PAIRS), MOST_PAIRS))
    run_s = max(seconds / (2 * pairs) - REST_S, LEAST_RUN_S)
    chance = random.Random(0)
    runs: dict[bool, list[_Run]] = {True: [], False: []}
    try:
        for _ in range(pairs):
            for is_on in chance.sample([True, False], 2):
                rig.sample_every(None if is_on else run_s)
                await rig.rest(REST_S if not is_on else REST_S + run_s / 4)  # a slow sampler wakes late
                runs[is_on].append(await _run(rig, run_s))
    finally:
        rig.sample_every(None)

    def ratio(name: str) -> Interval | None:
        on, off = ([getattr(run, name) for run in runs[is_on]] for is_on in (True, False))
        return ratio_interval(
            [(a, b) for a, b in zip(on, off, strict=True) if a is not None and b is not None]
        )

    p50_on, p50_off = (mean_interval([run.p50_s for run in runs[is_on]]) for is_on in (True, False))
    return Perturbation(
        pairs,
        ratio("p50_s"),
        ratio("p99_s"),
        ratio("watts"),
        None if p50_on is None else p50_on.mean,
        None if p50_off is None else p50_off.mean,
    )


async def _run(rig: Rig, seconds: float) -> _Run:
    since_ns = rig.now_ns()
    asked = await work(rig, rig.variants[0], rig.shapes[0], seconds)
    took_s = np.array([each.done_ns - each.sent_ns for each in asked]) / 1e9
    return _Run(
        float(np.quantile(took_s, 0.5)),
        float(np.quantile(took_s, 0.99)),
        rig.readings.spell(since_ns, rig.now_ns()).watts(),
    )


@dataclass(frozen=True)
class DeviceTime:
    """Of the windows of requests: how the host's stamps hold what the device's own events say. Medians."""

    windows: int
    lead_s: float  # from the host's start until the device began
    tail_s: float  # from the device's end until the host knew
    busy_share: float  # of the host's window, in which the device ran


def device_time(windows: Sequence[Window]) -> DeviceTime | None:
    """None where no window carries device time."""
    timed = [
        (window, window.host_ns)
        for window in windows
        if not window.is_warmup and window.host_ns and window.host_ns != (window.start_ns, window.end_ns)
    ]
    if not timed:
        return None
    return DeviceTime(
        len(timed),
        float(np.median([window.start_ns - host_ns[0] for window, host_ns in timed])) / 1e9,
        float(np.median([host_ns[1] - window.end_ns for window, host_ns in timed])) / 1e9,
        float(np.median([window.duration_ns / window.held_ns for window, _ in timed])),
    )
