"""Which meter serves a device: the one asked for, or with `auto` the best that is honest about that device.

Knows what each meter covers. Knows nothing about how meters work, and never lets one stand in for another
without saying so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wattserve_server.energy.reading import Quality
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.meters import estimate, rapl, simulated
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.none import NoMeter
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.nvml_board import Nvml, load_nvml
from wattserve_server.meters.port import Meter
from wattserve_server.meters.replay import ReplayMeter

CHOICES = ("auto", "nvml", "rapl", "estimate", "simulated", "replay", "none")
JOIN = "+"

# The one device type whose joules a meter covers; the other choices fit every device.
_COVERS = {"nvml": "cuda", "rapl": "cpu", "estimate": "cpu"}
# What may be added up: `auto` names no meter, `none` has nothing to add, and a replay is of another time.
_ADDABLE = ("nvml", "rapl", "estimate", "simulated")
# Pairs that hold the same joules twice.
_SAME_JOULES = (
    ({"rapl", "estimate"}, "both count this process's CPU time"),
    ({"nvml", "simulated"}, "both stand for the device that runs the model"),
)


@dataclass(frozen=True)
class MeterOptions:
    """What an operator may set. Raises ConfigError with the field's name for a value that is no wattage.

    powercap_root: where Linux's powercap tree is mounted. replay_file: what the replay meter plays.
    """

    estimate_watts_per_core: float = estimate.DEFAULT_WATTS_PER_CORE
    estimate_idle_watts: float = estimate.DEFAULT_IDLE_WATTS
    simulated_idle_watts: float = simulated.DEFAULT_IDLE_WATTS
    simulated_busy_watts: float = simulated.DEFAULT_BUSY_WATTS
    powercap_root: Path = rapl.POWERCAP_ROOT
    replay_file: Path | None = None

    def __post_init__(self) -> None:
        for name, watts in vars(self).items():
            if name.endswith(("_watts", "_per_core")) and not (math.isfinite(watts) and watts >= 0):
                raise ConfigError(f"{name}: must be a finite number of watts, 0 or more, not {watts}")


@dataclass(frozen=True)
class ChosenMeter:
    """An opened meter, and one line for the operator: what its joules are, and why if it is second best."""

    meter: Meter
    notice: str


def open_meter(
    choice: str,
    *,
    device_type: str,
    device_uuid: str | None,
    busy_ns: Callable[[], int],
    options: MeterOptions,
    load: Callable[[], Nvml] = load_nvml,
) -> ChosenMeter:
    """Opens the meter `choice` for the device that the model runs on.

    choice: one of CHOICES, or several joined by "+", whose joules are added up.
    device_type: ``cpu`` or ``cuda``. device_uuid: the CUDA device's; None means CUDA index 0.
    busy_ns: see SimulatedMeter. load: where the NVML binding comes from.
    Raises ConfigError for an unknown choice, MeterError for a meter that is not there or would miss the
    device's joules. `auto` does not fail for want of a sensor: it falls back, and the notice says why.
    """
    names = choice.split(JOIN)
    for name in names:
        if name not in CHOICES:
            raise ConfigError(
                f"unknown meter '{name}'; known: {', '.join(CHOICES)}, and sums such as nvml+rapl"
            )
    if choice == "auto":
        return _open_best(device_type, device_uuid, options, load)
    if len(names) > 1:
        _check_sum(choice, names)
    _check_covers(choice, names, device_type)
    meters: list[Meter] = []
    try:
        for name in names:
            meters.append(_open(name, device_uuid, busy_ns, options, load))
        return _as_asked(CompositeMeter(meters) if len(meters) > 1 else meters[0])
    except BaseException:
        for meter in meters:
            meter.close()
        raise


def device_type_of(choice: str) -> str | None:
    """The device type that a choice is for; None where it fits every one, or asks which there is."""
    covered = {_COVERS[name] for name in choice.split(JOIN) if name in _COVERS}
    return None if not covered else "cuda" if "cuda" in covered else "cpu"


def _check_sum(choice: str, names: list[str]) -> None:
    for name in names:
        if name not in _ADDABLE:
            raise ConfigError(
                f"--meter {choice}: '{name}' cannot be added up; only {', '.join(_ADDABLE)} can"
            )
        if names.count(name) > 1:
            raise ConfigError(f"--meter {choice}: '{name}' is there twice, and would count its joules twice")
    for pair, why in _SAME_JOULES:
        if pair <= set(names):
            raise ConfigError(f"--meter {choice}: {' and '.join(sorted(pair))} cannot be added up: {why}")


def _check_covers(choice: str, names: list[str], device_type: str) -> None:
    """A sum must cover the model's device, and may cover its host besides; never an idle GPU's board."""
    covered = [_COVERS.get(name, device_type) for name in names]
    if device_type not in covered:
        raise MeterError(
            f"--meter {choice} covers {covered[0]} only, and the model runs on {device_type}, "
            "whose joules it would miss: use --meter auto"
        )
    if device_type == "cpu" and "cuda" in covered:
        raise MeterError(
            f"--meter {choice} would add the joules of a GPU, and the model runs on {device_type}: "
            "leave nvml out"
        )


def _open(
    name: str,
    device_uuid: str | None,
    busy_ns: Callable[[], int],
    options: MeterOptions,
    load: Callable[[], Nvml],
) -> Meter:
    if name == "nvml":
        return open_nvml(device_uuid, load=load)
    if name == "rapl":
        return rapl.RaplMeter(options.powercap_root)
    if name == "estimate":
        return _estimate(options)
    if name == "simulated":
        return simulated.SimulatedMeter(
            busy_ns, idle_watts=options.simulated_idle_watts, busy_watts=options.simulated_busy_watts
        )
    if name == "replay":
        if options.replay_file is None:
            raise ConfigError("--meter replay needs --replay-file FILE; `wattserve meter record` makes one")
        return ReplayMeter(options.replay_file)
    return NoMeter()


def _open_best(
    device_type: str, device_uuid: str | None, options: MeterOptions, load: Callable[[], Nvml]
) -> ChosenMeter:
    if device_type == "cuda":
        try:
            return _as_asked(open_nvml(device_uuid, load=load))
        except MeterError as error:
            # CPU time would say nothing about a GPU: an unknown is better than a wrong figure.
            meter = NoMeter(f"no GPU energy meter: {error}")
            return ChosenMeter(meter, f"NO ENERGY METER: {error}; every receipt says ENERGY UNKNOWN")
    if device_type == "cpu":
        try:
            return _as_asked(rapl.RaplMeter(options.powercap_root))
        except MeterError as error:
            fallback = _estimate(options)
            return ChosenMeter(
                fallback,
                f"NO ENERGY SENSOR: {error}; joules are ESTIMATED from CPU time ({fallback.source.note})",
            )
    raise MeterError(f"no meter covers the device type '{device_type}': use --meter simulated or none")


def _estimate(options: MeterOptions) -> estimate.EstimateMeter:
    return estimate.EstimateMeter(
        watts_per_core=options.estimate_watts_per_core, idle_watts=options.estimate_idle_watts
    )


def _as_asked(meter: Meter) -> ChosenMeter:
    source = meter.source
    if source.quality is Quality.NONE:
        return ChosenMeter(meter, f"every receipt says ENERGY UNKNOWN: {source.note}")
    kind = source.quality.value if source.quality is Quality.MEASURED else source.quality.value.upper()
    return ChosenMeter(meter, f"joules are {kind} by {source.name}: {source.boundary} ({source.note})")
