"""The joules of work that this thread does, from one edge of the project's meter to another.

A counter steps every so often and a run lasts milliseconds, so a block of runs is measured as a whole: it
starts and ends where the counter was seen to change, with the device busy on both sides, and lasts many of
the counter's steps. What cannot be measured so has no figure, and a reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from wattserve_server.config import ServerConfig
from wattserve_server.energy.probe import SensorProbe
from wattserve_server.energy.reading import Quality, Reading
from wattserve_server.engine.device import device_uuid
from wattserve_server.errors import MeterError
from wattserve_server.meters.choose import open_meter
from wattserve_server.meters.port import Meter
from wattserve_server.meters.probe import probe_meter

BLOCK_PERIODS = 20  # the counter's steps in a block, at the least: its ends are known to a step or better
LEAD_IN_PERIODS = 3  # steps for which a block's work runs before it: counters follow the power late
LONGEST_BLOCK_S = 10.0
LONGEST_WAIT_PERIODS = 10
IDLE_S = 3.0
LEAST_BLOCK_S = 0.05

# Why there is no active energy.
IDLE_UNKNOWN = "the idle draw is not known"
BELOW_IDLE = "it drew no more than the idle draw that was measured before"


class NoFigure(Exception):
    """Energy is unknown; the message says why."""


class BusyClock:
    """How long work has run, for the simulated meter. Read between runs only."""

    def __init__(self) -> None:
        self._ns = 0

    def add(self, ns: int) -> None:
        self._ns += ns

    def ns(self) -> int:
        return self._ns


@dataclass(frozen=True)
class Span:
    """What one block took, everything that the meter counts included."""

    uj: int
    seconds: float
    runs: int

    def active_uj(self, idle_watts: float) -> float:
        """Less what idling would have taken."""
        return self.uj - idle_watts * 1e6 * self.seconds


class Joulemeter:
    def __init__(
        self,
        meter: Meter,
        notice: str,
        probe: SensorProbe,  # of the meter at rest
        clock_ns: Callable[[], int] = time.monotonic_ns,  # that of its readings
    ) -> None:
        self._meter = meter
        self.clock_ns = clock_ns
        self.source = meter.source
        self.notice = notice
        self.period_s = (probe.update_period_s or 0.0) if probe.stepped else 0.0
        # None where it is neither declared nor was seen at rest.
        self.idle_watts = probe.watts if meter.idle_watts is None else meter.idle_watts
        self.idle_origin = "measured before the runs" if meter.idle_watts is None else "declared"
        self.reason = ""  # why there can be no figures
        if meter.source.quality is Quality.NONE:
            self.reason = meter.source.note
        elif not probe.reads or probe.read_cost_p50_s is None:
            self.reason = probe.unsupported.get("reading", "the meter could not be read")
        elif probe.update_period_s is None and (probe.stepped or probe.resolution_uj is None):
            self.reason = probe.unsupported.get("update period", "its counter was not seen to step")
        elif self.block_s > LONGEST_BLOCK_S:
            self.reason = (
                f"its counter steps every {self.period_s:.3g} s: a block would have to last "
                f"{self.block_s:.3g} s, and {LONGEST_BLOCK_S:g} s is the most"
            )

    @property
    def block_s(self) -> float:
        return max(LEAST_BLOCK_S, BLOCK_PERIODS * self.period_s)

    @property
    def lead_in_s(self) -> float:
        return LEAD_IN_PERIODS * self.period_s

    def edge(self, step: Callable[[], None]) -> tuple[Reading, int]:
        """Run `step` until the counter has changed during one: the first reading after the change, and the
        runs that it took. Raises NoFigure when it cannot be read or does not change."""
        until_ns = self.clock_ns() + max(1.0, LONGEST_WAIT_PERIODS * self.period_s) * 1e9
        before, runs = self._read(), 0
        while True:
            step()
            runs += 1
            reading = self._read()
            if reading.energy != before.energy:
                return reading, runs
            if self.clock_ns() > until_ns:
                raise NoFigure("the counter did not change while the model ran")

    def span(self, start: Reading, end: Reading, runs: int) -> Span:
        """Raises NoFigure for a counter that went back, or a block too short for it."""
        uj, seconds = (end.energy - start.energy).uj, (end.at_ns - start.at_ns) / 1e9
        if uj < 0 and self._meter.wraps_at is not None:
            uj += self._meter.wraps_at.uj
        if uj < 0:
            raise NoFigure("the counter went back during a block")
        if seconds < BLOCK_PERIODS / 2 * self.period_s:
            raise NoFigure(f"a block of {seconds:.3g} s is too short for steps of {self.period_s:.3g} s")
        return Span(uj, seconds, runs)

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source.name,
            "quality": self.source.quality.value,
            "boundary": self.source.boundary,
            "note": self.source.note,
            "update_period_s": self.period_s or None,
            "idle_watts": self.idle_watts,
            "idle_origin": self.idle_origin if self.idle_watts is not None else None,
            "block_seconds_at_least": self.block_s,
            "reason": self.reason or None,
        }

    def _read(self) -> Reading:
        try:
            return self._meter.read()
        except MeterError as error:
            raise NoFigure(str(error)) from error


@contextmanager
def opened(
    config: ServerConfig, device: torch.device, is_main: bool, busy: BusyClock
) -> Iterator[Joulemeter]:
    """A device's meter, probed while nothing runs; is_main: see `open_meter`. Raises MeterError."""
    uuid = device_uuid(device)
    chosen = open_meter(config, device_type=device.type, device_uuid=uuid, busy_ns=busy.ns, is_main=is_main)
    try:
        must_idle = chosen.meter.idle_watts is None and chosen.meter.source.quality is not Quality.NONE
        least_s, most_s = (IDLE_S, IDLE_S) if must_idle else (0.0, 2.0)
        probe = probe_meter(chosen.meter, at_least_s=least_s, at_most_s=most_s)
        yield Joulemeter(chosen.meter, chosen.notice, probe)
    finally:
        chosen.meter.close()


Meters = Mapping[torch.device, Joulemeter | str]  # a text: why it has none


def open_meters(
    config: ServerConfig, clocks: Mapping[torch.device, BusyClock], main: torch.device, undo: ExitStack
) -> Meters:
    """Those of these devices, until `undo`. Raises MeterError when the main one has not the meter that was
    asked for."""
    meters: dict[torch.device, Joulemeter | str] = {}
    for device, busy in clocks.items():
        try:
            meters[device] = undo.enter_context(opened(config, device, device == main, busy))
        except MeterError as error:
            if device == main:
                raise
            meters[device] = str(error)
    return meters


def meters_as_json(meters: Meters) -> dict[str, Any]:
    return {
        str(device): {"source": None, "reason": meter} if isinstance(meter, str) else meter.as_json()
        for device, meter in meters.items()
    }
