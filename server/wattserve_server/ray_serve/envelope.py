"""What Ray carries between its ingress and a replica: messages as bytes, and what gRPC tells beside them.

Ray's own way loses the caller's deadline, and an error's trailing metadata.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import NamedTuple

Metadata = tuple[tuple[str, str | bytes], ...]

MESSAGE, STATUS, HEAD = b"m", b"s", b"h"


class Asked(NamedTuple):
    """A call: with the one message of a unary call, or as the first of what a stream brings."""

    left_s: float | None  # until the caller's deadline
    data: bytes = b""


class Status(NamedTuple):
    """How a call ends that has failed."""

    code: int
    message: str
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Reply:
    """Ray asks of what a replica answers no more than this method."""

    data: bytes

    def SerializeToString(self) -> bytes:
        return self.data


def message(data: bytes) -> Reply:
    return Reply(MESSAGE + data)


def status(ended: Status) -> Reply:
    return Reply(STATUS + pickle.dumps(tuple(ended)))


def opened(data: bytes) -> bytes | Status | None:
    """Of a reply that is not empty: a message, how the call ends, or None where it has merely begun."""
    kind, rest = data[:1], data[1:]
    if kind == STATUS:
        return Status(*pickle.loads(rest))
    return rest if kind == MESSAGE else None
