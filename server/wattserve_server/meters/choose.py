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
from wattserve_server.meters.none import NoMeter
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.nvml_board import Nvml, load_nvml
from wattserve_server.meters.port import Meter

CHOICES = ("auto", "nvml", "rapl", "estimate", "simulated", "none")

# The one device type whose joules a meter covers; the other choices fit every device.
_COVERS = {"nvml": "cuda", "rapl": "cpu", "estimate": "cpu"}


@dataclass(frozen=True)
class MeterOptions:
    """What an operator may set. Raises ConfigError with the field's name for a value that is no wattage.

    powercap_root: where Linux's powercap tree is mounted.
    """

    estimate_watts_per_core: float = estimate.DEFAULT_WATTS_PER_CORE
    estimate_idle_watts: float = estimate.DEFAULT_IDLE_WATTS
    simulated_idle_watts: float = simulated.DEFAULT_IDLE_WATTS
    simulated_busy_watts: float = simulated.DEFAULT_BUSY_WATTS
    powercap_root: Path = rapl.POWERCAP_ROOT

    def __post_init__(self) -> None:
        for name, watts in vars(self).items():
            if name != "powercap_root" and not (math.isfinite(watts) and watts >= 0):
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

    device_type: ``cpu`` or ``cuda``. device_uuid: the CUDA device's; None means CUDA index 0.
    busy_ns: see SimulatedMeter. load: where the NVML binding comes from.
    Raises ConfigError for an unknown choice, MeterError for a meter that is not there or would miss the
    device's joules. `auto` does not fail for want of a sensor: it falls back, and the notice says why.
    """
    if choice not in CHOICES:
        raise ConfigError(f"unknown meter '{choice}'; known: {', '.join(CHOICES)}")
    if choice == "auto":
        return _open_best(device_type, device_uuid, options, load)
    covered = _COVERS.get(choice, device_type)
    if covered != device_type:
        raise MeterError(
            f"--meter {choice} covers {covered} only, and the model runs on {device_type}, "
            "whose joules it would miss: use --meter auto"
        )
    if choice == "nvml":
        return _as_asked(open_nvml(device_uuid, load=load))
    if choice == "rapl":
        return _as_asked(rapl.RaplMeter(options.powercap_root))
    if choice == "estimate":
        return _as_asked(_estimate(options))
    if choice == "simulated":
        return _as_asked(
            simulated.SimulatedMeter(
                busy_ns, idle_watts=options.simulated_idle_watts, busy_watts=options.simulated_busy_watts
            )
        )
    return _as_asked(NoMeter())


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
