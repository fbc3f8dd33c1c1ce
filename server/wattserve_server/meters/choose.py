"""Which meter serves a device: the one asked for, or with `auto` the best that is honest about that device.

Knows what each meter covers. Knows nothing about how meters work, and never lets one stand in for another
without saying so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from wattserve_common.words import origin
from wattserve_server.config import ServerConfig
from wattserve_server.energy.reading import Quality, Source
from wattserve_server.energy.receipt import ACCELERATOR, HOST
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.gain import GainMeter
from wattserve_server.meters.laws import EstimateMeter, SimulatedMeter
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.nvml_board import Nvml, load_nvml
from wattserve_server.meters.port import Meter, NoMeter
from wattserve_server.meters.rapl import RaplHiddenError, RaplMeter
from wattserve_server.meters.replay import ReplayMeter

CHOICES = ("auto", "nvml", "rapl", "estimate", "simulated", "replay", "none")
JOIN = "+"

# The one device type whose joules a meter covers; the other choices fit every device.
_COVERS = {"nvml": "cuda", "rapl": "cpu", "estimate": "cpu"}
_FOR_ANY_DEVICE = ("auto", "simulated", "none")
# What may be added up: `auto` names no meter, `none` has nothing to add, and a replay is of another time.
_ADDABLE = ("nvml", "rapl", "estimate", "simulated")
# What --sensor-gain may correct.
_SENSORS = ("auto", "nvml", "rapl")
_ONE_SENSOR = "--meter nvml or --meter rapl"
# Pairs that hold the same joules twice.
_SAME_JOULES = (
    ({"rapl", "estimate"}, "both count this process's CPU time"),
    ({"nvml", "simulated"}, "both stand for the device that runs the model"),
)


@dataclass(frozen=True)
class ChosenMeter:
    """An opened meter, and one line for the operator: what its joules are, and why if it is second best."""

    meter: Meter
    notice: str


def open_meter(
    config: ServerConfig,
    *,
    device_type: str,
    device_uuid: str | None,
    busy_ns: Callable[[], int],
    is_main: bool = True,
    load: Callable[[], Nvml] = load_nvml,
) -> ChosenMeter:
    """Opens the meter that the settings ask for, for a device that the model runs on.

    device_type: ``cpu`` or ``cuda``. device_uuid: the CUDA device's; None means CUDA index 0.
    busy_ns: see SimulatedMeter. load: where the NVML binding comes from.
    is_main: whether --meter is meant for this device. Another one gets the same meter where that fits any
    device, and else the best that is honest about it.
    Raises ConfigError for an unknown choice, MeterError for a meter that is not there or would miss the
    device's joules. `auto` does not fail for want of a sensor: it falls back, and the notice says why.
    """
    choice = config.meter if is_main or config.meter in _FOR_ANY_DEVICE else "auto"
    names = choice.split(JOIN)
    for name in names:
        if name not in CHOICES:
            raise ConfigError(
                f"unknown meter '{name}'; known: {', '.join(CHOICES)}, and sums such as nvml+rapl"
            )
    is_corrected = is_main and config.corrects_sensor
    if is_corrected and choice not in _SENSORS:
        raise ConfigError(f"--sensor-gain is of one sensor, and --meter {choice} is not: use {_ONE_SENSOR}")
    makers = _makers(config, device_uuid, busy_ns, load, is_corrected, with_host=len(names) > 1)
    if choice == "auto":
        if device_type == "cuda" and not is_corrected:
            with_host = _makers(config, device_uuid, busy_ns, load, is_corrected, with_host=True)
            return _open_gpu_and_host(makers, with_host["nvml"])
        return _open_best(device_type, makers, is_corrected)
    if len(names) > 1:
        _check_sum(choice, names)
    _check_covers(choice, names, device_type)
    with ExitStack() as undo:
        meters = [undo.enter_context(closing(makers[name]())) for name in names]
        if len(meters) > 1 and "nvml" in names and meters[names.index("nvml")].source.counts_server:
            raise MeterError(
                f"--meter {choice}: this GPU's counter is its whole module's, CPU and memory in it, which "
                "would be counted twice: use --meter nvml"
            )
        chosen = _as_asked(CompositeMeter(meters) if len(meters) > 1 else meters[0])
        undo.pop_all()
    return chosen


def part_of(source: Source) -> str:
    """Which part of the machine a meter counts: what fits every device stands for the one that runs."""
    return HOST if _COVERS.get(source.name) == "cpu" else ACCELERATOR


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


def _makers(
    config: ServerConfig,
    device_uuid: str | None,
    busy_ns: Callable[[], int],
    load: Callable[[], Nvml],
    is_corrected: bool,
    with_host: bool,
) -> dict[str, Callable[[], Meter]]:
    """What opens the meter of each name. is_corrected: by the sensor's gain."""

    def sensor(meter: Meter) -> Meter:
        return GainMeter(meter, config.sensor_gain, config.sensor_gain_error) if is_corrected else meter

    return {
        "nvml": lambda: sensor(
            open_nvml(device_uuid, allow_mig=config.allow_mig, with_host=with_host, load=load)
        ),
        "rapl": lambda: sensor(RaplMeter(Path(config.powercap_root))),
        "estimate": lambda: EstimateMeter(
            watts_per_core=config.estimate_watts_per_core, idle_watts=config.estimate_idle_watts
        ),
        "simulated": lambda: SimulatedMeter(
            busy_ns, idle_watts=config.simulated_idle_watts, busy_watts=config.simulated_busy_watts
        ),
        "replay": lambda: ReplayMeter(Path(config.replay_file)),
        "none": NoMeter,
    }


