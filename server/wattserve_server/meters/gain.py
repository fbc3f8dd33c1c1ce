"""A sensor whose error is known: what it counts, times the gain that a reference showed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from wattserve_server.energy.reading import ZERO, Energy, Reading, Source
from wattserve_server.meters.port import Meter, counted_uj


class GainMeter:
    """Energies of `meter`, which is taken over, times `gain`: the true joules for each that it counts.

    `error` is how far the gain may be off, relative to it. It is told and used nowhere: it moves all figures
    alike, and has no place in an interval that says how well they are apportioned.
    """

    def __init__(self, meter: Meter, gain: float, error: float) -> None:
        self.meter = meter
        self._gain = Fraction(str(gain))
        self._words = f"times a sensor gain of {gain:g}, " + (
            f"known to ±{100 * error:g} %" if error else "whose error was not given"
        )
        self.wraps_at: Energy | None = None if meter.wraps_at is None else self._corrected(meter.wraps_at)
        self.idle_watts: float | None = None if meter.idle_watts is None else meter.idle_watts * gain
        self.most_watts: float | None = None if meter.most_watts is None else meter.most_watts * gain
        self.poll_period_s = meter.poll_period_s
        self.raw_energy = ZERO  # what the sensor itself counted since it was first read here
        self._last: Reading | None = None

    @property
    def source(self) -> Source:
        source = self.meter.source
        cpu_watts = None if source.cpu_watts is None else source.cpu_watts * float(self._gain)
        return replace(source, note=f"{source.note}; {self._words}", cpu_watts=cpu_watts)

    def read(self) -> Reading:
        raw = self.meter.read()
        last, self._last = self._last or raw, raw
        wraps_at_uj = None if self.meter.wraps_at is None else self.meter.wraps_at.uj
        gained_uj = counted_uj(last.energy.uj, raw.energy.uj, wraps_at_uj, raw.at_ns - last.at_ns)
        self.raw_energy += Energy(gained_uj or 0)
        return Reading(raw.at_ns, self._corrected(raw.energy))

    def neighbours(self) -> int | None:
        return self.meter.neighbours()

    def others_at_work(self) -> float | None:
        return self.meter.others_at_work()

    def clock_mhz(self) -> int | None:
        return self.meter.clock_mhz()

    def close(self) -> None:
        self.meter.close()

    def _corrected(self, energy: Energy) -> Energy:
        return Energy(energy.uj * self._gain.numerator // self._gain.denominator)


def raw_energy(meter: Meter) -> Energy | None:
    """What the sensor itself counted, where its figures are corrected."""
    return meter.raw_energy if isinstance(meter, GainMeter) else None
