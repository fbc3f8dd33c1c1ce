"""Who says what a cell cost: the server's ledger and receipts, or a meter that loadgen reads itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattserve_client import EnergyQuality, EnergyReport, Receipt, ServerInfo
from wattserve_loadgen.errors import TargetError
from wattserve_loadgen.figures import account
from wattserve_loadgen.model.cells import MeterWindow
from wattserve_loadgen.model.codec import as_stored
from wattserve_loadgen.model.server_info import sensor_period_seconds
from wattserve_loadgen.plan.options import Peer
from wattserve_loadgen.sweeping.readings import Readings, SweepClock
from wattserve_loadgen.sweeping.records import Answer, unsettled_ids
from wattserve_loadgen.target.energy_window import added_up, meter_window
from wattserve_loadgen.target.fleet import Fleet
from wattserve_loadgen.target.own_meter import OwnMeter, Rest
from wattserve_loadgen.target.wattserve import NativeTarget

_SETTLING_MARGIN_S = 10.0
_SETTLING_DEFAULT_S = 30.0
_POLL_S = (0.1, 0.5)  # at least and at most; between them as often as the figure changes
_QUIET_POLL_S = 0.02
_GAP_PERIODS = 4
_WATTS_OVER_S = 1.0
_REST_S = 5.0


# What is known of a cell's energy once it has settled: its receipts by id, and the ledger's growth.
Testimony = tuple[dict[str, Receipt], account.LedgerGrowth]


class Witness:
    """Says what the cells on a server cost. This one says nothing: of a server whose meter nobody reads.

    Instants are seconds since the start of the sweep.
    """

    method = account.RECEIPTS  # how active and idle are found, in the words of `figures.account`

    def __init__(self, reason: str = "") -> None:
        self.reason = reason  # why there is no meter, or ""

    @property
    def origin(self) -> str:
        """server, loadgen or none, for results."""
        return "none"

    async def before(self) -> None:
        """Wait until nothing of earlier cells is pending, and note where the meter stands."""

    @asynccontextmanager
    async def watching(self, *, harvest: bool) -> AsyncIterator[None]:
        """While a cell runs: the meter is read now and then; `harvest`: receipts are fetched as they settle,
        because the server would forget the first before the last is sent.
        """
        yield

    async def after(
        self, variant: str, answers: Sequence[Answer], start: float, end: float, servers: Sequence[str] = ()
    ) -> Testimony:
        """Wait until the cell's energy is final. `start`, `end`: of its window. `servers`: of a fleet, where
        each of the requests went to.
        """
        return {}, account.LedgerGrowth(reason=self.reason)

    def window(self, variant: str, start: float, end: float) -> MeterWindow | None:
        """The meter's own count over a window; None without readings."""
        return None

    def readings(self) -> list[Readings]:
        """Those so far, of each meter."""
        return []

    def watts(self) -> float | None:
        """About now, for the screen."""
        watts = [readings.watts(_WATTS_OVER_S) for readings in self.readings()]
        return sum(filter(None, watts)) if any(value is not None for value in watts) else None

    def meter(self) -> dict[str, Any]:
        """A MeterInfo, field by field; {} without a meter."""
        return {}


