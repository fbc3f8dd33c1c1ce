"""Records a meter's readings into a file that the replay meter plays back.

Knows when to read and when to stop. The format of the file is `recording`'s.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.meters.port import Meter
from wattserve_server.meters.recording import Header, Line, end_line, header_line, reading_line


def create(path: Path) -> TextIO:
    """A new file, written line by line. Raises ConfigError where there is one already or none can be."""
    try:
        return path.open("x", encoding="utf-8", buffering=1)
    except FileExistsError:
        raise ConfigError(f"{path}: is there already; choose another name or remove it") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None


def record(
    meter: Meter,
    file: TextIO,
    *,
    poll_period_s: float,
    seconds: float | None,
    sleep: Callable[[float], bool],
    started: str = "",
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> int:
    """Reads every `poll_period_s` until `seconds` passed (None: no limit) or `sleep` says to stop.

    sleep: pauses for so many seconds; true when the recording is to end. Returns the number of readings,
    failed ones among them.
    """
    due_ns = clock_ns()
    line = _read(meter, clock_ns)
    first_ns = line.at_ns
    header = Header(
        source=meter.source,
        wraps_at=meter.wraps_at,
        idle_watts=meter.idle_watts,
        poll_period_s=poll_period_s,
        started=started or datetime.now(UTC).isoformat(timespec="seconds"),
        host=describe_host(),
        origin_monotonic_ns=first_ns,
    )
    file.write(header_line(header))
    count, at_ns = 0, 0
    while True:
        at_ns = max(at_ns, line.at_ns - first_ns)
        file.write(reading_line(Line(at_ns, line.energy, line.error)))
        count += 1
        if seconds is not None and at_ns >= seconds * 1e9:
            break
        due_ns = max(due_ns + round(poll_period_s * 1e9), clock_ns())  # late polls are not made up for
        if sleep((due_ns - clock_ns()) / 1e9):
            break
        line = _read(meter, clock_ns)
    file.write(end_line(at_ns, count))
    return count


def describe_host() -> dict[str, str]:
    """Enough to know what kind of machine it was, and nothing that names it."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": str(os.cpu_count() or "unknown"),
        "python": platform.python_version(),
        "wattserve": version("wattserve"),
    }


def _read(meter: Meter, clock_ns: Callable[[], int]) -> Line:
    try:
        reading = meter.read()
    except MeterError as error:
        return Line(clock_ns(), None, str(error))
    return Line(reading.at_ns, reading.energy)
