"""What a worker process and the one that started it tell each other: pickles, each after its length.

Both ends are this program, on this machine: nobody else can write into the pipes between them.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass
from typing import Any

from wattserve_loadgen.drive.outcome import Stamps

_LENGTH = struct.Struct("<Q")
TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Ready:
    """The job was understood."""


@dataclass(frozen=True)
class Begin:
    """By `time.perf_counter_ns`, which all processes of a machine share."""

    at_ns: int


@dataclass(frozen=True)
class Stop:
    reason: str


@dataclass(frozen=True)
class Tick:
    """How it goes, for the screen."""

    rate_per_second: float | None
    recent_services_ns: Stamps


def packed(message: Any) -> bytes:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message; IncompleteReadError when the other side has ended."""
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(size))
