"""The simulated devices and their server: which batches ran when, and what each of them really drew.

Event driven and exact: between two events every power is constant. Knows nothing of meters.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.bench.attribution.preparing import Run, calibration, warm_up
from tests.bench.attribution.requests import Client, Request
from tests.bench.attribution.world import ClosedLoop, Loading, Workload, World

SETTLE_S = 1.0
"""Idle before calibration and after it."""

TAIL_S = 2.0
"""Idle after the workload."""

TRIALS_REST = 4.0
"""Beside requests, a trial's batch is followed by so many of its durations without one: it takes a fifth
of the device at the most."""


@dataclass(slots=True)
class Batch:
    """One batch and its truth: `joules` is what it drew, `noise` the factor in it nobody could foresee. lane:
    which of several devices ran it, where they are told apart."""

    variant: str
    lengths: tuple[int, ...]
    start_s: float
    is_calibration: bool
    is_first_run: bool
    noise: float
    watts: float
    left_s: float
    end_s: float = math.nan
    joules: float = 0.0
    lane: int = 0

    @property
    def padded_length(self) -> int:
        return max(self.lengths)


@dataclass(frozen=True, slots=True)
class History:
    """Everything that happened. `steps`: (instant, dynamic watts from then on); batches by end. loaded_s:
    when the variant that came later could be asked for."""

    batches: list[Batch]
    steps: list[tuple[float, float]]
    measured_from_s: float
    end_s: float
    loaded_s: float = math.inf


class Device:
    """Runs batches side by side and keeps account of what each of them draws."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.now_s = 0.0
        self.batches: list[Batch] = []
        self.steps: list[tuple[float, float]] = [(0.0, 0.0)]
        self.calibrated_s = math.inf
        self._world = world
        self._rng = rng
        self._running: list[Batch] = []
        self._heat = 0.0
        self._peak = max(law.peak_watts for law in world.variants)
        self._worked_s = -math.inf

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def next_end_s(self) -> float:
        if not self._running:
            return math.inf
        return self.now_s + max(0.0, min(batch.left_s for batch in self._running)) / self._speed()

    def start(self, variant: str, lengths: tuple[int, ...], run: Run | None = None) -> Batch:
        """run: what nobody asked for; None for requests."""
        world, law = self._world, self._world.law(variant)
        energy = float(law.joules(len(lengths), max(lengths))) * (1 + world.thermal_gain * self._heat)
        seconds = float(law.seconds(len(lengths), max(lengths)))
        if not self._running and self.now_s - self._worked_s > world.cold_after_s:
            energy *= world.cold_energy
            seconds *= world.cold_duration
        for change in world.changes:
            due = self.now_s >= self.calibrated_s + change.at_s
            if due and change.variant in (None, variant):
                energy *= change.energy_factor
                seconds *= change.duration_factor
        noise = math.exp(world.noise * self._rng.standard_normal() - world.noise**2 / 2)
        seconds *= math.exp(world.duration_noise * self._rng.standard_normal())
        if run is not None:
            energy *= run.costs
            seconds *= run.costs
        is_first_run = run is not None and run.is_first
        watts = energy * noise / seconds
        batch = Batch(variant, lengths, self.now_s, run is not None, is_first_run, noise, watts, seconds)
        self._running.append(batch)
        return batch

    def advance(self, to_s: float) -> list[Batch]:
        """Let time pass, at most to the next end. Returns the batches that ended."""
        step_s = to_s - self.now_s
        if step_s > 0:
            self._pass(step_s)
        self.now_s = to_s
        ended = [batch for batch in self._running if batch.left_s <= 1e-12]
        for batch in ended:
            batch.end_s = self._worked_s = to_s
            self._running.remove(batch)
            self.batches.append(batch)
        return ended

    def _pass(self, step_s: float) -> None:
        world = self._world
        speed = self._speed()
        saved = 1 - world.sublinear * (len(self._running) - 1)
        total = 0.0
        for batch in self._running:
            watts = batch.watts * speed * saved
            batch.joules += watts * step_s
            batch.left_s -= speed * step_s
            total += watts
        if total != self.steps[-1][1]:
            self.steps.append((self.now_s, total))
        self._heat += (total / self._peak - self._heat) * -math.expm1(-step_s / world.thermal_s)

    def _speed(self) -> float:
        count = len(self._running)
        return (1 + self._world.overlap_speedup * (count - 1)) / count if count else 0.0


def simulate(
    worlds: Sequence[World],
    workload: Workload,
    noise_rngs: Sequence[np.random.Generator],
    load_rng: np.random.Generator,
) -> list[History]:
    """The start, with its calibration; then the workload, then idle. Of each of these devices, which take
    their requests from one queue."""
    devices = [Device(world, rng) for world, rng in zip(worlds, noise_rngs, strict=True)]
    _advance(devices, SETTLE_S)
    _prepare(devices, worlds, workload)
    _advance(devices, devices[0].now_s + SETTLE_S)
    for device in devices:
        device.calibrated_s = device.now_s
    loaded_s = _serve(devices, worlds, workload, load_rng)
    end_s = devices[0].now_s + TAIL_S
    _advance(devices, end_s)
    return [History(device.batches, device.steps, device.calibrated_s, end_s, loaded_s) for device in devices]