def _open_gpu_and_host(
    makers: Mapping[str, Callable[[], Meter]], open_board_with_host: Callable[[], Meter]
) -> ChosenMeter:
    """A GPU and the host that feeds it, where both can be read; the GPU alone where the host cannot."""
    with ExitStack() as undo:
        try:
            host = undo.enter_context(closing(makers["rapl"]()))
            board = undo.enter_context(closing(open_board_with_host()))
            if not board.source.counts_server:  # a superchip's holds the host already
                both = _as_asked(CompositeMeter([board, host]))
                undo.pop_all()
                return both
        except RaplHiddenError as error:
            chosen = _open_best("cuda", makers)
            return ChosenMeter(chosen.meter, f"{chosen.notice}; the host's CPU is not in it: {error}")
        except MeterError:
            pass  # one of them is not there: what the GPU alone can tell is found out below
    return _open_best("cuda", makers)


def _open_best(
    device_type: str, makers: Mapping[str, Callable[[], Meter]], is_corrected: bool = False
) -> ChosenMeter:
    if device_type not in ("cuda", "cpu"):
        raise MeterError(f"no meter covers the device type '{device_type}': use --meter simulated or none")
    try:
        return _as_asked(makers["nvml" if device_type == "cuda" else "rapl"]())
    except MeterError as error:
        if device_type == "cuda":
            # CPU time would say nothing about a GPU: an unknown is better than a wrong figure.
            meter = NoMeter(f"no GPU energy meter: {error}")
            return ChosenMeter(meter, f"NO ENERGY METER: {error}; every receipt says ENERGY UNKNOWN")
        fallback = makers["estimate"]()
        words = f"joules are {_origin(fallback.source)} ({fallback.source.note})"
        if is_corrected:
            words += "; --sensor-gain is not used"
        return ChosenMeter(fallback, f"NO ENERGY SENSOR: {error}; {words}")


def _as_asked(meter: Meter) -> ChosenMeter:
    return ChosenMeter(meter, notice_of(meter.source))


def notice_of(source: Source) -> str:
    """What the operator is told of a source that is not second best."""
    if source.quality is Quality.NONE:
        return f"every receipt says ENERGY UNKNOWN: {source.note}"
    return f"joules are {_origin(source)}: {source.boundary} ({source.note})"


def _origin(source: Source) -> str:
    kind = source.quality.value if source.quality is Quality.MEASURED else source.quality.value.upper()
    return origin(kind, source.name)
