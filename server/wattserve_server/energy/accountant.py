"""The accountant: turns readings and windows into settled charges and a ledger.

It owns the ledger and the cost law of one device. Time comes in as arguments; it reads no clock,
holds no lock and starts no thread: one thread (the sampler) owns it and publishes its `copy`s.

An interval is what lies between two edges, that is, two readings with different values. It is
shared out once every window that may overlap it is known: idle first (idle watts x its length),
then the rest among the windows that overlap it, in proportion to what the cost law predicts that
they deposited there. A window is settled when the interval that holds its end is shared out.
A gap is an interval too: the windows that reach into it are unknown, with its reason.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from wattserve_server.energy.attribution import split_exact
from wattserve_server.energy.costlaw import CostLaw, Deposit, split_weights
from wattserve_server.energy.idle import IdlePower
from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import Reading
from wattserve_server.energy.units import Energy
from wattserve_server.energy.window import Charge, Window

NS = 1_000_000_000

FROZEN_AFTER_NS = 2 * NS
"""A counter whose value stands still this long is taken for frozen: no device draws nothing."""

BESIDE = 0.1
"""Relative deviation of a share of an interval in which next to nothing but the meter's idle draw is
covered by windows; it shrinks with the part of the interval that windows cover."""

LOST_AFTER_NS = 2 * NS
"""A meter that cannot be read for this long is taken for lost: receipts stop waiting for it."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A reading with a new value. The value changed at most `late_ns` before it was read."""

    reading: Reading
    late_ns: int

    @property
    def at_ns(self) -> int:
        return self.reading.at_ns


@dataclass(frozen=True, slots=True)
class Interval:
    """Between two edges. With a `gap_reason`, its energy (if any is known) belongs to no window."""

    start: Edge
    end: Edge
    energy_uj: int
    gap_reason: str = ""

    @property
    def length_ns(self) -> int:
        return self.end.at_ns - self.start.at_ns

    @property
    def timing_deviation_uj(self) -> float:
        """How much energy may lie on the wrong side of its two edges."""
        late_ns = math.hypot(self.start.late_ns, self.end.late_ns) / math.sqrt(12)
        return self.energy_uj * late_ns / self.length_ns


@dataclass(slots=True)
class _Open:
    """A window that waits for the intervals that cover it."""

    window: Window
    energy_uj: int = 0
    variance: float = 0.0
    idle_share_uj: int = 0
    unknown_reason: str = ""