class LedgerWitness(Witness):
    """A server that keeps a ledger, or says why it does not."""

    def __init__(
        self, target: NativeTarget, name: str, info: ServerInfo, clock: SweepClock, member: str = ""
    ) -> None:
        """member: its address, where it is one server of a fleet."""
        super().__init__()
        self._target, self._name, self._info, self._clock = target, name, info, clock
        self._member = member
        self._devices = {variant.name: variant.device for variant in info.variants}
        self._lanes = {variant.name: variant.other_devices for variant in info.variants}
        self._metered = is_metered(info)
        settling_s = info.limits.settlement_limit_seconds or _SETTLING_DEFAULT_S
        self._limit_s = settling_s + _SETTLING_MARGIN_S
        period_s = slowest_sensor_s(info)
        self._poll_s = min(max(_POLL_S[0], period_s), _POLL_S[1])
        self._gap_s = _GAP_PERIODS * (self._poll_s + period_s)
        self._readings: dict[str, Readings] = {}  # by device
        self._before: EnergyReport | None = None
        self._latest: EnergyReport | None = None
        self._harvested: list[bytes] = []

    @property
    def origin(self) -> str:
        return "server" if self._metered else "none"

    async def before(self) -> None:
        self._before = await self._quiet_report()

    @asynccontextmanager
    async def watching(self, *, harvest: bool) -> AsyncIterator[None]:
        self._harvested = []
        tasks = []
        if self._metered:
            tasks.append(asyncio.create_task(self._poll()))
            if harvest:
                tasks.append(asyncio.create_task(self._target.harvest_receipts(self._harvested)))
        try:
            yield
            if self._metered:
                await self._bracket()
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError, TargetError):
                    await task

    async def after(
        self, variant: str, answers: Sequence[Answer], start: float, end: float, servers: Sequence[str] = ()
    ) -> Testimony:
        receipts: dict[str, Receipt] = {}
        if self._metered:
            receipts = self._target.read_receipts(self._harvested)
            self._harvested = []
            waiting = [receipt_id for receipt_id in unsettled_ids(answers) if receipt_id not in receipts]
            receipts |= await self._target.final_receipts(waiting, self._limit_s)
        after = await self._quiet_report()
        lanes = self._lanes.get(variant, ())
        before = self._before or after
        return receipts, account.growth_of(before, after, self._device(variant), variant, lanes)

    def window(self, variant: str, start: float, end: float) -> MeterWindow | None:
        if self._latest is None:
            return None
        ledgers = account.ledgers_of(self._latest, self._device(variant), variant)
        if any(ledger.measured_uj is None or ledger.device not in self._readings for ledger in ledgers):
            return None
        arrays = [self._readings[ledger.device].arrays() for ledger in ledgers]
        return added_up([meter_window(*each, start, end, self._gap_s) for each in arrays])

    def _device(self, variant: str) -> str:
        return self._devices.get(variant, "")

    def readings(self) -> list[Readings]:
        return list(self._readings.values())

    def meter(self) -> dict[str, Any]:
        return dict(as_stored(self._info.meter)) if self._metered else {}

    async def _poll(self) -> None:
        """At equal distances, however long a report takes; one that does not come is left out."""
        due = time.monotonic()
        while True:
            due = max(due + self._poll_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            with suppress(TargetError):
                await self._report()

    async def _bracket(self) -> None:
        """Wait for a reading of now: what comes next keeps this process from taking one for a while."""
        now = self._clock()
        give_up = now + self._gap_s
        while self._clock() < give_up:
            if all(meter.seconds and meter.seconds[-1] >= now for meter in self._readings.values()):
                return
            await asyncio.sleep(_QUIET_POLL_S)
            with suppress(TargetError):
                await self._report()

    async def _quiet_report(self) -> EnergyReport:
        """The ledger once no receipt is pending; after the settlement limit, as it stands."""
        give_up = time.monotonic() + self._limit_s
        while True:
            report = await self._report()
            if account.pending_receipts(report) == 0 or time.monotonic() >= give_up:
                return report
            await asyncio.sleep(_QUIET_POLL_S)

    async def _report(self) -> EnergyReport:
        """The ledger now; its last readings are kept, at the middle of the call less their age."""
        asked = self._clock()
        self._latest = report = await self._target.energy_report()
        middle = (asked + self._clock()) / 2
        for ledger in (report, *report.other_devices):
            if ledger.measured_uj is not None and report.now_unix_ns:
                age_s = (report.now_unix_ns - ledger.until_unix_ns) / 1e9
                readings = self._readings.setdefault(ledger.device, self._begun(ledger.device))
                readings.add(middle - age_s, ledger.measured_uj / 1e6, ledger.idle_watts)
        return report

    def _begun(self, device: str) -> Readings:
        return Readings(self._name, f"{device} at {self._member}" if self._member else device)


class FleetWitness(Witness):
    """Several servers, each with its ledger: together they say what a cell cost."""

    def __init__(self, fleet: Fleet, members: Sequence[LedgerWitness]) -> None:
        super().__init__()
        self._fleet, self._members = fleet, members

    @property
    def origin(self) -> str:
        return self._members[0].origin

    async def before(self) -> None:
        await asyncio.gather(*(member.before() for member in self._members))

    @asynccontextmanager
    async def watching(self, *, harvest: bool) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for member in self._members:
                await stack.enter_async_context(member.watching(harvest=harvest))
            yield

    async def after(
        self, variant: str, answers: Sequence[Answer], start: float, end: float, servers: Sequence[str] = ()
    ) -> Testimony:
        addresses = [member.address for member in self._fleet.members]
        own: dict[str, list[Answer]] = {address: [] for address in addresses}
        for answer, server in zip(answers, servers, strict=True):
            own[server].append(answer)
        told = await asyncio.gather(
            *(
                member.after(variant, own[address], start, end)
                for address, member in zip(addresses, self._members, strict=True)
            )
        )
        receipts = {receipt_id: receipt for some, _ in told for receipt_id, receipt in some.items()}
        growths = dict(zip(addresses, (growth for _, growth in told), strict=True))
        return receipts, account.growth_of_fleet(growths)

    def window(self, variant: str, start: float, end: float) -> MeterWindow | None:
        windows = [member.window(variant, start, end) for member in self._members]
        known = [window for window in windows if window is not None]
        return added_up(known) if len(known) == len(windows) else None

    def readings(self) -> list[Readings]:
        return [readings for member in self._members for readings in member.readings()]

    def meter(self) -> dict[str, Any]:
        return self._members[0].meter()


class OwnMeterWitness(Witness):
    """A meter that loadgen reads itself says what a peer's cells cost: its growth, less the power at rest.

    A peer keeps no receipts that could be pending, and the recorder is a process of its own.
    """

    method = account.ABOVE_REST

    def __init__(self, peer: Peer, scratch: Path, clock: SweepClock) -> None:
        super().__init__()
        self._meter = OwnMeter(scratch / f"meter-of-{len(list(scratch.iterdir()))}.jsonl", peer.meter)
        self._clock = clock
        self._readings = Readings(peer.name, "")
        self._taken = 0  # readings of the recording that were looked at
        self._rest = Rest(None, 0.0, "the power at rest was not measured")

    @property
    def origin(self) -> str:
        return "none" if self.reason else "loadgen"

    async def start(self) -> None:
        """Begin to record, and measure what the machine draws at rest."""
        await self._meter.start()
        self._rest = await self._meter.rest(_REST_S)
        self.reason = self._meter.reason

    async def close(self) -> None:
        await self._meter.stop()

    async def after(
        self, variant: str, answers: Sequence[Answer], start: float, end: float, servers: Sequence[str] = ()
    ) -> Testimony:
        await self._meter.covers(self._clock.perf_counter_at(end))
        rest = self._rest
        return {}, account.growth_above_rest(self.window(variant, start, end), rest.watts, rest.reason)

    def window(self, variant: str, start: float, end: float) -> MeterWindow:
        track = self._meter.track()
        origin = self._clock.perf_counter_at(0.0)
        window = meter_window(track.seconds - origin, track.joules, start, end, self._meter.gap_limit_s)
        failure = track.failure_between(origin + start, origin + end)
        return replace(window, reason=f"{window.reason} ({failure})") if window.reason and failure else window

    def readings(self) -> list[Readings]:
        """Those since this run of the sweep began: before it, an interrupted one may have had its own."""
        track = self._meter.track()
        new = slice(self._taken, None)
        self._taken = len(track.seconds)
        for at, joules in zip(track.seconds[new].tolist(), track.joules[new].tolist(), strict=True):
            if (seconds := self._clock.at(at)) >= self._clock.began:
                self._readings.add(seconds, joules, self._rest.watts)
        return [self._readings]

    def meter(self) -> dict[str, Any]:
        return {} if self.reason else dict(as_stored(self._meter.info))


def is_metered(info: ServerInfo) -> bool:
    """Whether the server has any meter."""
    none = (EnergyQuality.NONE, EnergyQuality.UNSPECIFIED)
    return any(meter.source.quality not in none for meter in (info.meter, *info.other_meters))


def slowest_sensor_s(info: ServerInfo) -> float:
    """How often a reading of the slowest meter can bring something new; 0 without a meter."""
    meters = (info.meter, *info.other_meters) if is_metered(info) else ()
    return max((sensor_period_seconds(as_stored(meter)) or 0.0 for meter in meters), default=0.0)
