"""From readings to edges: the instants at which a counter's value changed, and what it counted between them.

Knows wrap-around, steps back, jumps that no device can have drawn, counters that stand still and meters that
cannot be read: each of the last four makes a gap. What was drawn over a step or a jump is lost, and in no
account. A stepped counter's beat says when it changed, more closely than the polls that saw it.
Knows nothing of batches.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import Energy, Reading

NS = 1_000_000_000

FROZEN_AFTER_NS = 2 * NS  # a counter that stands still so long is taken for frozen: no device draws nothing
# A counter is wrong that counts more than this many times what its device can draw, or any device where that
# is not known. It may be late: what it counts at once may be of as long as this.
BEYOND_LIMIT, MOST_WATTS, LATE_NS = 2, 10_000, NS
LOST_AFTER_NS = 2 * NS  # a meter that cannot be read so long is taken for lost: receipts stop waiting for it
PERIODS = 64  # edges over which the update period is the median
STEADY = 4  # periods that must have been seen before the counter's beat is followed


@dataclass(frozen=True, slots=True)
class Edge:
    """The counter changed at `at_ns`, give or take `deviation_ns`, by `energy_uj` since the edge before."""

    start_ns: int  # the edge before
    at_ns: int
    deviation_ns: float
    energy_uj: int
    is_first: bool = False  # nothing is known of when its energy began to be counted
    gap_reason: str = ""  # why its energy belongs to no batch; empty for a good edge


@dataclass(slots=True)
class EdgeFinder:
    """Books what the counter says, and its gaps, in `ledger`; hands out the edges."""

    ledger: Ledger
    wraps_at: Energy | None  # where the counter starts again from 0, if it does
    may_stand_still: bool  # a device that rests draws nothing: a counter that does not change is not frozen
    most_watts: float | None = None  # that the device can draw, where it says so
    failure: str = "the meter has not been read yet"  # what the last reading that failed said
    _value: Energy | None = None
    _edge_ns: int = 0
    _last_read_ns: int = 0
    _is_first: bool = True
    _failing_since_ns: int | None = None
    _periods_ns: deque[int] = field(default_factory=lambda: deque(maxlen=PERIODS))
    _is_stepped: bool = False
    _beat: Beat | None = None

    @property
    def period_ns(self) -> float:
        """The time between edges; 0 while unknown."""
        return median(self._periods_ns) if self._periods_ns else 0.0

    def observe(self, reading: Reading) -> Edge | None:
        """A good reading; the edge that it shows, if any. Readings come in the order of their instants."""
        edge = self._edge(reading)
        self._last_read_ns, self._failing_since_ns = reading.at_ns, None
        return edge

    def _edge(self, reading: Reading) -> Edge | None:
        if self._value is None:
            self._value, self._edge_ns = reading.energy, reading.at_ns
            self.ledger.begin(reading.at_ns)
            return None
        delta_uj = (reading.energy - self._value).uj
        if delta_uj < 0 and self.wraps_at is not None and self._value.uj > self.wraps_at.uj // 2:
            delta_uj += self.wraps_at.uj
        if delta_uj == 0 and not self.may_stand_still:
            if reading.at_ns - self._edge_ns > FROZEN_AFTER_NS and self.ledger.open_gap is None:
                self.ledger.begin_gap(self._edge_ns, "the meter's counter stands still")
            self._is_stepped = True
            return None
        wrong = self._what_is_wrong(delta_uj, reading.at_ns - self._edge_ns)
        if wrong:
            if self.ledger.open_gap is None:
                self.ledger.begin_gap(self._edge_ns, wrong)
            delta_uj = 0
        return self._change(reading, delta_uj)

    def _what_is_wrong(self, delta_uj: int, lasted_ns: int) -> str:
        """Why no device can have drawn this in this time; empty where one can."""
        if delta_uj < 0:
            return f"the meter's counter stepped back by {-delta_uj} uJ"
        limit_w = BEYOND_LIMIT * (self.most_watts or MOST_WATTS)
        if delta_uj * 1000 <= limit_w * max(lasted_ns, LATE_NS):
            return ""
        joules, seconds = delta_uj / 1e6, lasted_ns / NS
        return f"the meter's counter jumped by {joules:g} J in {seconds:.3g} s, beyond {limit_w:g} W"

    def failed(self, at_ns: int, reason: str) -> None:
        """The meter could not be read at `at_ns`."""
        self.failure = reason
        if self._value is None:
            return
        if self._failing_since_ns is None:
            self._failing_since_ns = at_ns
        if at_ns - self._failing_since_ns > LOST_AFTER_NS and self.ledger.open_gap is None:
            self.ledger.begin_gap(self._edge_ns, reason)

    def begin_again(self, at_ns: int, reason: str) -> None:
        """An error met at `at_ns`: nothing is known of the beat any more, and the reading does not count."""
        self._periods_ns.clear()
        self._beat = None
        self.failed(at_ns, reason)

    def _change(self, reading: Reading, delta_uj: int) -> Edge:
        """All is computed before anything is booked: after an error the next reading shows the edge."""
        gap = self.ledger.open_gap
        at_ns, deviation_ns = reading.at_ns, 0.0
        if gap is None and self._is_stepped:
            at_ns, deviation_ns = self._place(self._last_read_ns, reading.at_ns)
        at_ns = max(at_ns, self._edge_ns + 1)
        edge = Edge(self._edge_ns, at_ns, deviation_ns, delta_uj, self._is_first, gap.reason if gap else "")
        if gap is not None:
            self.ledger.end_gap(reading.at_ns)
            self._beat = None
        elif not self._is_first:
            self._periods_ns.append(at_ns - self._edge_ns)
        self._value, self._edge_ns = reading.energy, at_ns
        self._is_first = gap is not None
        self.ledger.until_ns = reading.at_ns
        self.ledger.meter(delta_uj)
        return edge

    def _place(self, early_ns: int, late_ns: int) -> tuple[int, float]:
        """A stepped counter has changed between two polls, and within its own period of the later one."""
        if len(self._periods_ns) < STEADY:
            return (early_ns + late_ns) // 2, (late_ns - early_ns) / math.sqrt(12)
        early_ns = max(early_ns, late_ns - round(self._beat.period_ns if self._beat else self.period_ns))
        if self._beat is None:
            self._beat = Beat(self.period_ns)
            self._beat.start(early_ns, late_ns)
        return self._beat.place(early_ns, late_ns)


LOST = 4.0  # an update this many standard deviations off the beat begins a new one
FIRST_JITTER = 0.05  # deviation of an update from the beat, relative to the period, before any was seen
LEAST_JITTER = 0.003  # no beat is taken for steadier than this
UNSEEN = 0.1  # a jitter below this part of the time between two polls cannot be told from none
BLIND = 0.95  # of a period: polls so far apart say nothing of when it beats
SKIPPED = (
    0.25  # an update that nobody saw is believed in where the next one is so close to the beat, in periods
)
MEMORY = 0.03  # weight of the newest update in the jitter


@dataclass(slots=True)
class Beat:
    """A sensor updates at a steady beat, give or take a jitter. Each poll that finds a new value bounds one
    update between itself and the poll before; many such bounds together place the beat."""

    period_ns: float  # a first idea of the time between updates
    _at_ns: float = 0.0
    _period_variance: float = 0.0
    _at_variance: float = 0.0
    _cross: float = 0.0
    _jitter_variance: float = 0.0
    _seen_variance: float = 0.0

    def start(self, early_ns: int, late_ns: int) -> None:
        """An update happened between these instants, and nothing is known of those before it."""
        self._at_ns = (early_ns + late_ns) / 2
        self._at_variance = (late_ns - early_ns) ** 2 / 12
        self._period_variance = (0.1 * self.period_ns) ** 2
        self._cross = 0.0
        self._jitter_variance = self._seen_variance = (FIRST_JITTER * self.period_ns) ** 2

    def place(self, early_ns: int, late_ns: int) -> tuple[int, float]:
        """When an update between these instants happened, and the standard deviation of that."""
        middle_ns = (early_ns + late_ns) / 2
        width_variance = (late_ns - early_ns) ** 2 / 12
        since = (middle_ns - self._at_ns) / self.period_ns
        beats = max(1, round(since))
        if late_ns - early_ns < self.period_ns and abs(since - beats) > SKIPPED:
            beats = (
                1  # polls have seen each update: a wrong period must not be mended by one that is not there
            )
        expected_ns = self._at_ns + beats * self.period_ns
        drift = (1e-3 * self.period_ns) ** 2 * beats
        spread = self._at_variance + 2 * beats * self._cross + beats**2 * self._period_variance + drift
        off_ns = middle_ns - expected_ns
        total = spread + self._jitter_variance + width_variance
        if late_ns - early_ns >= BLIND * self.period_ns:  # of several updates, the last
            self._at_ns, self._at_variance = expected_ns, spread
            self._cross += beats * self._period_variance
            deviation_ns = (spread + self._jitter_variance) ** 0.5
            if abs(off_ns) + LOST * deviation_ns > (late_ns - early_ns) / 2:  # this update or the one before
                return round(middle_ns), (late_ns - early_ns) / 2
            return round(expected_ns), deviation_ns
        if off_ns**2 > LOST**2 * total:
            self.start(early_ns, late_ns)
            return round(middle_ns), width_variance**0.5
        cross = self._cross + beats * self._period_variance
        gain, period_gain = spread / total, cross / total
        self._at_ns = expected_ns + gain * off_ns
        self.period_ns += period_gain * off_ns
        self._period_variance -= period_gain * cross
        self._period_variance += (1e-5 * self.period_ns) ** 2
        self._cross = cross * (1 - gain)
        self._at_variance = spread * (1 - gain)
        seen = off_ns**2 - spread - width_variance  # on average the jitter's; singly it may be negative
        if 2 * spread < total:  # else the beat itself is hardly known
            self._seen_variance += MEMORY * (seen - self._seen_variance)
        least = max(LEAST_JITTER * self.period_ns, UNSEEN * (late_ns - early_ns))
        self._jitter_variance = max(self._seen_variance, least**2)
        deviation_ns = min((self._at_variance + self._jitter_variance) ** 0.5, width_variance**0.5)
        return round(min(max(self._at_ns, early_ns), late_ns)), deviation_ns
