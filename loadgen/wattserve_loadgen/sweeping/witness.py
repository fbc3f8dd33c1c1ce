"""Who says what a cell cost: the server's ledger and receipts, read before, while and after it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from wattserve_loadgen.errors import TargetError
from wattserve_loadgen.figures import account
from wattserve_loadgen.figures.meter import meter_window
from wattserve_loadgen.results.codec import message_to_plain
from wattserve_loadgen.results.schema import MeterWindow
from wattserve_loadgen.sweeping import preflight
from wattserve_loadgen.sweeping.readings import Readings
from wattserve_loadgen.target.answers import Answer, unsettled_ids
from wattserve_loadgen.target.native import NativeTarget
from wattserve_proto.v1 import inference_pb2 as pb

_SETTLING_MARGIN_SECONDS = 10.0
_SETTLING_DEFAULT_SECONDS = 30.0
_POLL_SECONDS = (0.1, 0.5)  # at least and at most; between them as often as the figure changes
_QUIET_POLL_SECONDS = 0.02
_GAP_PERIODS = 4
_WATTS_OVER_SECONDS = 1.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class Testimony:
    """What is known of a cell's energy once it has settled."""

    receipts: dict[str, pb.Receipt]
    growth: account.LedgerGrowth


class Witness(Protocol):
    """`origin`: server, loadgen or none, for results. Instants are seconds since the start of the sweep."""

    method: str  # how active and idle are found, in the words of `figures.account`

    @property
    def origin(self) -> str: ...

    async def before(self) -> None:
        """Wait until nothing of earlier cells is pending, and note where the meter stands."""
        ...

    def watching(self, *, harvest: bool) -> AbstractAsyncContextManager[None]:
        """While a cell runs: the meter is read now and then; `harvest`: receipts are fetched as they settle,
        because the server would forget the first before the last is sent.
        """
        ...

    async def after(self, variant: str, answers: Sequence[Answer], start: float, end: float) -> Testimony:
        """Wait until the cell's energy is final. `start`, `end`: of its window."""
        ...

    def window(self, variant: str, start: float, end: float) -> MeterWindow | None:
        """The meter's own count over a window; None without readings."""
        ...

    def watts(self) -> float | None:
        """About now, for the screen."""
        ...

    def readings(self) -> list[Readings]: ...

    def meter(self) -> dict[str, Any]:
        """A MeterInfo, field by field; {} without a meter."""
        ...


class LedgerWitness:
    """A server that keeps a ledger, or says why it does not."""

    method = account.RECEIPTS

    def __init__(self, target: NativeTarget, name: str, info: pb.ServerInfo, clock: Clock) -> None:
        self._target, self._name, self._info, self._clock = target, name, info, clock
        self._devices = {one.name: one.device for one in info.variants}
        self._metered = preflight.is_metered(info)
        self._limit = (info.limits.settlement_limit_seconds or _SETTLING_DEFAULT_SECONDS) + (
            _SETTLING_MARGIN_SECONDS
        )
        period = preflight.sensor_period_seconds(info)
        self._poll_seconds = min(max(_POLL_SECONDS[0], period), _POLL_SECONDS[1])
        self._gap_seconds = _GAP_PERIODS * (self._poll_seconds + period)
        self._readings: dict[str, Readings] = {}
        self._before = pb.EnergyReport()
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

    async def after(self, variant: str, answers: Sequence[Answer], start: float, end: float) -> Testimony:
        receipts: dict[str, pb.Receipt] = {}
        if self._metered:
            for one in map(pb.Receipt.FromString, self._harvested):
                receipts[one.receipt_id] = one
            self._harvested = []
            waiting = [one for one in unsettled_ids(answers) if one not in receipts]
            receipts |= await self._target.final_receipts(waiting, self._limit)
        after = await self._quiet_report()
        device = self._devices.get(variant, "")
        then, now = account.ledger_of(self._before, device), account.ledger_of(after, device)
        return Testimony(receipts, account.ledger_growth(then, now, variant))

    def window(self, variant: str, start: float, end: float) -> MeterWindow | None:
        found = self._readings.get(self._devices.get(variant, ""))
        if found is None:
            return None
        return meter_window(*found.arrays(), start, end, self._gap_seconds)

    def watts(self) -> float | None:
        known = [one.watts(_WATTS_OVER_SECONDS) for one in self._readings.values()]
        return sum(one for one in known if one is not None) if any(one is not None for one in known) else None

    def readings(self) -> list[Readings]:
        return list(self._readings.values())

    def meter(self) -> dict[str, Any]:
        return message_to_plain(self._info.meter) if self._metered else {}

    async def _poll(self) -> None:
        """At equal distances, however long a report takes; one that does not come is left out."""
        due = time.monotonic()
        while True:
            due = max(due + self._poll_seconds, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            with suppress(TargetError):
                await self._report()

    async def _bracket(self) -> None:
        """Wait for a reading of now: what comes next keeps this process from taking one for a while."""
        now = self._clock()
        give_up = now + self._gap_seconds
        while self._clock() < give_up:
            if all(one.seconds and one.seconds[-1] >= now for one in self._readings.values()):
                return
            await asyncio.sleep(_QUIET_POLL_SECONDS)
            with suppress(TargetError):
                await self._report()

    async def _quiet_report(self) -> pb.EnergyReport:
        """The ledger once no receipt is pending; after the settlement limit, as it stands."""
        give_up = time.monotonic() + self._limit
        while True:
            report = await self._report()
            if account.pending_receipts(report) == 0 or time.monotonic() >= give_up:
                return report
            await asyncio.sleep(_QUIET_POLL_SECONDS)

    async def _report(self) -> pb.EnergyReport:
        """The ledger now; its last readings are kept, at the middle of the call less their age."""
        asked = self._clock()
        report = await self._target.energy_report()
        middle = (asked + self._clock()) / 2
        for ledger in (report, *report.other_devices):
            if ledger.HasField("measured_uj") and report.now_unix_ns:
                age = (report.now_unix_ns - ledger.until_unix_ns) / 1e9
                idle = ledger.idle_watts if ledger.HasField("idle_watts") else None
                device = self._readings.setdefault(ledger.device, Readings(self._name, ledger.device))
                device.add(middle - age, ledger.measured_uj / 1e6, idle)
        return report


class NoWitness:
    """A server that nobody reads a meter for."""

    method = account.RECEIPTS

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def origin(self) -> str:
        return "none"

    async def before(self) -> None:
        pass

    @asynccontextmanager
    async def watching(self, *, harvest: bool) -> AsyncIterator[None]:
        yield

    async def after(self, variant: str, answers: Sequence[Answer], start: float, end: float) -> Testimony:
        return Testimony({}, account.unknown_growth(self._reason))

    def window(self, variant: str, start: float, end: float) -> MeterWindow | None:
        return None

    def watts(self) -> float | None:
        return None

    def readings(self) -> list[Readings]:
        return []

    def meter(self) -> dict[str, Any]:
        return {}
