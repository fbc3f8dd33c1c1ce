"""What a tenant may use at a time: requests a second, and predictions in flight. One clock, no timers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wattserve_server.errors import OverloadedError
from wattserve_server.service.caller import Caller

BURST_S = 1.0  # of requests, that may come at once after a rest
_ROUNDING_S = 1e-6


@dataclass(slots=True)
class _Used:
    due_s: float = float("-inf")  # until when the tenant's requests have taken their time
    in_flight: int = 0


class Quotas:
    """What each tenant uses, by all its keys: each request takes as long as the limit of its key says, so
    that keys with unlike limits share one time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used: defaultdict[str, _Used] = defaultdict(_Used)

    @property
    def in_flight(self) -> dict[str, int]:
        """Predictions, by tenant."""
        return {tenant: used.in_flight for tenant, used in self._used.items()}

    def take(self, caller: Caller) -> None:
        """A request has come. Raises OverloadedError, which says when the next one may."""
        if caller.key is None or not caller.key.requests_per_second:
            return
        rate = caller.key.requests_per_second
        used, now_s, lasts_s = self._used[caller.tenant], self._clock(), 1 / rate
        due_s = max(used.due_s, now_s)
        wait_s = due_s - now_s - max(0.0, BURST_S - lasts_s)
        if wait_s > _ROUNDING_S:
            raise OverloadedError(
                f"tenant {caller.tenant} has used up its {rate:g} requests a second", "tenant_rate", wait_s
            )
        used.due_s = due_s + lasts_s

    @contextmanager
    def prediction(self, caller: Caller) -> Iterator[None]:
        """A request that is in flight until the block ends. Raises OverloadedError."""
        self.take(caller)
        used, most = self._used[caller.tenant], 0 if caller.key is None else caller.key.in_flight
        if most and used.in_flight >= most:
            raise OverloadedError(
                f"tenant {caller.tenant} has {used.in_flight} predictions in flight, as many as it may",
                "tenant_in_flight",
            )
        used.in_flight += 1
        try:
            yield
        finally:
            used.in_flight -= 1
