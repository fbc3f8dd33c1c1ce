"""A meter that loadgen reads itself says what a peer's cells cost: its growth, less the power at rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattserve_loadgen.figures.account import ABOVE_REST
from wattserve_loadgen.figures.meter import growth_above_rest, meter_window
from wattserve_loadgen.plan.options import Peer
from wattserve_loadgen.results.codec import message_to_plain
from wattserve_loadgen.results.schema import MeterWindow
from wattserve_loadgen.sweeping.readings import Readings
from wattserve_loadgen.sweeping.sweep_clock import SweepClock
from wattserve_loadgen.sweeping.witness import Testimony
from wattserve_loadgen.target.answers import Answer
from wattserve_loadgen.target.own_meter import OwnMeter, Rest

_REST_SECONDS = 5.0
_WATTS_OVER_SECONDS = 1.0


class OwnMeterWitness:
    """See `witness.Witness`. `reason`: why there is no meter after all, or ""."""

    method = ABOVE_REST

    def __init__(self, peer: Peer, scratch: Path, clock: SweepClock) -> None:
        self._meter = OwnMeter(scratch / f"meter-of-{len(list(scratch.iterdir()))}.jsonl", peer.meter)
        self._clock = clock
        self._readings = Readings(peer.name, "")
        self._taken = 0  # readings of the recording that were looked at
        self._rest = Rest(None, 0.0, "the power at rest was not measured")
        self.reason = ""

    @property
    def origin(self) -> str:
        return "none" if self.reason else "loadgen"

    async def start(self) -> None:
        """Begin to record, and measure what the machine draws at rest."""
        await self._meter.start()
        self._rest = await self._meter.rest(_REST_SECONDS)
        self.reason = self._meter.reason

    async def close(self) -> None:
        await self._meter.stop()

    async def before(self) -> None:
        """A peer keeps no receipts that could be pending."""

    @asynccontextmanager
    async def watching(self, *, harvest: bool) -> AsyncIterator[None]:
        yield  # the recorder is a process of its own

    async def after(self, variant: str, answers: Sequence[Answer], start: float, end: float) -> Testimony:
        await self._meter.covers(self._clock.perf_counter_at(end))
        rest = self._rest
        return Testimony({}, growth_above_rest(self.window(variant, start, end), rest.watts, rest.reason))

    def window(self, variant: str, start: float, end: float) -> MeterWindow:
        track = self._meter.track()
        origin = self._clock.perf_counter_at(0.0)
        limit = self._meter.gap_limit_seconds
        found = meter_window(track.seconds - origin, track.joules, start, end, limit)
        failure = track.failure_between(origin + start, origin + end)
        return replace(found, reason=f"{found.reason} ({failure})") if found.reason and failure else found

    def watts(self) -> float | None:
        self._take_readings()
        return self._readings.watts(_WATTS_OVER_SECONDS)

    def readings(self) -> list[Readings]:
        self._take_readings()
        return [self._readings]

    def meter(self) -> dict[str, Any]:
        return {} if self.reason else message_to_plain(self._meter.info)

    def _take_readings(self) -> None:
        """Those since this run of the sweep began: before it, an interrupted one may have had its own."""
        track = self._meter.track()
        new = slice(self._taken, None)
        self._taken = len(track.seconds)
        for at, joules in zip(track.seconds[new].tolist(), track.joules[new].tolist(), strict=True):
            if (seconds := self._clock.at(at)) >= self._clock.began:
                self._readings.add(seconds, joules, self._rest.watts)
