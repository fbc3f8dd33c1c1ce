"""The commands `wattserve meter probe` and `wattserve meter record`: the meter alone, without a model;
and the flags of `wattserve meter verify`, which needs one.

The probe is told in words, or as plain JSON values.

torch is asked for the device only where the meter itself does not say which one it is for.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattserve_common.arguments import positive
from wattserve_common.words import counted
from wattserve_server.config import ServerConfig, add_flags, flag_reader
from wattserve_server.console import amount, say
from wattserve_server.energy.probe import CrossCheck, SensorProbe, poll_period_s
from wattserve_server.errors import ConfigError
from wattserve_server.meters.choose import ChosenMeter, device_type_of, open_meter
from wattserve_server.meters.composite import CompositeMeter
from wattserve_server.meters.port import Meter
from wattserve_server.meters.probe import ProbedMeter, probe_with_parts
from wattserve_server.meters.recording import create, record

_UNKNOWN = "not known"

SETTINGS = {
    "meter", "device", "estimate_watts_per_core", "estimate_idle_watts", "simulated_idle_watts",
    "simulated_busy_watts", "powercap_root", "replay_file", "allow_mig", "sensor_gain",
    "sensor_gain_error",
}  # fmt: skip
VERIFY_SETTINGS = {
    *SETTINGS, "model", "task", "variants", "default_variant", "calibration", "no_verify", "threads",
    "max_batch_sequences", "max_batch_tokens", "max_tokens", "trust_remote_code", "calibration_seconds",
    "split_rule",
}  # fmt: skip
VERIFY_SECONDS = 480.0


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
    probing.add_argument(
        "--seconds",
        type=flag_reader("--seconds", positive),
        metavar="S",
        help="for how long (default: as long as it needs)",
    )
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
    recording.add_argument(
        "--seconds",
        type=flag_reader("--seconds", positive),
        metavar="S",
        help="for how long (default: until Ctrl-C)",
    )
    add_flags(recording, SETTINGS)
    recording.set_defaults(run=record_command)
    verifying = actions.add_parser(
        "verify",
        help="find out on this machine how far its joules can be trusted: 8 minutes",
        description="Serve a model to itself and hold this machine's meter, and what receipts make of it, "
        "against a reader of its own: idle draw, the counter's beat, its response, part-time sampling, each "
        "variant alone against receipts of a mixed run, what reading disturbs. Nothing else should run "
        "meanwhile. Ends with 0 where every bound that could be measured is held, 1 where one is missed, 3 "
        "where one is undecided.",
    )
    verifying.add_argument(
        "--out", required=True, metavar="DIR", help="the folder to make: verify.md, verify.json, recordings"
    )
    verifying.add_argument(
        "--seconds",
        type=flag_reader("--seconds", positive),
        default=VERIFY_SECONDS,
        metavar="S",
        help="for how long in all, loading in it; no phase is shorter than its least, so few seconds become "
        f"more (default: {VERIFY_SECONDS:g})",
    )
    add_flags(verifying, VERIFY_SETTINGS)
    verifying.set_defaults(run=verify_command)


def probe_command(config: ServerConfig, arguments: argparse.Namespace) -> int:
    with _opened(config) as chosen:
        chosen.meter.others_at_work()  # the next answer is of the time since
        probed = probe_with_parts(chosen.meter, seconds=arguments.seconds, in_full=True)
        if arguments.json:
            print(json.dumps(as_plain(chosen.meter, probed), indent=2, ensure_ascii=False, allow_nan=False))
        else:
            print(as_text(chosen, probed))
    return 0


def record_command(config: ServerConfig, arguments: argparse.Namespace) -> int:
    if config.meter == "none":
        raise ConfigError("--meter none: there is nothing to record")
    path = Path(arguments.file)
    with _opened(config) as chosen:
        say(chosen.notice)
        try:  # what waits in its buffer is written when it is closed
            with closing(create(path)) as file, _until_interrupted() as pause:
                probed = probe_with_parts(chosen.meter)
                period_s = poll_period_s(probed.probe, chosen.meter.poll_period_s)
                say(f"recording every {period_s * 1000:g} ms into {path}; Ctrl-C ends it")
                count = record(
                    chosen.meter, file, poll_period_s=period_s, seconds=arguments.seconds, sleep=pause
                )
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be written ({error.strerror}); what is there is no whole recording"
            ) from None
    print(f"{path}: {counted(count, 'reading')}")
    return 0


def verify_command(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.verify.command import run

    return run(config, Path(arguments.out), arguments.seconds)


@contextmanager
def _opened(config: ServerConfig) -> Iterator[ChosenMeter]:
    device_type, uuid = _device(config)
    chosen = open_meter(config, device_type=device_type, device_uuid=uuid, busy_ns=lambda: 0)
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


def as_text(chosen: ChosenMeter, probed: ProbedMeter) -> str:
    """For people: a heading and a line per finding; the parts of a composite follow."""
    meter = chosen.meter
    period_s = poll_period_s(probed.probe, meter.poll_period_s)
    lines = [chosen.notice, *_probe_lines(probed.probe)]
    lines.append(_line("declared idle", amount(meter.idle_watts, "W", "none: the server measures it")))
    lines.append(_line("neighbours", _neighbours(meter.neighbours())))
    lines.append(_line("others used", _at_work(meter.others_at_work())))
    lines.append(_line("the server reads", f"every {amount(period_s, 's')}"))
    if isinstance(meter, CompositeMeter):
        for part, probe in zip(meter.meters, probed.parts, strict=False):
            lines += ["", f"part {part.source.name}: {part.source.boundary}", *_probe_lines(probe)]
    return "\n".join(lines)


def as_plain(meter: Meter, probed: ProbedMeter) -> dict[str, Any]:
    """For programs: units in the names, null where nothing is known."""
    members = meter.meters if isinstance(meter, CompositeMeter) else ()
    return {
        **_meter_plain(meter, probed.probe),
        "others_at_work": meter.others_at_work(),
        "poll_period_s": poll_period_s(probed.probe, meter.poll_period_s),
        "parts": [_meter_plain(part, probe) for part, probe in zip(members, probed.parts, strict=False)],
    }


def _meter_plain(meter: Meter, probe: SensorProbe) -> dict[str, Any]:
    plain = asdict(probe)
    for check, values in zip(probe.cross_checks, plain["cross_checks"], strict=True):
        values["difference_ratio"] = check.difference_ratio
    return {
        "source": asdict(meter.source) | {"quality": meter.source.quality.value},
        "idle_watts": meter.idle_watts,
        "neighbours": meter.neighbours(),
        "wraps_at_uj": None if meter.wraps_at is None else meter.wraps_at.uj,
        "probe": plain,
    }


def _probe_lines(probe: SensorProbe) -> list[str]:
    lines = [_line("probed", f"{probe.duration_s:.3g} s, {counted(probe.reads, 'read')}")]
    if probe.read_cost_p50_s is not None and probe.read_cost_p99_s is not None:
        lines.append(_line("updates", _updates(probe)))
        cost = f"{amount(probe.read_cost_p50_s, 's')} median, {amount(probe.read_cost_p99_s, 's')} p99"
        lines.append(_line("a read takes", cost))
        uj = probe.resolution_uj
        lines.append(
            _line("resolution", _UNKNOWN if uj is None else f"all changes are multiples of {uj:,} uJ")
        )
        lines.append(_line("drawn meanwhile", amount(probe.watts, "W", _UNKNOWN)))
    lines += [_line("against power", _check(check)) for check in probe.cross_checks]
    lines += [_line("not available", f"{what}: {why}") for what, why in probe.unsupported.items()]
    return lines


def _updates(probe: SensorProbe) -> str:
    if probe.resolution_uj is None:
        return "none seen"
    if probe.update_period_s is None or probe.edge_jitter_s is None:
        return "in steps" if probe.stepped else "not seen as steps"
    period, jitter = amount(probe.update_period_s, "s"), amount(probe.edge_jitter_s, "s")
    return f"in steps every {period}, deviating by {jitter}"


def _check(check: CrossCheck) -> str:
    ratio = check.difference_ratio
    difference = "" if ratio is None else f": {ratio * 100:+.1f} %"
    return (
        f"over {check.window_s:.2f} s the counter says {check.counter_joules:.2f} J, "
        f"integrated power {check.power_joules:.2f} J{difference}"
    )


def _neighbours(count: int | None) -> str:
    return (
        _UNKNOWN if count is None else f"{counted(count, 'other process', 'other processes')} on the device"
    )


def _at_work(at_work: float | None) -> str:
    return _UNKNOWN if at_work is None else f"{at_work:.2f} of the device (of a host: cores) meanwhile"


def _line(name: str, text: str) -> str:
    return f"  {name:<18}{text}"