@dataclass(slots=True)
class Accountant:
    """idle: the device's idle draw. wraps_at: where the counter starts again from 0, if it does."""

    idle: IdlePower
    wraps_at: Energy | None = None
    law: CostLaw = field(default_factory=CostLaw)
    ledger: Ledger = field(default_factory=Ledger)
    _edge: Edge | None = None
    _last_read_ns: int = 0
    _failing_since_ns: int | None = None
    _failure: str = "the meter has not been read yet"
    _intervals: deque[Interval] = field(default_factory=deque)
    _open: list[_Open] = field(default_factory=list)

    @property
    def pending_windows(self) -> int:
        return len(self._open)

    def observe(self, reading: Reading) -> None:
        """A good reading. Readings come in the order of their instants."""
        edge, last_read_ns = self._edge, self._last_read_ns
        self._failing_since_ns = None
        self._last_read_ns = reading.at_ns
        if edge is None:
            self._edge = Edge(reading, 0)
            self.ledger.since_ns = self.ledger.until_ns = reading.at_ns
            return
        delta_uj = (reading.energy - edge.reading.energy).uj
        if delta_uj < 0 and self.wraps_at is not None and edge.reading.energy.uj > self.wraps_at.uj // 2:
            delta_uj += self.wraps_at.uj
        if delta_uj == 0:
            stands_still = reading.at_ns - edge.at_ns > FROZEN_AFTER_NS and self.idle.watts != 0
            if stands_still and self.ledger.open_gap is None:
                self.ledger.begin_gap(edge.at_ns, "the meter's counter stands still")
            return
        if delta_uj < 0:
            if self.ledger.open_gap is None:
                self.ledger.begin_gap(edge.at_ns, f"the meter's counter stepped back by {-delta_uj} uJ")
            delta_uj = 0
        gap = self.ledger.open_gap
        if gap is not None:
            self.ledger.end_gap(reading.at_ns)
        # A counter that stood still at the poll before has stepped since then; one that changes
        # with every poll is continuous, and its readings are exact.
        stepped = last_read_ns > edge.at_ns
        self._edge = Edge(reading, reading.at_ns - last_read_ns if stepped else 0)
        self.ledger.meter(delta_uj)
        self.ledger.until_ns = reading.at_ns
        self._intervals.append(Interval(edge, self._edge, delta_uj, gap.reason if gap else ""))

    def failed(self, at_ns: int, reason: str) -> None:
        """The meter could not be read at `at_ns`."""
        self._failure = reason
        if self._edge is None:
            return
        if self._failing_since_ns is None:
            self._failing_since_ns = at_ns
        if at_ns - self._failing_since_ns > LOST_AFTER_NS and self.ledger.open_gap is None:
            self.ledger.begin_gap(self._edge.at_ns, reason)

    def advance(self, windows: Sequence[Window], known_until_ns: int) -> list[Charge]:
        """Settle what can be settled.

        windows: those that ended since the last call. known_until_ns: every window that started
        before this instant has been handed over, now or earlier.
        """
        since_ns = self.ledger.since_ns
        for window in windows:
            is_covered = since_ns is not None and window.start_ns >= since_ns
            self._open.append(_Open(window, unknown_reason="" if is_covered else self._failure))
        charges: list[Charge] = []
        while self._intervals and self._intervals[0].end.at_ns <= known_until_ns:
            interval = self._intervals.popleft()
            if interval.gap_reason:
                self._pass_gap(interval)
            else:
                self._share(interval)
            charges += self._settle(interval.end.at_ns)
        return charges + self._give_up()

    def _pass_gap(self, interval: Interval) -> None:
        self.ledger.to_gap(interval.energy_uj)
        for item, _ in self._overlapping(interval):
            item.unknown_reason = interval.gap_reason

    def _share(self, interval: Interval) -> None:
        """Book one interval: idle, then the windows that overlap it."""
        length_ns = interval.length_ns
        here = self._overlapping(interval)
        if not here:
            idle_uj = self.idle.learn(interval.energy_uj, length_ns)
            self.ledger.to_idle(idle_uj)
            self.ledger.to_unattributed(interval.energy_uj - idle_uj)
            return
        if self.idle.watts is None:
            self.ledger.to_unattributed(interval.energy_uj)
            for item, _ in here:
                item.unknown_reason = "the device's idle draw was not known yet"
            return
        idle_uj = min(interval.energy_uj, self.idle.energy_uj(length_ns))
        self.ledger.to_idle(idle_uj, self._show_idle(here, idle_uj, length_ns))
        active_uj = interval.energy_uj - idle_uj
        deposits = [
            Deposit(item.window.variant, item.window.computed_tokens, overlap / item.window.duration_ns)
            for item, overlap in here
        ]
        weights = self._weights(here, deposits)
        expected = math.fsum(weights)
        busy = min(1.0, sum(overlap for _, overlap in here) / length_ns)
        outside_uj = math.hypot(interval.timing_deviation_uj, self.idle.deviation_watts * length_ns / 1000)
        for (item, _), weight, share in zip(here, weights, split_exact(active_uj, weights), strict=True):
            item.energy_uj += share
            portion = weight / expected
            # Given the total, a share is uncertain against the other windows' shares; the total is
            # uncertain by the instants of the edges and by the idle draw.
            item.variance += (self.law.view.noise * share) ** 2 * (1 - portion) + (outside_uj * portion) ** 2
            # What ran in the interval beside the batches (taking requests in, writing answers) is in
            # the share and cannot be told apart from it: as a fraction of the time no window ran.
            item.variance += (BESIDE * share * (1 - busy)) ** 2
        self.law.learn(deposits, active_uj, length_ns / NS)

    def _overlapping(self, interval: Interval) -> list[tuple[_Open, int]]:
        """The open windows in an interval, each with how long it ran there, in nanoseconds."""
        here: list[tuple[_Open, int]] = []
        for item in self._open:
            window = item.window
            overlap = min(window.end_ns, interval.end.at_ns) - max(window.start_ns, interval.start.at_ns)
            if overlap > 0:
                here.append((item, overlap))
        return here

    def _weights(self, here: Sequence[tuple[_Open, int]], deposits: Sequence[Deposit]) -> list[float]:
        """What the law predicts each window deposited; plain overlap while any law is unknown."""
        view = self.law.view
        by_time = [float(overlap) for _, overlap in here]
        weights: list[float] = []
        for deposit in deposits:
            coefficients = view.get(deposit.variant)
            if coefficients is None:
                return by_time
            weights.append(deposit.fraction * coefficients.cost_uj(deposit.computed_tokens))
        return weights if any(weights) else by_time

    def _show_idle(self, here: Sequence[tuple[_Open, int]], idle_uj: int, length_ns: int) -> int:
        """Idle draw while batches ran, by the time they ran: what receipts of it will show."""
        busy_ns = sum(overlap for _, overlap in here)
        shown = 0
        for item, overlap in here:
            share = idle_uj * overlap // max(length_ns, busy_ns)
            item.idle_share_uj += share
            if not item.window.is_warmup:
                shown += share
        return shown

    def _settle(self, until_ns: int) -> list[Charge]:
        """Close the windows whose last interval has been booked."""
        charges: list[Charge] = []
        waiting: list[_Open] = []
        for item in self._open:
            if item.window.end_ns > until_ns:
                waiting.append(item)
            elif item.unknown_reason:
                charges += self._no_figure(item, item.unknown_reason)
            else:
                charges += self._charge(item)
        self._open = waiting
        return charges

    def _charge(self, item: _Open) -> list[Charge]:
        window = item.window
        if window.is_warmup:
            self.ledger.to_warmup(item.energy_uj)
            return []
        self.ledger.to_active(
            window.variant, item.energy_uj, len(window.lengths), sum(window.lengths), window.computed_tokens
        )
        weights = split_weights(self.law.view, window)
        whole = math.fsum(weights)
        deviation = math.sqrt(item.variance)
        return [
            Charge(line, energy_uj, deviation * weight / whole, idle_uj)
            for line, weight, energy_uj, idle_uj in zip(
                window.lines,
                weights,
                split_exact(item.energy_uj, weights),
                split_exact(item.idle_share_uj, weights),
                strict=True,
            )
        ]

    def _no_figure(self, item: _Open, reason: str) -> list[Charge]:
        self.ledger.to_unattributed(item.energy_uj)
        self.ledger.to_unknown(item.idle_share_uj, len(item.window.lines))
        return [Charge(line, None, 0.0, None, reason) for line in item.window.lines]

    def _give_up(self) -> list[Charge]:
        """Windows that no interval will ever cover, or that reach into a gap that still lasts."""
        gap = self.ledger.open_gap
        charges: list[Charge] = []
        waiting: list[_Open] = []
        for item in self._open:
            if self.ledger.since_ns is None:
                charges += self._no_figure(item, item.unknown_reason)
            elif gap is not None and item.window.end_ns > gap.start_ns:
                charges += self._no_figure(item, gap.reason)
            else:
                waiting.append(item)
        self._open = waiting
        return charges
