"""The running point as Prometheus metrics, so that Grafana can mark it on a server's dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.model.cells import CellResult
from wattserve_loadgen.plan.schedule import Cell
from wattserve_loadgen.sweeping.progress import Display, Tick


class LiveMetrics(Display):
    """A display that answers scrapes on a port. Series of a cell exist only while it runs."""

    def __init__(self, port: int) -> None:
        """PlanError when the port cannot be had."""
        registry = CollectorRegistry()
        gauge = partial(Gauge, namespace="wattserve_loadgen", registry=registry)
        counter = partial(Counter, namespace="wattserve_loadgen", registry=registry)
        cell = ("arm", "load")
        self._info = gauge("cell_info", "The running cell: always 1", (*cell, "block"))
        self._rate = gauge("answers_per_second", "Answers per second in the window so far", cell)
        latency = "Service time of the last few hundred answers"
        self._latency = gauge("latency_seconds", latency, (*cell, "quantile"))
        self._watts = gauge("power_watts", "What the meter counts, idle and all", cell)
        self._joules = gauge("joules_per_request", "The whole meter over the answers", cell)
        self._planned = gauge("cells_planned", "Cells of the sweep")
        self._done = gauge("cells_done", "Cells that are over")
        self._requests = counter("requests_total", "Requests of finished windows", (*cell, "outcome"))
        self._cell: Cell | None = None
        try:
            self._server, self._thread = start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            raise PlanError(
                f"--metrics-port {port}: cannot be had ({error.strerror}); name another"
            ) from None

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def begin(self, cells: Sequence[Cell]) -> None:
        self._planned.set(len(cells))
        self._done.set(0)

    def cell_started(self, cell: Cell) -> None:
        self._clear()
        self._cell = cell
        block = "heat-up" if cell.discarded else str(cell.block)
        self._info.labels(cell.arm.name, cell.load.name, block).set(1)

    def tick(self, tick: Tick) -> None:
        if self._cell is None:
            return
        labels = (self._cell.arm.name, self._cell.load.name)
        for gauge, value in (
            (self._rate, tick.rate_per_second),
            (self._watts, tick.watts),
            (self._joules, tick.joules_per_request),
        ):
            if value is not None:
                gauge.labels(*labels).set(value)
        for quantile, nanoseconds in (("0.5", tick.p50_ns), ("0.99", tick.p99_ns)):
            if nanoseconds is not None:
                self._latency.labels(*labels, quantile).set(nanoseconds / 1e9)

    def cell_done(self, cell: Cell, result: CellResult | None) -> None:
        self._clear()
        self._done.set(cell.position)
        if result is not None:
            self._requests.labels(cell.arm.name, cell.load.name, "answered").inc(result.answered)
            self._requests.labels(cell.arm.name, cell.load.name, "failed").inc(result.failed)

    def cell_passed(self, cell: Cell) -> None:
        self._done.set(cell.position)

    def end(self) -> None:
        self._clear()

    def close(self) -> None:
        """No scrape is answered any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _clear(self) -> None:
        self._cell = None
        for gauge in (self._info, self._rate, self._latency, self._watts, self._joules):
            gauge.clear()
