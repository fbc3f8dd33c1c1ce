"""The commands `wattserve meter probe` and `wattserve meter record`: the meter alone, without a model.

torch is asked for the device only where the meter itself does not say which one it is for.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from wattserve_server.config import ServerConfig, add_flags
from wattserve_server.energy.probe import poll_period_s
from wattserve_server.errors import ConfigError
from wattserve_server.meter_report import as_plain, as_text
from wattserve_server.metering import open_configured
from wattserve_server.meters.choose import ChosenMeter, device_type_of
from wattserve_server.meters.probe import probe_with_parts
from wattserve_server.meters.record import create, record

SETTINGS = {
    "meter", "device", "estimate_watts_per_core", "estimate_idle_watts", "simulated_idle_watts",
    "simulated_busy_watts", "powercap_root", "replay_file",
}  # fmt: skip


def add_meter_commands(commands: Any) -> None:
    """commands: what `add_subparsers` gave."""
    meter = commands.add_parser(
        "meter",
        help="find out what the energy sensor can do, or record it",
        description="The energy meter alone, without a model: what it is, how it behaves, a recording of it.",
    )
    actions = meter.add_subparsers(title="commands", required=True, metavar="COMMAND")
    probing = actions.add_parser(
        "probe",
        help="poll the sensor for a moment and say what it is",
        description="Poll the sensor for a moment: update period, read cost, resolution, watts, its counter "
        "against its power, and what it does not offer. The machine should be idle meanwhile.",
    )
    probing.add_argument("--seconds", metavar="S", help="for how long (default: as long as it needs)")
    probing.add_argument("--json", action="store_true", help="for programs; what is not known is null")
    add_flags(probing, SETTINGS)
    probing.set_defaults(run=probe_command)
    recording = actions.add_parser(
        "record",
        help="record the meter into a file for --meter replay",
        description="Record the meter's readings as JSON lines until Ctrl-C, or for --seconds. Play them "
        "back with --meter replay --replay-file FILE.",
    )
    recording.add_argument("file", metavar="FILE", help="the file to make")
    recording.add_argument("--seconds", metavar="S", help="for how long (default: until Ctrl-C)")
    add_flags(recording, SETTINGS)
    recording.set_defaults(run=record_command)


def probe_command(config: ServerConfig, arguments: argparse.Namespace) -> int:
    seconds = _seconds(arguments.seconds)
    with _opened(config) as chosen:
        probed = probe_with_parts(chosen.meter, seconds=seconds, in_full=True)
        if arguments.json:
            print(json.dumps(as_plain(chosen.meter, probed), indent=2, ensure_ascii=False, allow_nan=False))
        else:
            print(as_text(chosen, probed))
    return 0


def record_command(config: ServerConfig, arguments: argparse.Namespace) -> int:
    seconds, path = _seconds(arguments.seconds), Path(arguments.file)
    with _opened(config) as chosen:
        _say(chosen.notice)
        file = create(path)
        with closing(file), _until_interrupted() as pause:
            probed = probe_with_parts(chosen.meter)
            period_s = poll_period_s(probed.probe, chosen.meter.poll_period_s)
            _say(f"recording every {period_s * 1000:g} ms into {path}; Ctrl-C ends it")
            try:
                count = record(chosen.meter, file, poll_period_s=period_s, seconds=seconds, sleep=pause)
            except OSError as error:
                raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    print(f"{path}: {count} readings")
    return 0


@contextmanager
def _opened(config: ServerConfig) -> Iterator[ChosenMeter]:
    device_type, uuid = _device(config)
    chosen = open_configured(config, device_type=device_type, device_uuid=uuid, busy_ns=lambda: 0)
    try:
        yield chosen
    finally:
        chosen.meter.close()


def _device(config: ServerConfig) -> tuple[str, str | None]:
    """The device type and, of a GPU, its UUID; None: the only GPU."""
    if config.device == "auto" and config.meter != "auto":
        return device_type_of(config.meter) or "cpu", None
    from wattserve_server.engine.device import device_uuid, resolve_device

    device = resolve_device(config.device)
    return device.type, device_uuid(device)


@contextmanager
def _until_interrupted() -> Iterator[Callable[[float], bool]]:
    """Gives a pause that ends early, and says so, once the user or the system wants the program to end."""
    ending = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ending.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }

    def pause(seconds: float) -> bool:
        return ending.wait(max(0.0, seconds))

    try:
        yield pause
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"--seconds {text!r}: must be a number above 0")
    return seconds


def _say(line: str) -> None:
    print(f"wattserve: {line}", file=sys.stderr, flush=True)
