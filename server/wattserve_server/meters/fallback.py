"""A board's energy counter, for as long as the board's own power bears it out.

A driver can offer a counter that stands still for ever, or that counts something else than the board draws.
Which of its figures is wrong a driver does not say; but a counter that is at odds with the power for minutes
is not to be billed by, and the power is the next best.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from wattserve_server.energy.reading import ZERO, Energy, Reading, Source
from wattserve_server.errors import MeterError
from wattserve_server.meters.port import Meter

log = logging.getLogger(__name__)

WATCH_EVERY_NS = 100_000_000  # how often the power is read beside the counter, and shown after it
STILL_NS = 10_000_000_000  # a counter that did not change for so long, while power was drawn, is left
WINDOW_NS = 60_000_000_000  # counter and power are compared over so long
AT_ODDS = 0.3  # so far apart, relative to the power, they contradict each other
CONTRADICTIONS = 3  # after so many windows in a row the counter is left
LEAST_WATTS = 1.0  # every board draws more: a power below says nothing against the counter


@dataclass(frozen=True, slots=True)
class _Both:
    """What the two said at one time."""

    counter: Reading
    power: Reading

    def since(self, start: _Both) -> tuple[float, float, float]:
        """Seconds, joules of the counter, joules of the power."""
        return (
            (self.counter.at_ns - start.counter.at_ns) / 1e9,
            (self.counter.energy - start.counter.energy).joules,
            (self.power.energy - start.power.energy).joules,
        )


class FallbackMeter:
    """Reads `counter`; once that was found wrong, `power`, for good.

    The power then counts from 0: the step back tells the reader that there is a gap. `source` is from then on
    that of the power, and its note says why.
    """

    wraps_at: Energy | None = None
    idle_watts: float | None = None

    def __init__(self, counter: Meter, power: Meter) -> None:
        """Both of one board, and both taken over. The counter must not wrap, nor the power step back
        other than to 0."""
        self._counter, self._power = counter, power
        self.poll_period_s = counter.poll_period_s
        self.most_watts = counter.most_watts
        self.source: Source = counter.source
        self._is_left = False
        self._watched_ns = 0
        self._last: _Both | None = None
        self._begun: _Both | None = None  # where the window began
        self._changed: _Both | None = None  # when the counter was last seen to change
        self._contradictions = 0
        self._base = ZERO  # what the power had counted when it took over
        self._shown: Reading | None = None

    def read(self) -> Reading:
        if not self._is_left:
            reading = self._counter.read()
            if reading.at_ns - self._watched_ns < WATCH_EVERY_NS:
                return reading
            self._watched_ns = reading.at_ns
            wrong = self._watch(reading)
            if not wrong:
                return reading
            self._leave(wrong)
        return self._read_power()

    def neighbours(self) -> int | None:
        return self._counter.neighbours()

    def others_at_work(self) -> float | None:
        return self._counter.others_at_work()

    def clock_mhz(self) -> int | None:
        return self._counter.clock_mhz()

    def close(self) -> None:
        self._counter.close()
        self._power.close()

    def _watch(self, counter: Reading) -> str:
        """What is wrong with the counter; empty while nothing is known to be."""
        try:
            now = _Both(counter, self._power.read())
        except MeterError:
            self._last = None
            return ""
        last, self._last = self._last, now
        if last is None or self._begun is None or self._changed is None or _stepped_back(last, now):
            self._begun = self._changed = now
            self._contradictions = 0
            return ""
        if now.counter.energy != last.counter.energy:
            self._changed = now
        return self._judge_stillness(now, self._changed) or self._judge_window(now, self._begun)

    def _judge_stillness(self, now: _Both, changed: _Both) -> str:
        seconds, _, power_j = now.since(changed)
        if seconds < STILL_NS / 1e9 or power_j < LEAST_WATTS * seconds:
            return ""
        return f"it stood still for {seconds:.0f} s in which the board drew {power_j:.0f} J by its own power"

    def _judge_window(self, now: _Both, begun: _Both) -> str:
        seconds, counter_j, power_j = now.since(begun)
        if seconds < WINDOW_NS / 1e9:
            return ""
        self._begun = now
        is_at_odds = power_j >= LEAST_WATTS * seconds and abs(counter_j / power_j - 1) > AT_ODDS
        self._contradictions = self._contradictions + 1 if is_at_odds else 0
        if self._contradictions < CONTRADICTIONS:
            return ""
        minutes = CONTRADICTIONS * WINDOW_NS / 60e9
        return (
            f"for {minutes:.0f} minutes it was at odds with the board's own power, at last "
            f"{counter_j:.0f} J against {power_j:.0f} J in {seconds:.0f} s"
        )

    def _leave(self, wrong: str) -> None:
        assert self._last is not None
        self._is_left, self._base = True, self._last.power.energy
        self._shown = Reading(self._last.power.at_ns, ZERO)
        words = f"the board's energy counter was left, because {wrong}"
        power = self._power.source
        self.source = replace(power, note=f"{words}; receipts from before are of the counter; {power.note}")
        log.error(
            "%s: %s; from now on joules are its integrated power, %s",
            self.source.name,
            words,
            self.source.quality.value,
        )

    def _read_power(self) -> Reading:
        """In steps: polls are as frequent as the counter needed, and each change is work for the reader."""
        assert self._shown is not None
        power = self._power.read()
        if power.energy < self._base:  # nobody sampled it for too long, and it counts from 0 again
            self._base = ZERO
        if power.at_ns - self._shown.at_ns >= WATCH_EVERY_NS:
            self._shown = Reading(power.at_ns, power.energy - self._base)
        return Reading(power.at_ns, self._shown.energy)


def _stepped_back(before: _Both, now: _Both) -> bool:
    return now.counter.energy < before.counter.energy or now.power.energy < before.power.energy
