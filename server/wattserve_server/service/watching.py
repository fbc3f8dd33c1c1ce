"""What the status page is drawn from, as it is now; and the task that keeps the last minutes of each ledger.

Lives on the event loop, which the HTTP server's threads ask for a page.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

from wattserve_server.service import status_page
from wattserve_server.service.report import device_report, meter_now, server_info
from wattserve_server.service.serving import Serving
from wattserve_server.service.status_page import CONTENT_TYPE, Device, Page
from wattserve_server.telemetry.failures import Failures
from wattserve_server.telemetry.history import PERIOD_S, History
from wattserve_server.telemetry.statistics import Statistics

LIMIT_S = 5.0
"""For how long a page may take: longer only when the event loop hangs."""


class Watching:
    def __init__(self, serving: Serving, statistics: Statistics, failures: Failures) -> None:
        self._serving = serving
        self._statistics = statistics
        self._failures = failures
        self._histories: dict[str, History] = defaultdict(History)
        self._begun_s = time.monotonic()
        self._loop = asyncio.get_running_loop()

    async def keep_history(self) -> None:
        """Until cancelled."""
        while True:
            if self._serving.ready is not None:
                for meter in self._serving.ready.meters.values():
                    self._histories[meter.device].add(meter.sampler.ledger)
            await asyncio.sleep(PERIOD_S)

    def page(self, accept: str) -> tuple[str, bytes]:
        """The content type and the page. Any thread but the event loop's."""
        found = asyncio.run_coroutine_threadsafe(self._page(), self._loop).result(LIMIT_S)
        return CONTENT_TYPE, status_page.render(found)

    async def _page(self) -> Page:
        uptime_s, failures = time.monotonic() - self._begun_s, self._failures.newest_first
        ready = self._serving.ready
        if ready is None:
            return Page("starting", uptime_s, failures)
        devices = []
        for meter in ready.meters.values():
            history = self._histories[meter.device]
            devices.append(Device(meter_now(meter), device_report(ready, meter), history.now, history.course))
        names = ready.engine.roster.names
        return Page(
            "draining" if self._serving.draining.is_set() else "ready",
            uptime_s,
            failures,
            server_info(ready),
            devices,
            {name: self._statistics.of([name]) for name in names},
            ready.engine.queued,
        )
