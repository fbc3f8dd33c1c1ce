"""Drives the shipped sampler through one realisation, in virtual time, and watches what it does.

What the sampler is handed (`VirtualMeter`, `Feed`) holds what a server would know at that instant and
nothing else: no truth, nothing of the future.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.bench.attribution.realise import Realisation, to_ns
from tests.bench.attribution.trace import Steps
from tests.bench.attribution.world import Floats, ForeignLoad, PollModel
from wattserve_server.energy.costlaw import provisional_uj
from wattserve_server.energy.reading import Energy, MeterStatus, Quality, Reading, Source
from wattserve_server.energy.receipt import Charge, Window
from wattserve_server.meters.sampler import DITHER, Sampler

PAUSE_ENDS_S = 30.0
"""A long pause is polled in full for so long after its begin and before its end."""


class VirtualMeter:
    """A meter whose counter and clock are set from outside. Implements the meter port."""

    wraps_at: Energy | None = None
    most_watts: float | None = None
    idle_watts: float | None = None

    def __init__(self, poll_period_s: float, counts_server: bool = False, averages_s: float = 0.0) -> None:
        method, quality = "apportioned simulation", Quality.SIMULATED
        self.source = Source("virtual", method, quality, counts_server=counts_server, averages_s=averages_s)
        self.poll_period_s = poll_period_s
        self._now_ns = 0
        self._uj = 0
        self._neighbours: int | None = None
        self._others_s: float | None = None
        self._asked: tuple[int, float] | None = None

    def show(self, now_ns: int, uj: int, neighbours: int | None, others_s: float | None) -> None:
        """others_s: for how long others have used the device, as a device that they had alone."""
        self._now_ns, self._uj, self._neighbours = now_ns, uj, neighbours
        self._others_s = others_s

    def clock_ns(self) -> int:
        return self._now_ns

    def read(self) -> Reading:
        return Reading(self._now_ns, Energy(self._uj))

    def neighbours(self) -> int | None:
        return self._neighbours

    def others_at_work(self) -> float | None:
        if self._others_s is None:
            return None
        last, self._asked = self._asked, (self._now_ns, self._others_s)
        return None if last is None else (self._others_s - last[1]) / (self._now_ns - last[0]) * 1e9

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        pass


class Others:
    """What the driver tells of other processes."""

    def __init__(self, load: ForeignLoad | None, draw: Steps) -> None:
        self._load = load
        self._at_work = Steps(draw.starts, (draw.watts > 0).astype(float))

    def count(self, now_s: float) -> int | None:
        """None where nobody can tell."""
        if self._load is None or not self._load.is_visible:
            return None
        index = np.searchsorted(self._at_work.starts, now_s) - 1
        return int(self._load.is_listed or self._at_work.watts[index] > 0)

    def worked_s(self, now_s: float) -> float | None:
        """For how long they have used the device, as a device that they had alone; None where nobody can
        tell."""
        if self._load is None or self._load.use is None:
            return None
        return self._load.use * float(self._at_work.joules(np.array([now_s]), 0.0)[0])


class Feed:
    """The engine's side: windows that have finished, and charges that came back."""

    def __init__(self) -> None:
        self.finished: list[Window] = []
        self.known_until_ns = 0
        self.charges: list[Charge] = []

    def drain(self) -> tuple[Sequence[Window], int]:
        finished, self.finished = self.finished, []
        return finished, self.known_until_ns

    def take(self, charges: Sequence[Charge]) -> None:
        self.charges.extend(charges)


@dataclass(slots=True)
class Checks:
    """What must never happen, counted over all ticks, and the first case in words."""

    worst_residual_uj: int = 0
    violations: int = 0
    first: str = ""

    def expect(self, holds: bool, words: str) -> None:
        if not holds:
            self.violations += 1
            self.first = self.first or words


@dataclass(slots=True)
class Outcome:
    """What the sampler said. One entry per measured request; NaN where it gave no figure.

    latency_s: from the end of its batch until it was charged. poll_ns, poll_uj: what every poll saw.
    """

    got_uj: Floats
    deviation_uj: Floats
    provisional_uj: Floats
    latency_s: Floats
    is_charged: np.ndarray
    is_warned: np.ndarray
    status: MeterStatus
    idle_uj: int = 0
    unattributed_uj: int = 0
    gap_uj: int = 0
    warmup_uj: int = 0
    booked_uj: int = 0
    measured_uj: int = 0
    cpu_s: float = 0.0
    checks: Checks = field(default_factory=Checks)
    poll_ns: list[int] = field(default_factory=list)
    poll_uj: list[int] = field(default_factory=list)


class _Polls:
    """When the sampler's thread gets to run: late as a rule, starved now and then."""

    def __init__(self, model: PollModel, rng: np.random.Generator, paused: tuple[float, float]) -> None:
        self._model = model
        self._rng = rng
        self._paused_from_s, self._paused_until_s = paused
        self._due_s = 0.0
        self._starve_s = self._until_next()

    def next_s(self, period_s: float) -> float:
        if self._paused_from_s <= self._due_s < self._paused_until_s:
            period_s = self._model.paused_s
        at_s = self._due_s + self._rng.exponential(self._model.late_s)
        if at_s > self._starve_s:
            at_s += self._rng.uniform(*self._model.starved_s)
            self._starve_s = at_s + self._until_next()
        self._due_s = max(self._due_s + period_s * self._rng.uniform(*DITHER), at_s)
        return at_s

    def _until_next(self) -> float:
        rate = self._model.starved_per_s
        return self._rng.exponential(1 / rate) if rate else float("inf")


