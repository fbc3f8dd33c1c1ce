"""The command `wattserve meter verify`: the phases on this machine, its files, its exit code."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from wattserve_server.config import ServerConfig
from wattserve_server.console import say
from wattserve_server.energy.receipt import Window
from wattserve_server.errors import ConfigError
from wattserve_server.meters.recording import describe_host
from wattserve_server.verify.beside import device_time
from wattserve_server.verify.machine import Machine, machine
from wattserve_server.verify.page import page
from wattserve_server.verify.plan import go_through
from wattserve_server.verify.results import Results

JSON, PAGE, WINDOWS = "verify.json", "verify.md", "windows.jsonl"
UNFIT = {
    "none": "there is nothing to verify",
    "replay": "what was recorded does not follow what this machine does now",
}


def run(config: ServerConfig, folder: Path, seconds: float) -> int:
    """The exit code: 0 all bounds held, 1 one missed, 3 one undecided, 130 interrupted. Raises ConfigError or
    MeterError."""
    if config.meter in UNFIT:
        raise ConfigError(f"--meter {config.meter}: {UNFIT[config.meter]}")
    _make(folder)
    results = Results(datetime.now(UTC).isoformat(timespec="seconds"), seconds, describe_host())
    asyncio.run(_measure(config, folder, results))
    _write(
        folder / JSON, json.dumps(results.as_plain(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )
    _write(folder / PAGE, page(results))
    say(results.conclusion)
    print(folder / PAGE)
    return results.exit_code


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"--out {folder}: is not empty; choose another folder or empty it")
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be made ({error.strerror})") from None


async def _measure(config: ServerConfig, folder: Path, results: Results) -> None:
    """Ctrl-C and SIGTERM end it early, and the results say so."""
    begun_s = time.monotonic()
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        async with machine(config, folder) as rig:
            _introduce(rig, results)
            try:
                await go_through(rig, results, results.seconds - (time.monotonic() - begun_s))
            finally:
                results.board = (
                    rig.board.identity | {"meanwhile": rig.board.summary()} if rig.board.identity else {}
                )
                results.device_time = device_time(rig.all_windows)
                write_windows(folder / WINDOWS, rig.all_windows, rig.origin_ns)
    except asyncio.CancelledError:
        task.uncancel()
        results.is_interrupted = True
        say("interrupted: what was measured so far is written down")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        results.took_s = time.monotonic() - begun_s


def _introduce(rig: Machine, results: Results) -> None:
    meter = rig.counter.meter
    results.source, results.most_watts, results.declared_idle_w = (
        meter.source,
        meter.most_watts,
        meter.idle_watts,
    )
    results.device, results.model = str(rig.device.device), rig.host.engine.model.name
    results.variants, results.shapes = rig.variants, rig.shapes
    results.probe = rig.counter.probed
    results.not_verified = tuple(
        counter.meter.source.name for counter in rig.device.counters if counter is not rig.counter
    )
    results.board_why = rig.board.why
    results.before_w = rig.before.watts()


def write_windows(path: Path, windows: Sequence[Window], origin_ns: int) -> None:
    """A line for each, on the time of the readings' recording."""
    lines = [
        json.dumps(
            {
                "start_ns": window.start_ns - origin_ns,
                "end_ns": window.end_ns - origin_ns,
                "variant": window.variant,
                "lengths": window.lengths,
                "padded_length": window.padded_length,
                "packed_rows": window.packed_rows,
                "rested_ns": window.rested_ns,
                "is_first_run": window.is_first_run,
                "is_request": not window.is_warmup,
            }
        )
        for window in windows
    ]
    _write(path, "".join(f"{line}\n" for line in lines))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
