"""What this client can send at most, and the file that remembers it.

A ceiling holds for one machine with one set of versions, one kind of call, one number of processes and one
class of request size; anything else is measured anew.
"""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wattserve_loadgen.this_machine import cpu_model, usable_cpus, version_of

_FORMAT = 2
_FILE = Path("wattserve") / "loadgen-calibration.json"
_SMALLEST_CLASS_BYTES = 64


@dataclass(frozen=True)
class Ceiling:
    """Against a server that answers nothing but canned bytes, on the same machine."""

    kind: str  # "unary", "stream" or "oip"
    processes: int
    request_bytes: int  # the upper end of the size class, at which it was measured
    concurrency: int  # the best of those tried
    requests_per_second: float
    cpu_seconds_per_request: float
    cpu_share: float  # of the busiest process at the ceiling
    half_rate_lag_p50_ns: int  # sent - scheduled, in an open loop at half the ceiling
    half_rate_lag_p99_ns: int
    half_rate_lag_max_ns: int
    measured_unix_seconds: int

    def describe(self) -> str:
        """One line for the screen."""
        workers = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return (
            f"this client reaches {self.requests_per_second:,.0f} {self.kind} requests/s of up to"
            f" {self.request_bytes:,} bytes ({workers}, {self.concurrency} in flight,"
            f" {self.cpu_seconds_per_request * 1e6:.0f} µs of client CPU each);"
            f" at half that rate requests leave {self.half_rate_lag_p99_ns / 1e6:.2f} ms late at p99"
        )


def size_class(request_bytes: int) -> int:
    """`request_bytes` rounded up to a power of two."""
    return max(_SMALLEST_CLASS_BYTES, 1 << max(0, request_bytes - 1).bit_length())


def this_client() -> dict[str, Any]:
    """What a ceiling depends on, as plain JSON values."""
    return {
        "cpu_model": cpu_model(),
        "usable_cpus": usable_cpus(),
        "python": platform.python_version(),
        "grpcio": version_of("grpcio"),
        "protobuf": version_of("protobuf"),
        "loadgen": version_of("wattserve"),
    }


def cache_file() -> Path:
    """Where ceilings are kept: in $XDG_CACHE_HOME, or ~/.cache."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (folder if folder.is_absolute() else Path(os.path.expanduser("~/.cache"))) / _FILE


def stored_ceiling(
    kind: str, request_bytes: int, processes: int = 1, *, file: Path | None = None
) -> tuple[Ceiling | None, str]:
    """(the ceiling measured earlier or None, a note when the file is of no use)."""
    entries, note = _read(file or cache_file())
    return entries.get(_key(kind, size_class(request_bytes), processes)), note


def store_ceiling(ceiling: Ceiling, *, file: Path | None = None) -> str:
    """Replaces the file in one step. Gives back a note when it cannot be written."""
    file = file or cache_file()
    entries, _ = _read(file)
    entries[_key(ceiling.kind, ceiling.request_bytes, ceiling.processes)] = ceiling
    content = {"format": _FORMAT, "ceilings": {key: asdict(one) for key, one in entries.items()}}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(handle, "w") as writer:
                json.dump(content, writer, indent=1)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        return f"the client's ceiling is not kept: {file} cannot be written ({error.strerror})"
    return ""


def _key(kind: str, request_bytes: int, processes: int) -> str:
    about = {"kind": kind, "request_bytes": request_bytes, "processes": processes}
    return json.dumps(this_client() | about, sort_keys=True)


def _read(file: Path) -> tuple[dict[str, Ceiling], str]:
    """The entries by their key; those that make no sense are left out."""
    useless = f"{file} is no calibration of this loadgen and is not used"
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{file} cannot be read ({error.strerror}): the client's ceiling is measured anew"
    except ValueError:
        return {}, useless
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        return {}, useless
    stored = content.get("ceilings")
    if not isinstance(stored, dict):
        return {}, useless
    entries = {key: _entry(value) for key, value in stored.items()}
    return {
        key: one for key, one in entries.items() if one is not None
    }, useless if None in entries.values() else ""


def _entry(value: object) -> Ceiling | None:
    if not isinstance(value, Mapping) or set(value) != {one.name for one in fields(Ceiling)}:
        return None
    if not isinstance(value["kind"], str):
        return None
    numbers = [number for name, number in value.items() if name != "kind"]
    if not all(type(number) in (int, float) and math.isfinite(number) and number >= 0 for number in numbers):
        return None
    return Ceiling(**value) if value["requests_per_second"] > 0 else None
