"""The sensor self-probe: polls a meter for a moment and finds out what kind of sensor it is.

Knows when to stop, and how to ask an NVIDIA board for its power beside its counter. What the polls mean
is decided in `energy.probe`. Never raises for a meter that fails: the probe then says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from wattserve_server.energy.probe import SensorProbe, changes, check_against_power, describe
from wattserve_server.energy.reading import Reading
from wattserve_server.errors import MeterError
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.gain import GainMeter
from wattserve_server.meters.nvml import NvmlPowerMeter
from wattserve_server.meters.nvml_board import Nvml, load_nvml, open_board
from wattserve_server.meters.port import Meter

ENOUGH_UPDATES = 12
ENOUGH_READS = 64
LONGEST_S = 2.0
CROSS_CHECK_WINDOWS_S = (0.5, 1.0, 2.0)
CROSS_CHECK_S = 2.5  # long enough for the widest window behind the first edge of a slow counter

_AGAINST_POWER = "counter against power"
_HOPELESS_AFTER = 5  # failures in a row
# Between polls: three times what the read took, so that a slow driver is not hammered and the device stays
# nearly idle; but fine enough to time the edges of a 20 ms counter.
_PAUSE_PER_COST = 3
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.01


@dataclass(frozen=True)
class ProbedMeter:
    """A meter's probe, and those of its parts if it is a composite, in their order."""

    probe: SensorProbe
    parts: tuple[SensorProbe, ...] = ()


@dataclass
class _Polls:
    readings: list[Reading] = field(default_factory=list)
    power: list[Reading] = field(default_factory=list)
    costs_ns: list[int] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    failures_in_a_row: int = 0

    def failed(self, error: Exception) -> None:
        self.failures += 1
        self.failures_in_a_row += 1
        words = str(error) if isinstance(error, MeterError) else f"{type(error).__name__}: {error}"
        self.unsupported["reading"] = words

    def are_enough(self) -> bool:
        if self.failures_in_a_row >= _HOPELESS_AFTER:
            return True
        if len(self.costs_ns) < ENOUGH_READS:
            return False
        return len(changes(self.readings, None).edges) > ENOUGH_UPDATES


def probe_meter(
    meter: Meter,
    *,
    power: Meter | None = None,
    windows_s: Sequence[float] = (),
    at_least_s: float = 0.0,
    at_most_s: float = LONGEST_S,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> SensorProbe:
    """Polls until a dozen updates were seen, but between `at_least_s` and `at_most_s`. Never raises.

    power: a meter that integrates the same board's power; its energy is held against the counter's over
    `windows_s`, or, without any, over the whole probe.
    """
    polls = _Polls()
    begun_ns = clock_ns()
    while True:
        pause_s = _poll(meter, power, polls, clock_ns)
        elapsed_s = (clock_ns() - begun_ns) / 1e9
        if elapsed_s >= at_most_s or (elapsed_s >= at_least_s and polls.are_enough()):
            break
        sleep(pause_s)
    checks = check_against_power(polls.readings, polls.power, windows_s)
    if polls.power and not checks:
        polls.unsupported[_AGAINST_POWER] = "the counter was not seen to change often enough"
    if polls.failures and polls.readings:
        tried = polls.failures + len(polls.readings)
        words = f"{polls.failures} of {tried} reads failed: {polls.unsupported['reading']}"
        polls.unsupported["reading"] = words
    return describe(
        polls.readings,
        polls.costs_ns,
        clock_ns() - begun_ns,
        wraps_at=meter.wraps_at,
        cross_checks=checks,
        unsupported=polls.unsupported,
    )


def probe_with_parts(
    meter: Meter,
    *,
    seconds: float | None = None,  # for exactly so long; None: as long as needed
    in_full: bool = False,  # long enough for cross-checks over several windows
    load: Callable[[], Nvml] = load_nvml,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> ProbedMeter:
    """Probes a meter as it is used, and each part of a composite by itself. Never raises."""

    def probe(meter: Meter) -> SensorProbe:
        polled = meter.meter if isinstance(meter, GainMeter) else meter  # what the sensor itself says
        power, unsupported = _power_beside(polled, load, clock_ns)
        try:
            needed_s = CROSS_CHECK_S if in_full and power is not None else 0.0
            shown = probe_meter(
                polled,
                power=power,
                windows_s=CROSS_CHECK_WINDOWS_S if in_full else (),
                at_least_s=needed_s if seconds is None else seconds,
                at_most_s=max(needed_s, LONGEST_S) if seconds is None else seconds,
                clock_ns=clock_ns,
                sleep=sleep,
            )
        finally:
            if power is not None:
                power.close()
        return replace(shown, unsupported={**unsupported, **shown.unsupported})

    try:
        parts = meter.meters if isinstance(meter, CompositeMeter) else ()
        return ProbedMeter(probe(meter), tuple(probe(part) for part in parts))
    except Exception as error:  # a bug in a meter or here: it must not keep the server from starting
        return ProbedMeter(SensorProbe(0.0, 0, unsupported={"probe": f"{type(error).__name__}: {error}"}))


def _poll(meter: Meter, power: Meter | None, polls: _Polls, clock_ns: Callable[[], int]) -> float:
    """Reads once; how long to pause then, in seconds."""
    before_ns = clock_ns()
    try:
        polls.readings.append(meter.read())
        polls.failures_in_a_row = 0
    except Exception as error:
        polls.failed(error)
    cost_ns = clock_ns() - before_ns
    polls.costs_ns.append(cost_ns)
    if power is not None and _AGAINST_POWER not in polls.unsupported:
        try:
            polls.power.append(power.read())
        except Exception as error:
            polls.power.clear()
            polls.unsupported[_AGAINST_POWER] = str(error)
    return min(max(_PAUSE_PER_COST * cost_ns / 1e9, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)


def _power_beside(
    meter: Meter, load: Callable[[], Nvml], clock_ns: Callable[[], int]
) -> tuple[NvmlPowerMeter | None, dict[str, str]]:
    """A second meter of the same NVIDIA board, by its power, and what the board does not offer."""
    kind, _, uuid = meter.source.name.partition(":")
    if kind != "nvml" or not uuid or isinstance(meter, CompositeMeter):
        return None, {_AGAINST_POWER: "cannot cross-check (needs a GPU, whose board gives both)"}
    try:
        board = open_board(uuid, load=load)
    except MeterError as error:
        return None, {_AGAINST_POWER: str(error)}
    unsupported: dict[str, str] = {}
    for figure, ask in (
        ("energy counter", board.energy_mj),
        ("instant power", board.instant_power_mw),
        ("average power", board.average_power_mw),
    ):
        try:
            ask()
        except MeterError as error:
            unsupported[figure] = str(error)
    missing = [name for name in ("energy counter", "instant power") if name in unsupported]
    if not missing:
        try:
            return NvmlPowerMeter(board, clock_ns=clock_ns), unsupported
        except MeterError as error:
            unsupported["instant power"] = str(error)
            missing = ["instant power"]
    board.close()
    unsupported[_AGAINST_POWER] = f"this board gives no {' and no '.join(missing)}"
    return None, unsupported
