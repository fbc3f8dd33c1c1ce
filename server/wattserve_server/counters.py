"""An energy counter with its one accountant, and the devices that draw on it.

A sum of meters is not one counter: each of its parts has a sampler of its own, and so a ledger, a response,
an idle draw and a watch for strangers of its own. The host that several devices share is one counter too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from wattserve_common.words import origin
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.attribution import BUSY_TIME
from wattserve_server.energy.inflight import Visit
from wattserve_server.energy.ledger import Counted
from wattserve_server.energy.probe import MeterPart, SensorProbe, poll_period_s
from wattserve_server.energy.reading import Energy, Quality
from wattserve_server.energy.receipt import HOST, Charge, IdleShare, Window
from wattserve_server.meters.gain import raw_energy
from wattserve_server.meters.port import Meter
from wattserve_server.meters.probe import probe_with_parts
from wattserve_server.meters.sampler import DrainVisits, DrainWindows, Sampler

LISTENING_POLL_S = 0.05  # how often a continuous meter is read, at the least, while it is learned from

# A counter's name, its part of the machine, what was settled by it, and what its active account holds then.
OnCharges = Callable[[str, str, Sequence[Charge], int], None]
# Its part of the machine, and what of its idle draw requests are told to be theirs by time.
OnIdleShares = Callable[[str, Sequence[IdleShare]], None]


class Records(Protocol):
    def accountant_of(self, name: str, part: str, origin: str) -> Callable[..., Accountant]:
        """What makes the accountant of a counter of this name."""


class Counter:
    """Call `draw` for every device, then `probe`, before everything else."""

    def __init__(self, part: str, meter: Meter, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """part: of the machine, which it counts."""
        self._clock_ns = clock_ns
        self.part = part
        self.meter = meter
        self.devices: list[str] = []
        self.probed = SensorProbe(0.0, 0)
        self.sampler: Sampler
        self._drains: list[DrainWindows] = []
        self._drains_of_visits: list[DrainVisits] = []
        self._listening_s = max(LISTENING_POLL_S, meter.poll_period_s)

    def draw(self, device: str, drain: DrainWindows, drain_visits: DrainVisits = tuple) -> None:
        """What this device runs is counted here too."""
        self.devices.append(device)
        self._drains.append(drain)
        self._drains_of_visits.append(drain_visits)

    @property
    def name(self) -> str:
        """No other counter of the server has it."""
        return f"{self.part} of {', '.join(self.devices)}"

    @property
    def tells_joules(self) -> bool:
        return self.meter.source.quality is not Quality.NONE

    @property
    def has_idle_to_learn(self) -> bool:
        return self.tells_joules and self.meter.idle_watts is None

    @property
    def update_period_s(self) -> float:
        """How often its value changes, as far as the sampler sees."""
        return self.probed.update_period_s or self._listening_s

    def probe(
        self,
        on_charges: OnCharges,
        on_idle_shares: OnIdleShares,
        split_rule: str,
        idle_policy: str = BUSY_TIME,
        records: Records | None = None,
    ) -> None:
        """Find out what kind of sensor it is, and make the sampler that will read it. Takes a second.

        records: who keeps what its accountant is told."""
        make_accountant: Callable[..., Accountant] = Accountant
        if records is not None:
            whence = origin(self.meter.source.quality.value, self.meter.source.name)
            make_accountant = records.accountant_of(self.name, self.part, whence)
        self.probed = probe_with_parts(self.meter).probe
        self.sampler = Sampler(
            self.meter,
            self._drain,
            lambda charges: on_charges(self.name, self.part, charges, self.sampler.ledger.active_uj),
            poll_period_s=min(self._pace_s, self._listening_s),
            split_rule=split_rule,
            idle_policy=idle_policy,
            drain_visits=self._visits,
            on_idle_shares=lambda shares: on_idle_shares(self.part, shares),
            clock_ns=self._clock_ns,
            make_accountant=make_accountant,
        )

    def keep_pace(self) -> None:
        """From now on read no more often than accounting needs."""
        self.sampler.poll_period_s = self._pace_s

    def described(self) -> MeterPart:
        """It as a part of a sum, as it stands now."""
        status = self.sampler.status
        energy = Energy(self.sampler.ledger.measured_uj)
        return MeterPart(status.source, energy, status.idle_watts, self.probed)

    @property
    def told(self) -> Counted:
        """Where its joules come from, in words, and where they stand."""
        source = self.sampler.source
        return Counted(origin(source.quality.value, source.name), self.sampler.ledger)

    @property
    def raw_energy(self) -> Energy | None:
        """What the sensor itself counted, where its figures are corrected."""
        return raw_energy(self.meter)

    @property
    def _pace_s(self) -> float:
        return poll_period_s(self.probed, self.meter.poll_period_s)

    def _drain(self) -> tuple[list[Window], int]:
        """The windows of all its devices, and the instant before which none of any is missing."""
        windows: list[Window] = []
        known_until_ns = []
        for lane, drain in enumerate(self._drains):
            finished, until_ns = drain()
            windows += [self._seen(window, lane) for window in finished]
            known_until_ns.append(until_ns)
        return windows, min(known_until_ns)

    def _visits(self) -> list[Visit]:
        """Those of all its devices."""
        return [visit for drain in self._drains_of_visits for visit in drain()]

    def _seen(self, window: Window, lane: int) -> Window:
        """A window as this counter knows it: a host works for it by its own stamps, not by the device's."""
        if self.part == HOST and window.host_ns is not None:
            start_ns, end_ns = window.host_ns
            window = replace(window, start_ns=start_ns, end_ns=end_ns, host_ns=None)
        return replace(window, lane=lane) if lane else window
