"""The beat of a stepped counter: when it changed, more closely than the polls that saw it.

A sensor updates at a steady beat, give or take a jitter. Each poll that finds a new value bounds one update
between itself and the poll before; many such bounds together place the beat. Pure; times in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

LOST = 4.0
"""An update this many standard deviations off the beat begins a new one."""

FIRST_JITTER = 0.05
"""Deviation of an update from the beat, relative to the period, before any was seen."""

LEAST_JITTER = 0.003
"""No beat is taken for steadier than this."""

UNSEEN = 0.1
"""A jitter below this part of the time between two polls cannot be told from none."""

MEMORY = 0.03
"""Weight of the newest update in the jitter."""


@dataclass(slots=True)
class Beat:
    """period_ns: a first idea of the time between updates."""

    period_ns: float
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
        beats = max(1, round((middle_ns - self._at_ns) / self.period_ns))
        expected_ns = self._at_ns + beats * self.period_ns
        drift = (1e-3 * self.period_ns) ** 2 * beats
        spread = self._at_variance + 2 * beats * self._cross + beats**2 * self._period_variance + drift
        off_ns = middle_ns - expected_ns
        total = spread + self._jitter_variance + width_variance
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
        self._seen_variance += MEMORY * (seen - self._seen_variance)
        least = max(LEAST_JITTER * self.period_ns, UNSEEN * (late_ns - early_ns))
        self._jitter_variance = max(self._seen_variance, least**2)
        deviation_ns = min((self._at_variance + self._jitter_variance) ** 0.5, width_variance**0.5)
        return round(min(max(self._at_ns, early_ns), late_ns)), deviation_ns
