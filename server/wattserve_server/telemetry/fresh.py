"""A page that costs something to make: made at most once a second on the average, however many ask for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from wattserve_server.telemetry.exposition import Route

PERIOD_S = 1.0
BURST = 5  # that may be made one after the other, after a rest

Page = tuple[str, bytes]


class Fresh:
    """A route, whose page is never older than the question. kind: of the page, by the Accept header; there
    are a few."""

    def __init__(
        self,
        route: Route,
        kind: Callable[[str], Hashable] = lambda accept: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._route = route
        self._kind = kind
        self._clock = clock
        self._sleep = sleep
        self._due_s = float("-inf")  # when the next one may be made, with no burst
        self._made: dict[Hashable, tuple[float, Page]] = {}  # when its making began
        self._making = threading.Lock()

    def __call__(self, accept: str) -> Page:
        """Who comes while others wait for a page gets theirs."""
        came_s, kind = self._clock(), self._kind(accept)
        with self._making:
            begun_s, page = self._made.get(kind, (float("-inf"), ("", b"")))
            if begun_s <= came_s:
                self._wait_for_turn()
                begun_s = self._clock()
                page = self._route(accept)
                self._made[kind] = (begun_s, page)
            return page

    def _wait_for_turn(self) -> None:
        now_s = self._clock()
        self._due_s = max(self._due_s, now_s - (BURST - 1) * PERIOD_S)
        if self._due_s > now_s:
            self._sleep(self._due_s - now_s)
        self._due_s += PERIOD_S