def _paused(case: Realisation) -> tuple[float, float]:
    """Since when and until when few polls will do."""
    pause = case.workload.pause
    if pause is None:
        return math.inf, math.inf
    begun_s = case.history.measured_from_s + pause.at_s
    return begun_s + PAUSE_ENDS_S, begun_s + pause.for_s - PAUSE_ENDS_S


def drive(case: Realisation) -> Outcome:
    """Poll from start to end. CPU time is that of `tick` and `provisional_uj` alone."""
    world, history, published = case.world, case.history, case.published
    meter, feed = VirtualMeter(world.polls.period_s, world.counts_server, world.counter.declared_s), Feed()
    sampler = Sampler(
        meter, feed.drain, feed.take, poll_period_s=world.polls.period_s, clock_ns=meter.clock_ns
    )
    count = len(case.requests.batch)
    outcome = Outcome(
        np.full(count, np.nan),
        np.full(count, np.nan),
        np.full(count, np.nan),
        np.full(count, np.nan),
        np.zeros(count, bool),
        np.zeros(count, bool),
        sampler.status,
    )
    number: dict[int, tuple[int, int]] = {}
    for window in case.windows:
        for line in window.lines:
            number[id(line)] = (len(number), window.end_ns)
    by_start = sorted(case.windows, key=lambda window: window.start_ns)
    running: list[Window] = []
    others = Others(world.foreign, case.trace.foreign)
    polls, ended, begun = _Polls(world.polls, case.poll_rng, _paused(case)), 0, 0
    first_uj = 0
    charged_uj = 0
    gc.collect()
    gc.disable()  # so that collecting the simulation's objects is not on the sampler's bill
    try:
        while (now_s := polls.next_s(sampler.poll_period_s)) <= history.end_s:
            now_ns = to_ns(now_s)
            uj = 1000 * int(published.millijoules[np.searchsorted(published.at_s, now_s, side="right") - 1])
            first_uj = first_uj or uj
            outcome.poll_ns.append(now_ns)
            outcome.poll_uj.append(uj)
            meter.show(now_ns, uj, others.count(now_s), others.worked_s(now_s))
            while ended < len(case.windows) and case.windows[ended].end_ns <= now_ns:
                feed.finished.append(case.windows[ended])
                ended += 1
            while begun < len(by_start) and by_start[begun].start_ns <= now_ns:
                running.append(by_start[begun])
                begun += 1
            running = [window for window in running if window.end_ns > now_ns]
            feed.known_until_ns = min((window.start_ns for window in running), default=now_ns)
            _tick(sampler, feed, outcome, number)
            for charge in feed.charges:
                charged_uj += _book(charge, now_ns, outcome, number)
            feed.charges.clear()
            _check(sampler, outcome.checks, uj - first_uj, charged_uj)
    finally:
        gc.enable()
    outcome.status = sampler.status
    ledger = sampler.ledger
    outcome.idle_uj, outcome.unattributed_uj = ledger.idle_uj, ledger.unattributed_uj
    outcome.gap_uj, outcome.warmup_uj = ledger.gap_uj, ledger.warmup_uj
    outcome.measured_uj = ledger.measured_uj
    outcome.booked_uj = ledger.measured_uj - ledger.pending_uj
    return outcome


def _tick(sampler: Sampler, feed: Feed, outcome: Outcome, number: dict[int, tuple[int, int]]) -> None:
    """The provisional figures of what finished, then one tick."""
    law = sampler.law
    begun = time.process_time()
    figures = [provisional_uj(law, window) for window in feed.finished if window.lines]
    outcome.cpu_s += time.process_time() - begun
    lines = [line for window in feed.finished for line in window.lines]
    for line, uj in zip(lines, [uj for batch in figures for uj in batch], strict=True):
        if uj is not None:
            outcome.provisional_uj[number[id(line)][0]] = uj
    begun = time.process_time()
    sampler.tick()
    outcome.cpu_s += time.process_time() - begun


def _book(charge: Charge, now_ns: int, outcome: Outcome, number: dict[int, tuple[int, int]]) -> int:
    index, end_ns = number[id(charge.line)]
    outcome.checks.expect(not outcome.is_charged[index], "a line was charged twice")
    outcome.is_charged[index] = True
    outcome.is_warned[index] = bool(charge.warning)
    outcome.latency_s[index] = (now_ns - end_ns) / 1e9
    if charge.energy_uj is None:
        outcome.checks.expect(bool(charge.reason), "a figure is unknown without a reason")
        return 0
    outcome.checks.expect(charge.energy_uj >= 0, f"a negative charge: {charge.energy_uj} uJ")
    outcome.got_uj[index] = charge.energy_uj
    outcome.deviation_uj[index] = charge.deviation_uj
    return charge.energy_uj


def _check(sampler: Sampler, checks: Checks, counted_uj: int, charged_uj: int) -> None:
    ledger = sampler.ledger
    residual = ledger.residual_uj()
    checks.worst_residual_uj = max(checks.worst_residual_uj, abs(residual))
    checks.expect(residual == 0, f"the ledger's residual is {residual} uJ")
    active_uj = sum(totals.active_uj for totals in ledger.active.values())
    accounts = {
        "pending": ledger.pending_uj,
        "idle": ledger.idle_uj,
        "unattributed": ledger.unattributed_uj,
        "gap": ledger.gap_uj,
        "warm-up": ledger.warmup_uj,
    }
    for name, amount in accounts.items():
        checks.expect(amount >= 0, f"the account {name} is negative: {amount} uJ")
    checks.expect(
        ledger.measured_uj == counted_uj,
        f"the ledger measured {ledger.measured_uj} uJ where the counter went up by {counted_uj} uJ",
    )
    checks.expect(
        active_uj == charged_uj, f"charges sum to {charged_uj} uJ, the ledger's active to {active_uj} uJ"
    )
