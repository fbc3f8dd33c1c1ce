"""Recordings of a meter: how one is made, written and read. JSON lines, plain enough for any other program.

    {"format": "wattserve-meter-recording", "version": 1, "source": {"name": ..., "method": ..., "quality":
     ..., "note": ..., "boundary": ...}, "wraps_at_uj": null, "idle_watts": 5.0, "poll_period_s": 0.02,
     "started": "2026-11-20T12:00:00+00:00", "origin_monotonic_ns": 123456789, "host": {...}}
    {"at_ns": 0, "energy_uj": 120}                         a reading
    {"at_ns": 20000000, "error": "the GPU is lost"}        a failed one
    {"end_ns": 40000000, "lines": 2}                       the last line: nothing is missing

Instants are nanoseconds since the first line and never step back. `origin_monotonic_ns` is that of the first
line on the host's monotonic clock, for programs there that read along; older recordings have none.
`ReplayMeter` plays a recording back.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from wattserve_common.strict_json import check_characters, json_of
from wattserve_server.energy.reading import Energy, Quality, Source
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.meters.port import Meter

FORMAT = "wattserve-meter-recording"
VERSION = 1

T = TypeVar("T")

MOST: dict[type, float] = {int: 2.0**62, float: 1e9}  # of nanoseconds and microjoules; of watts and seconds


@dataclass(frozen=True)
class Header:
    """What was recorded, when and on what kind of host; host names and paths are left out on purpose."""

    source: Source
    wraps_at: Energy | None
    idle_watts: float | None
    poll_period_s: float
    started: str  # ISO 8601, UTC
    host: dict[str, str]
    origin_monotonic_ns: int | None = None  # of the first line; None in recordings made before it was kept


@dataclass(frozen=True, slots=True)
class RecordedReading:
    """One reading, or the words of its error."""

    at_ns: int
    energy: Energy | None
    error: str = ""


@dataclass(frozen=True)
class Recording:
    """A whole recording; it has at least one line."""

    header: Header
    lines: tuple[RecordedReading, ...]
    end_ns: int


def header_line(header: Header) -> str:
    source = asdict(header.source) | {"quality": header.source.quality.value}
    return _line(
        {
            "format": FORMAT,
            "version": VERSION,
            "source": source,
            "wraps_at_uj": header.wraps_at.uj if header.wraps_at is not None else None,
            "idle_watts": header.idle_watts,
            "poll_period_s": header.poll_period_s,
            "started": header.started,
            "origin_monotonic_ns": header.origin_monotonic_ns,
            "host": header.host,
        }
    )


def reading_line(line: RecordedReading) -> str:
    if line.energy is None:
        return _line({"at_ns": line.at_ns, "error": line.error})
    return _line({"at_ns": line.at_ns, "energy_uj": line.energy.uj})


def end_line(end_ns: int, lines: int) -> str:
    return _line({"end_ns": end_ns, "lines": lines})


def read_recording(path: Path) -> Recording:
    """Raises ConfigError, naming the line, for a file that is no whole recording of this version."""
    try:
        with path.open(encoding="utf-8") as file:
            return _read(path, file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text, so it is no recording of a meter") from None


def _read(path: Path, texts: Iterable[str]) -> Recording:
    header: Header | None = None
    lines: list[RecordedReading] = []
    number = 0
    for number, text in enumerate(texts, 1):
        where = f"{path}, line {number}"
        values = _values(where, text)
        if header is None:
            header = _header(where, values)
        elif "end_ns" in values:
            end_ns = _field(where, values, "end_ns", int)
            if _field(where, values, "lines", int) != len(lines):
                raise ConfigError(f"{where}: says {values['lines']} readings, but {len(lines)} are there")
            if not lines:
                raise ConfigError(f"{where}: the recording ends without any reading")
            if end_ns < lines[-1].at_ns:
                raise ConfigError(f"{where}: end_ns is before the last reading")
            if next(iter(texts), None) is not None:
                raise ConfigError(f"{path}, line {number + 1}: something follows the end of the recording")
            return Recording(header, tuple(lines), end_ns)
        else:
            lines.append(_reading(where, values, header, lines[-1].at_ns if lines else 0))
    if header is None:
        raise ConfigError(f"{path}: is empty; `wattserve meter record` makes recordings")
    raise ConfigError(
        f"{path}, line {number}: the recording was cut off behind it: its end line is missing. To use what is"
        f" there, add the line {end_line(lines[-1].at_ns if lines else 0, len(lines)).strip()}"
    )


def _header(where: str, values: dict[str, Any]) -> Header:
    if values.get("format") != FORMAT:
        raise ConfigError(f'{where}: is no recording of a meter ("format": "{FORMAT}" is missing)')
    if values.get("version") != VERSION:
        raise ConfigError(
            f"{where}: is of version {values.get('version')}; this Wattserve reads version {VERSION}"
        )
    source = _field(where, values, "source", dict)
    quality = _field(where, source, "quality", str)
    if quality not in [kind.value for kind in Quality]:
        raise ConfigError(f"{where}: unknown quality {quality!r}")
    idle_watts, wraps_at_uj = values.get("idle_watts"), values.get("wraps_at_uj")
    origin_ns = values.get("origin_monotonic_ns")
    poll_period_s = float(_field(where, values, "poll_period_s", float))
    if not poll_period_s:
        raise ConfigError(f"{where}: poll_period_s must be above 0, not {poll_period_s}")
    return Header(
        source=Source(
            name=_field(where, source, "name", str),
            method=_field(where, source, "method", str),
            quality=Quality(quality),
            note=_field(where, source, "note", str),
            boundary=_field(where, source, "boundary", str),
        ),
        wraps_at=None if wraps_at_uj is None else Energy(_field(where, values, "wraps_at_uj", int)),
        idle_watts=None if idle_watts is None else float(_field(where, values, "idle_watts", float)),
        poll_period_s=poll_period_s,
        started=_field(where, values, "started", str),
        host={name: str(value) for name, value in _field(where, values, "host", dict).items()},
        origin_monotonic_ns=None if origin_ns is None else _field(where, values, "origin_monotonic_ns", int),
    )


def _reading(where: str, values: dict[str, Any], header: Header, not_before_ns: int) -> RecordedReading:
    at_ns = _field(where, values, "at_ns", int)
    if at_ns < not_before_ns:
        raise ConfigError(f"{where}: at_ns {at_ns} is before that of the line above")
    if "error" in values:
        return RecordedReading(at_ns, None, _field(where, values, "error", str))
    energy = Energy(_field(where, values, "energy_uj", int))
    if header.wraps_at is not None and energy.uj > header.wraps_at.uj:
        raise ConfigError(f"{where}: energy_uj {energy.uj} is above wraps_at_uj, {header.wraps_at.uj}")
    return RecordedReading(at_ns, energy)


def _values(where: str, text: str) -> dict[str, Any]:
    try:
        values = json_of(text)
    except ValueError:
        cut = "" if text.endswith("\n") else ": the recording was cut off here"
        raise ConfigError(f"{where}: is not JSON{cut}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: must be a JSON object")
    return values


def _field(where: str, values: dict[str, Any], name: str, kind: type[T]) -> T:
    if name not in values:
        raise ConfigError(f"{where}: {name} is missing")
    value: Any = values[name]
    accepted: Any = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise ConfigError(f"{where}: {name} cannot be {value!r}")
    if isinstance(value, int | float):
        if not value >= 0:
            raise ConfigError(f"{where}: {name} must be 0 or more, not {value!r}")
        if value > MOST[kind]:
            raise ConfigError(f"{where}: {name} is more than any meter tells, which is {MOST[kind]:.3g}")
    if isinstance(value, str):
        try:
            check_characters(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {name}: {error}") from None
    return cast(T, value)


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n"


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
    """Read every `poll_period_s` until `seconds` passed (None: no limit) or `sleep` says to stop.

    `sleep` pauses for so many seconds; it is true when the recording is to end. Returns the number of
    readings, failed ones among them.
    """
    due_ns = clock_ns()
    line = _read_meter(meter, clock_ns)
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
        file.write(reading_line(RecordedReading(at_ns, line.energy, line.error)))
        count += 1
        if seconds is not None and at_ns >= seconds * 1e9:
            break
        due_ns = max(due_ns + round(poll_period_s * 1e9), clock_ns())  # late polls are not made up for
        if sleep((due_ns - clock_ns()) / 1e9):
            break
        line = _read_meter(meter, clock_ns)
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


def _read_meter(meter: Meter, clock_ns: Callable[[], int]) -> RecordedReading:
    try:
        reading = meter.read()
    except MeterError as error:
        return RecordedReading(clock_ns(), None, str(error))
    return RecordedReading(reading.at_ns, reading.energy)
