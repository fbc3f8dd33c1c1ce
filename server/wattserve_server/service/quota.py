"""What a tenant may use at a time: requests a second, and predictions in flight. One clock, no timers."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from wattserve_server.errors import OverloadedError
from wattserve_server.service.caller import Caller
from wattserve_server.service.held import HeldBytes
from wattserve_server.service.keys import ApiKey

BURST_S = 1.0  # of requests, that may come at once after a rest
READ_S = 1.0  # between two long messages that a stream's tenant is told to send later, at the most
_ROUNDING_S = 1e-6


@dataclass(slots=True)
class _Used:
    due_s: float = float("-inf")  # until when the tenant's requests have taken their time
    unread_until_s: float = float("-inf")  # the same, as of the last message that was refused unread
    read_due_s: float = float("-inf")  # until when reading long messages of streams has taken its time
    in_flight: int = 0


class Quotas:
    """What each tenant uses, by all its keys: each request takes as long as the limit of its key says, so
    that keys with unlike limits share one time."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, messages: HeldBytes | None = None
    ) -> None:
        """messages: what all callers hold of them; None: as much as they like."""
        self._clock = clock
        self.messages = messages or HeldBytes()
        self.as_of_now: Callable[[ApiKey], ApiKey] = lambda key: key  # of one that a stream began with
        self._used: defaultdict[str, _Used] = defaultdict(_Used)

    @property
    def in_flight(self) -> dict[str, int]:
        """Predictions, by tenant."""
        return {tenant: used.in_flight for tenant, used in self._used.items()}

    def take(self, caller: Caller) -> None:
        """A request has come. Raises OverloadedError, which says when the next one may."""
        self.check(caller, takes=True)

    def take_unread(self, caller: Caller) -> None:
        """A message was refused before it was a request, and takes as long, where there was time for one."""
        with suppress(OverloadedError):
            self.take(caller)
        used = self._used[caller.tenant]
        used.unread_until_s = used.due_s

    def take_more(self, caller: Caller, requests: int) -> None:
        """A request that was let in costs so many more: those that come next wait for them."""
        if caller.key is not None and (rate := self.as_of_now(caller.key).requests_per_second):
            used = self._used[caller.tenant]
            used.due_s = max(used.due_s, self._clock()) + requests / rate

    def check_stream(self, caller: Caller) -> None:
        """Of a stream, which tells each of its requests apart whether it may come: refused as a whole only
        while what was refused unread has used the time up. Raises OverloadedError."""
        if self._clock() < self._used[caller.tenant].unread_until_s:
            self.check(caller)

    def check(self, caller: Caller, takes: bool = False) -> None:
        """Whether one may come now. Raises OverloadedError as `take`."""
        if caller.key is None or not (rate := self.as_of_now(caller.key).requests_per_second):
            return
        used, now_s, lasts_s = self._used[caller.tenant], self._clock(), 1 / rate
        due_s = max(used.due_s, now_s)
        wait_s = due_s - now_s - max(0.0, BURST_S - lasts_s)
        if wait_s > _ROUNDING_S:
            raise OverloadedError(
                f"tenant {caller.tenant} has used up its {rate:g} requests a second", "tenant_rate", wait_s
            )
        if takes:
            used.due_s = due_s + lasts_s

    async def turn(self, caller: Caller) -> None:
        """Wait until another long message of a stream may be read. They are read twice as fast as the limit
        of the key, so that who keeps to it never waits, and who does not is still told so."""
        if caller.key is None or not (rate := self.as_of_now(caller.key).requests_per_second):
            return
        used, now_s, lasts_s = self._used[caller.tenant], self._clock(), min(0.5 / rate, READ_S)
        due_s = max(used.read_due_s, now_s)
        used.read_due_s = due_s + lasts_s
        wait_s = due_s - now_s - max(0.0, BURST_S - lasts_s)
        if wait_s <= _ROUNDING_S:
            return
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:  # the stream has ended: who comes next need not wait for it
            used.read_due_s -= lasts_s
            raise

    def begin(self, caller: Caller) -> None:
        """A prediction has come, which is in flight until `end`. Raises OverloadedError."""
        self.take(caller)
        used, most = self._used[caller.tenant], 0
        if caller.key is not None:
            most = self.as_of_now(caller.key).in_flight
        if most and used.in_flight >= most:
            raise OverloadedError(
                f"tenant {caller.tenant} has as many predictions in flight as it may: {used.in_flight}",
                "tenant_in_flight",
            )
        used.in_flight += 1

    def end(self, caller: Caller) -> None:
        self._used[caller.tenant].in_flight -= 1
