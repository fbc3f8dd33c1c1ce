"""The simulated device and its server: which batches ran when, and what each of them really drew.

Event driven and exact: between two events every power is constant. Knows nothing of meters.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from tests.bench.attribution.world import Bursts, ClosedLoop, Lengths, Poisson, Workload, World
from wattserve_server.energy.trials import plan_trials

SETTLE_S = 1.0
"""Idle before calibration and after it."""

TAIL_S = 2.0
"""Idle after the workload."""


@dataclass(slots=True)
class Batch:
    """One batch and its truth: `joules` is what it drew, `noise` the factor in it nobody could foresee."""

    variant: str
    lengths: tuple[int, ...]
    start_s: float
    is_calibration: bool
    noise: float
    watts: float
    left_s: float
    end_s: float = math.nan
    joules: float = 0.0

    @property
    def padded_length(self) -> int:
        return max(self.lengths)


@dataclass(frozen=True, slots=True)
class History:
    """Everything that happened. `steps`: (instant, dynamic watts from then on); batches by end."""

    batches: list[Batch]
    steps: list[tuple[float, float]]
    measured_from_s: float
    end_s: float


CALIBRATION_BUDGET_S = 4.0
"""Per variant, the server's default."""


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

    def start(self, variant: str, lengths: tuple[int, ...], is_calibration: bool = False) -> Batch:
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
        batch = Batch(variant, lengths, self.now_s, is_calibration, noise, energy * noise / seconds, seconds)
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
    world: World, workload: Workload, noise_rng: np.random.Generator, load_rng: np.random.Generator
) -> History:
    """Calibration, then the workload, then idle."""
    device = Device(world, noise_rng)
    device.advance(SETTLE_S)
    _calibrate(device, world, workload)
    device.advance(device.now_s + SETTLE_S)
    device.calibrated_s = device.now_s
    _serve(device, world, workload, load_rng)
    end_s = device.now_s + TAIL_S
    device.advance(end_s)
    return History(device.batches, device.steps, device.calibrated_s, end_s)


def _calibrate(device: Device, world: World, workload: Workload) -> None:
    """As the server does it, with its own plan."""
    high, most = workload.lengths.high, workload.max_batch
    plan = plan_trials(high, most, most * high, world.counter.period_s, CALIBRATION_BUDGET_S)
    for law in world.variants:
        for count, length in plan.shapes:
            until_s = device.now_s + plan.trial_s
            while device.now_s < until_s:
                device.start(law.name, (length,) * count, is_calibration=True)
                device.advance(device.next_end_s)
                device.advance(device.now_s + world.turnaround_s)
            device.advance(device.now_s + plan.pause_s)


@dataclass(frozen=True, slots=True, order=True)
class _Request:
    at_s: float
    number: int
    variant: str
    length: int


class _Client:
    """Draws the requests, in the order of their numbers."""

    def __init__(self, world: World, workload: Workload, rng: np.random.Generator) -> None:
        self._names = [law.name for law in world.variants]
        weights = np.array(workload.weights or [1.0] * len(self._names))
        self._bounds = np.cumsum(weights / weights.sum())[:-1]
        self._lengths: Lengths = workload.lengths
        self._rng = rng
        self._count = 0

    def request(self, at_s: float) -> _Request:
        self._count += 1
        variant = self._names[int(np.searchsorted(self._bounds, self._rng.random(), side="right"))]
        return _Request(at_s, self._count, variant, self._lengths.draw(self._rng))

    def think(self, mean_s: float) -> float:
        return mean_s * self._rng.exponential() if mean_s else 0.0

    def first(self, workload: Workload, start_s: float, end_s: float) -> list[_Request]:
        """All requests of an open load; the first of each client of a closed one."""
        arrivals, rng = workload.arrivals, self._rng
        instants: list[float] = []
        match arrivals:
            case Poisson(rate):
                at_s = start_s + rng.exponential() / rate
                while at_s < end_s:
                    instants.append(at_s)
                    at_s += rng.exponential() / rate
            case Bursts(every_s, size, within_s):
                at_s = start_s + every_s * rng.uniform(0.1, 1)
                while at_s < end_s:
                    instants += sorted(at_s + within_s * rng.random(size))
                    at_s += every_s * rng.uniform(0.5, 1.5)
            case ClosedLoop(concurrency, think_s):
                instants = [start_s + self.think(think_s) for _ in range(concurrency)]
        return [self.request(at_s) for at_s in instants]


def _serve(device: Device, world: World, workload: Workload, rng: np.random.Generator) -> None:
    """Batches of one variant, the longest waiting first, as long as anything waits."""
    start_s, end_s = device.now_s, device.now_s + workload.seconds
    client = _Client(world, workload, rng)
    coming = client.first(workload, start_s, end_s)
    heapq.heapify(coming)
    waiting: dict[str, deque[_Request]] = {law.name: deque() for law in world.variants}
    free_at = [start_s] * world.slots
    think_s = workload.arrivals.think_s if isinstance(workload.arrivals, ClosedLoop) else None
    while True:
        oldest = min((queue[0] for queue in waiting.values() if queue), default=None)
        if oldest is not None and free_at and free_at[0] <= device.now_s:
            heapq.heappop(free_at)
            queue = waiting[oldest.variant]
            taken = [queue.popleft() for _ in range(min(workload.max_batch, len(queue)))]
            device.start(oldest.variant, tuple(request.length for request in taken))
            continue
        next_s = min(device.next_end_s, coming[0].at_s if coming else math.inf)
        if oldest is not None and free_at:
            next_s = min(next_s, free_at[0])
        if next_s == math.inf:
            return
        for ended in device.advance(next_s):
            heapq.heappush(free_at, next_s + world.turnaround_s)
            if think_s is not None and next_s < end_s:
                for _ in ended.lengths:
                    heapq.heappush(coming, client.request(next_s + client.think(think_s)))
        while coming and coming[0].at_s <= device.now_s:
            request = heapq.heappop(coming)
            waiting[request.variant].append(request)
