"""The last minutes of a device's ledger, for the watts of now: what each account took per second.

Owned by the event loop; knows nothing of meters and requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from wattserve_server.energy.ledger import Ledger

PERIOD_S = 2.0
"""How often a sample is taken."""

SAMPLES = 91
"""How many are kept: three minutes of them."""

RECENT_S = 10.0
"""What "now" means: a counter that steps every 100 ms says little about less."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The ledger at an instant. other: warm-up, unattributed and gaps."""

    at_ns: int
    measured_uj: int
    active_uj: int
    idle_uj: int
    other_uj: int


@dataclass(frozen=True, slots=True)
class Watts:
    """Between two samples, on average. The accounts are settled some time after the meter counted, so they do
    not sum to `measured` at every instant."""

    seconds: float
    measured: float
    active: float
    idle: float
    other: float


class History:
    """Of one ledger."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    def add(self, ledger: Ledger) -> None:
        """Keep what it says now, if it has been read since the last time."""
        if ledger.until_ns is None or (self._samples and self._samples[-1].at_ns == ledger.until_ns):
            return
        active_uj = sum(totals.active_uj for totals in ledger.active.values())
        other_uj = ledger.warmup_uj + ledger.unattributed_uj + ledger.gap_uj
        self._samples.append(Sample(ledger.until_ns, ledger.measured_uj, active_uj, ledger.idle_uj, other_uj))

    @property
    def now(self) -> Watts | None:
        """Over the last seconds; None until there are two samples."""
        if len(self._samples) < 2:
            return None
        last = self._samples[-1]
        since_ns = last.at_ns - int(RECENT_S * 1e9)
        first = next((each for each in self._samples if each.at_ns >= since_ns), last)
        return _watts(self._samples[-2] if first is last else first, last)

    @property
    def course(self) -> list[Watts]:
        """From sample to sample, oldest first."""
        samples = list(self._samples)
        return [_watts(first, last) for first, last in pairwise(samples)]


def _watts(first: Sample, last: Sample) -> Watts:
    seconds = (last.at_ns - first.at_ns) / 1e9
    return Watts(
        seconds,
        (last.measured_uj - first.measured_uj) / 1e6 / seconds,
        (last.active_uj - first.active_uj) / 1e6 / seconds,
        (last.idle_uj - first.idle_uj) / 1e6 / seconds,
        (last.other_uj - first.other_uj) / 1e6 / seconds,
    )
