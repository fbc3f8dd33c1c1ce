"""The audit file: a first line that says what it is, then blocks, compressed one after the other, each with a
checksum.

A block is written once a second and holds all since the last one, so that a file whose server was killed is
good up to its last block. The first block holds the `Header`, as JSON.
"""

from __future__ import annotations

import json
import os
import platform
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import Any

from wattserve_common.machine import cpu_model
from wattserve_common.strict_json import json_of
from wattserve_server.errors import ConfigError

NAME, VERSION = b"wattserve-audit ", 3
_FRAME = struct.Struct("<II")  # bytes of the block, and their checksum
SETTINGS = (
    "model", "device", "variants", "meter", "allow_mig", "sensor_gain", "sensor_gain_error",
    "estimate_watts_per_core", "estimate_idle_watts", "simulated_idle_watts", "simulated_busy_watts",
    "split_rule", "idle_policy", "calibration_seconds",
)  # fmt: skip
MOST_BYTES = 256 << 20  # of what is in a block: beyond what a server writes in a second


@dataclass(frozen=True, slots=True)
class Header:
    instance_id: str
    started_unix_ns: int
    started_ns: int  # the same instant on the clock of all others in the file
    made_on: Mapping[str, str]  # see `this_machine`
    settings: Mapping[str, Any]  # those of the server that are `SETTINGS`, for people to read

    def check(self) -> None:
        """Raises ValueError where something is of a kind that no server writes."""
        if not (isinstance(self.made_on, dict) and isinstance(self.settings, dict)):
            raise ValueError("it lacks names and values")
        if not all(isinstance(each, str) for each in (self.instance_id, *self.made_on.values())):
            raise ValueError("a text is none")
        if not all(
            type(each) is int and 0 <= each < 2**63 for each in (self.started_unix_ns, self.started_ns)
        ):
            raise ValueError("an instant is none")

    def unix_ns(self, at_ns: int) -> int:
        return self.started_unix_ns + at_ns - self.started_ns


def this_machine() -> dict[str, str]:
    """All on which the last bit of a figure may depend, and nothing that names the machine."""
    return {
        "wattserve": version("wattserve"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": cpu_model() or "unknown",
    }


class BlockWriter:
    """Makes the file; raises ConfigError where there is one already or none can be."""

    def __init__(self, path: Path) -> None:
        self._packing = zlib.compressobj()
        try:
            self._file = FileIO(path, "x")
            self._good = self._file.write(NAME + b"%d\n" % VERSION)
        except FileExistsError:
            raise ConfigError(f"{path}: is there already; choose another name or remove it") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None

    @property
    def size(self) -> int:
        """In bytes, of whole blocks."""
        return self._good

    def begin(self, header: Header) -> None:
        self.write(json.dumps(asdict(header)).encode())

    def write(self, block: bytes) -> None:
        """Raises OSError, and must not be called again then; what is there of the block is cut off."""
        data = self._packing.compress(block) + self._packing.flush(zlib.Z_SYNC_FLUSH)
        data = _FRAME.pack(len(data), zlib.crc32(data)) + data
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self._good)
            raise
        self._good += len(data)

    def close(self) -> None:
        with self._file:
            os.fsync(self._file.fileno())


class BlockReader:
    """The blocks of a file, behind its header; `cut_at` then says where it ends in the midst of one."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that is none, or of another version."""
        self.path = path
        self._unpacking = zlib.decompressobj()
        self.cut_at: int | None = None
        try:
            if path.exists() and not path.is_file():  # a pipe may be waited for without end
                raise ConfigError(f"{path}: is no regular file; give what `wattserve audit record` made")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        self._blocks = self._read()
        first = next(self._blocks, None)
        if first is None:
            raise ConfigError(f"{path}: ends before its first block: the server was ended as it started")
        try:
            self.header = Header(**json_of(first))
            self.header.check()
        except (ValueError, TypeError):
            raise ConfigError(f"{path}: its first block does not say which run it is of") from None

    def __iter__(self) -> Iterator[bytes]:
        """Raises ConfigError for a block that is not what was written."""
        return self._blocks

    def _read(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                _check_first_line(self.path, file.readline(len(NAME) + 20))
                while frame := file.read(_FRAME.size):
                    at = file.tell() - len(frame)
                    size, checksum = _FRAME.unpack(frame) if len(frame) == _FRAME.size else (1, 0)
                    data = file.read(min(size, MOST_BYTES))
                    if len(data) < size:
                        self.cut_at = at
                        return
                    yield self._opened(data, checksum, at)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read ({error.strerror})") from None

    def _opened(self, data: bytes, checksum: int, at: int) -> bytes:
        why = "" if zlib.crc32(data) == checksum else "its checksum is another"
        if not why:
            try:
                block = self._unpacking.decompress(data, MOST_BYTES)
            except zlib.error as error:
                why = str(error)
            else:
                if not self._unpacking.unconsumed_tail:
                    return block
                why = f"it holds more than {MOST_BYTES >> 20} MiB"
        raise ConfigError(
            f"{self.path}: the block at byte {at} is not what was written: {why}. A disk or a person changed "
            "it, and nothing behind it can be told; take another copy of the file"
        )


def _check_first_line(path: Path, line: bytes) -> None:
    if not line.startswith(NAME):
        raise ConfigError(f"{path}: is no audit file; `wattserve audit record` makes them")
    if not line.endswith(b"\n"):
        raise ConfigError(f"{path}: was cut off in its first line; take another copy of the file")
    if line != NAME + b"%d\n" % VERSION:
        told = line[len(NAME) :].strip().decode(errors="replace")
        raise ConfigError(
            f"{path}: is an audit file of version {told}, and this Wattserve reads version {VERSION}; "
            "recompute it with the Wattserve that made it"
        )
