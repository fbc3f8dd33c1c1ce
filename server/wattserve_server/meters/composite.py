"""The composite meter: several meters read as one, e.g. a GPU board and the CPU packages of its host.

Knows how to add counters up so that the parts stay visible. Knows nothing about what it adds; which sums are
honest is decided in `choose`.

A counter that stands still between updates must be added with care. A GPU's counter steps every 100 ms and
RAPL's every millisecond: their plain sum changes at every poll, and a reader would take the GPU's 100 ms for
what was drawn since the last poll. So the sum is published only at polls by which every part has changed:
the composite steps when its slowest part does, and the faster ones are exact at that instant. The limit: of
several parts that step, the faster ones are late by up to a period of their own. A part that stands still
holds the sum still, and the reader sees a frozen counter; unless it declares to draw nothing at rest.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from wattserve_server.energy.reading import ZERO, Energy, Quality, Reading, Source, where_all_known
from wattserve_server.errors import MeterError
from wattserve_server.meters.port import Meter, counted_uj

_BEST_FIRST = (Quality.MEASURED, Quality.ESTIMATED, Quality.SIMULATED, Quality.NONE)


@dataclass(slots=True)
class _Part:
    meter: Meter
    last: Reading
    energy: Energy = ZERO
    has_changed: bool = False

    def advance(self, now: Reading) -> bool:
        """Books what was counted since the last reading; False when it stepped back without wrapping."""
        before, self.last = self.last, now
        wraps_at_uj = self.meter.wraps_at.uj if self.meter.wraps_at is not None else None
        gained_uj = counted_uj(before.energy.uj, now.energy.uj, wraps_at_uj, now.at_ns - before.at_ns)
        if gained_uj is None:
            return False
        self.energy = self.energy + Energy(gained_uj)
        self.has_changed = self.has_changed or gained_uj > 0
        return True


class CompositeMeter:
    """The sum of its parts, in microjoules, each counted from the opening of the composite.

    What wraps in a part is followed here. A part that cannot be read makes the composite unreadable, and the
    error names it. A part that steps back otherwise (it was reset) leaves a gap: the sum starts again from 0,
    and the step back tells the reader.
    """

    wraps_at: Energy | None = None
    most_watts: float | None = None

    def __init__(self, meters: Sequence[Meter]) -> None:
        """Takes the meters over and closes them with itself. Raises MeterError if one cannot be read.

        The best quality that the sum can have is that of its worst part; its idle draw is declared only if
        all parts declare theirs.
        """
        self.meters = tuple(meters)
        self._parts = [_Part(meter, _read(meter)) for meter in self.meters]
        self._energy = ZERO
        self.idle_watts: float | None = where_all_known(sum, [meter.idle_watts for meter in self.meters])
        self.poll_period_s = min(meter.poll_period_s for meter in self.meters)
        self._closed = False

    @property
    def source(self) -> Source:
        """Of the parts' sources as they are now: a part can fall back on another."""
        return joined(tuple(meter.source for meter in self.meters))

    def read(self) -> Reading:
        if self._closed:
            raise MeterError(f"the composite meter {self.source.name} is closed")
        # All are read before any is booked, so that a failed reading leaves nothing half counted.
        readings = [_read(part.meter) for part in self._parts]
        at_ns = (readings[0].at_ns + readings[-1].at_ns) // 2
        advanced = [part.advance(now) for part, now in zip(self._parts, readings, strict=True)]
        if not all(advanced):
            for part in self._parts:
                part.energy = ZERO
            self._publish()
        elif all(part.has_changed or part.meter.idle_watts == 0 for part in self._parts):
            self._publish()
        return Reading(at_ns, self._energy)

    def neighbours(self) -> int | None:
        """Of the parts that can tell, together; one that is on two of them counts twice."""
        counts = [count for meter in self.meters if (count := meter.neighbours()) is not None]
        return sum(counts) if counts else None

    def others_at_work(self) -> float | None:
        """Of all parts together; None where one cannot tell: a sum without it would be too low."""
        return where_all_known(sum, [meter.others_at_work() for meter in self.meters])

    def clock_mhz(self) -> int | None:
        """Of the first part that tells."""
        return next((mhz for meter in self.meters if (mhz := meter.clock_mhz()) is not None), None)

    def close(self) -> None:
        self._closed = True
        for meter in self.meters:
            meter.close()

    def _publish(self) -> None:
        for part in self._parts:
            part.has_changed = False
        self._energy = sum((part.energy for part in self._parts), ZERO)


def _read(meter: Meter) -> Reading:
    try:
        return meter.read()
    except MeterError as error:
        raise MeterError(f"{meter.source.name}, a part of the composite meter: {error}") from error


@functools.lru_cache(maxsize=16)  # receipts ask for it
def joined(sources: tuple[Source, ...]) -> Source:
    """The source of a sum, which is as good as its worst part."""
    if len(sources) == 1:
        return sources[0]
    names = [source.name for source in sources]
    worst = max((source.quality for source in sources), key=_BEST_FIRST.index)
    methods = list(dict.fromkeys(source.method for source in sources))
    return Source(
        name="+".join(names),
        method=f"sum of: {', '.join(methods)}" if len(methods) > 1 else methods[0],
        quality=worst,
        note="; ".join(
            f"{source.name} is {source.quality.value}" + (f": {source.note}" if source.note else "")
            for source in sources
        ),
        boundary=" + ".join(source.boundary for source in sources),
        counts_server=any(source.counts_server for source in sources),
        averages_s=max(source.averages_s for source in sources),
    )
