"""The last requests that failed, for whoever looks at the server. Owned by the event loop."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

KEPT = 20

MAX_MESSAGE = 200
"""Characters of a message: it may repeat what a caller sent."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """variant: empty when the request named none that exists."""

    unix_s: float
    variant: str
    code: str
    reason: str
    message: str


class Failures:
    def __init__(self) -> None:
        self._kept: deque[FailedRequest] = deque(maxlen=KEPT)

    def add(self, failed: FailedRequest) -> None:
        self._kept.append(replace(failed, message=failed.message[:MAX_MESSAGE]))

    @property
    def newest_first(self) -> list[FailedRequest]:
        return list(reversed(self._kept))