def _advance(devices: Sequence[Device], to_s: float) -> list[tuple[int, Batch]]:
    """Let time pass on all of them. Returns what ended, and on which."""
    return [(index, batch) for index, device in enumerate(devices) for batch in device.advance(to_s)]


def _prepare(devices: Sequence[Device], worlds: Sequence[World], workload: Workload) -> None:
    """As the server does it before it serves: one variant after the other, on one device after the other."""
    later = workload.loading.variant if workload.loading is not None else None
    for law in worlds[0].variants:
        if law.name == later:
            continue
        for device, world in zip(devices, worlds, strict=True):
            for run in calibration(world, workload) if workload.is_calibrated else warm_up(law, workload):
                until_s = device.now_s + run.for_s
                while True:
                    device.start(law.name, run.lengths, run)
                    _advance(devices, device.next_end_s)
                    _advance(devices, device.now_s + world.turnaround_s)
                    if device.now_s >= until_s:
                        break
                _advance(devices, device.now_s + run.pause_s)
        _advance(devices, devices[0].now_s + workload.apart_s)


class _Loader:
    """Loads a variant beside the requests, one run at a time: `due_s` says when the next may start."""

    def __init__(self, world: World, workload: Workload, loading: Loading, start_s: float) -> None:
        law = world.law(loading.variant)
        trials = calibration(world, workload) if loading.has_trials else []
        self.due_s = start_s + loading.at_s
        self._runs = deque([*warm_up(law, workload), *trials])
        self._variant = loading.variant
        self._running: Batch | None = None

    @property
    def has_loaded(self) -> bool:
        return not self._runs

    def start(self, device: Device) -> None:
        self._running = device.start(self._variant, self._runs[0].lengths, self._runs[0])
        self.due_s = math.inf

    def see_end(self, batch: Batch) -> bool:
        """Whether it was of the loading. Trials take turns, each until it has run for as long as it shall,
        and leave the device to the requests for some of their own durations each time."""
        if batch is not self._running:
            return False
        run, took_s = self._runs.popleft(), batch.end_s - batch.start_s
        if took_s < run.for_s:
            self._runs.append(replace(run, for_s=run.for_s - took_s))
        if self._runs:
            self.due_s = batch.end_s + (0.0 if run.is_first else TRIALS_REST * took_s)
        return True


def _serve(
    devices: Sequence[Device], worlds: Sequence[World], workload: Workload, rng: np.random.Generator
) -> float:
    """Batches of one variant, the longest waiting first, as long as anything waits, on the device that has
    rested longest; between them, by turns, what loads another variant. Returns when that could be asked for,
    infinity where none was loaded."""
    first, world = devices[0], worlds[0]
    start_s = first.now_s
    end_s = start_s + workload.seconds + (workload.pause.for_s if workload.pause else 0.0)
    client = Client(world, workload, rng)
    coming = client.first(start_s)
    heapq.heapify(coming)
    waiting: dict[str, deque[Request]] = {law.name: deque() for law in world.variants}
    free_at = [(start_s, index) for index, each in enumerate(worlds) for _ in range(each.slots)]
    think_s = workload.arrivals.think_s if isinstance(workload.arrivals, ClosedLoop) else None
    loader = _Loader(world, workload, workload.loading, start_s) if workload.loading else None
    loaded_s, is_loaders_turn = math.inf, True
    while True:
        oldest = min((queue[0] for queue in waiting.values() if queue), default=None)
        is_free = bool(free_at) and free_at[0][0] <= first.now_s
        is_due = loader is not None and loader.due_s <= first.now_s
        if is_free and is_due and (is_loaders_turn or oldest is None):
            assert loader is not None
            loader.start(devices[heapq.heappop(free_at)[1]])
            is_loaders_turn = False
            continue
        if is_free and oldest is not None:
            _, index = heapq.heappop(free_at)
            queue = waiting[oldest.variant]
            taken = [queue.popleft() for _ in range(min(workload.max_batch, len(queue)))]
            devices[index].start(oldest.variant, tuple(request.length for request in taken))
            is_loaders_turn = True
            continue
        next_s = min(*(device.next_end_s for device in devices), coming[0].at_s if coming else math.inf)
        if (oldest is not None or is_due) and free_at:
            next_s = min(next_s, free_at[0][0])
        if loader is not None and not is_due:
            next_s = min(next_s, loader.due_s)
        if next_s == math.inf:
            return loaded_s
        for index, ended in _advance(devices, next_s):
            heapq.heappush(free_at, (next_s + worlds[index].turnaround_s, index))
            if loader is not None and loader.see_end(ended):
                if loader.has_loaded:
                    loaded_s, loader = next_s, None
                    for request in client.newcomers(next_s, end_s):
                        heapq.heappush(coming, request)
            elif think_s is not None and next_s < end_s:
                for _ in ended.lengths:
                    heapq.heappush(coming, client.request(next_s + client.think(think_s)))
        while coming and coming[0].at_s <= first.now_s:
            request = heapq.heappop(coming)
            waiting[request.variant].append(request)
