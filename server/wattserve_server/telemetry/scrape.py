"""The page that a scraper gets: what was counted, what is read now, and the GPU boards' gauges.

It is plain text, or OpenMetrics with exemplars. The boards' four gauges are Triton's, which perf_analyzer
reads. Its pattern takes digits and a point and stops before an exponent, which prometheus_client prints from
a million on: so what boards say is printed here.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client import generate_latest as as_text
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.registry import Collector

from wattserve_server.telemetry import table
from wattserve_server.telemetry.series import Read
from wattserve_server.telemetry.state import BoardFigures, ServerState

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_END = b"# EOF\n"

LONGEST_READ_S = 0.25  # for which a scrape waits for a board's driver: long enough for one that is well


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    """The metrics that are read at a scrape."""

    state: Callable[[], ServerState]

    def collect(self) -> Iterable[Metric]:
        state, read = self.state(), Read()
        for section in table.SECTIONS:
            for metric, value, labels in section.samples(state):
                read.add(metric, value, *labels)
        return read.families()


@dataclass(slots=True, eq=False)
class BoardGauges:
    """One board's figures, as they are when asked."""

    uuid: str
    read: Callable[[], BoardFigures]  # never raises, and may take for ever
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def figures(self) -> BoardFigures:
        """What is known in time: a driver that hangs costs a scrape these figures and no others."""
        answers: list[BoardFigures] = []
        if not self._reading.acquire(timeout=LONGEST_READ_S):
            return BoardFigures()

        def read() -> None:
            try:
                answers.append(self.read())
            finally:
                self._reading.release()

        thread = threading.Thread(target=read, name="wattserve-board", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads
            self._reading.release()
            return BoardFigures()
        thread.join(LONGEST_READ_S)
        return answers[0] if answers else BoardFigures()


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics, and before plain text: scrapers put first what they prefer.

    prometheus_client's own choice raises for a version that is no number, and repeats whatever it reads.
    """
    for accepted in accept.split(","):
        kind, *parameters = accepted.split(";")
        if "q=0" in [parameter.strip() for parameter in parameters]:
            continue
        if kind.strip().lower() == "text/plain":
            return False
        if kind.strip().lower() == "application/openmetrics-text":
            return True
    return False


def render(registry: CollectorRegistry, boards: Sequence[BoardGauges], accept: str) -> tuple[str, bytes]:
    """The content type, and the page. Only OpenMetrics has exemplars: plain text has no room for them."""
    is_openmetrics = wants_openmetrics(accept)
    board_lines = "".join(_board_lines(boards, is_openmetrics)).encode()
    if not is_openmetrics:
        return TEXT, as_text(registry) + board_lines
    page: bytes = as_openmetrics(registry)
    return OPENMETRICS, page.removesuffix(_END) + board_lines + _END


def _board_lines(boards: Sequence[BoardGauges], is_openmetrics: bool) -> Iterable[str]:
    figures = [(board.uuid, board.figures()) for board in boards]
    host = socket.gethostname()
    numbered = [
        ((str(told.index), uuid, told.name, host), told) for uuid, told in figures if told.index is not None
    ]
    yield from _lines(table.BOARDS, [((uuid,), told) for uuid, told in figures], is_openmetrics)
    yield from _lines(table.DCGM, numbered, is_openmetrics)


def _lines(
    section: table.Section[BoardFigures],
    boards: Sequence[tuple[table.Labels, BoardFigures]],
    is_openmetrics: bool,
) -> Iterable[str]:
    """boards: with the values of their labels."""
    for metric, read in section.rows.items():
        values = [(labels, read(told)) for labels, told in boards] if read is not None else []
        samples = [
            f"{metric}{{{_printed(metric, labels)}}} {value if isinstance(value, int) else f'{value:.3f}'}\n"
            for labels, value in values
            if value is not None
        ]
        if samples:
            is_no_counter = is_openmetrics and metric.is_dcgm and metric.type is table.SeriesType.COUNTER
            kind = "unknown" if is_no_counter else metric.type.value
            yield f"# HELP {metric} {metric.meaning}\n# TYPE {metric} {kind}\n"
            yield from samples


def _printed(metric: table.MetricSpec, labels: table.Labels) -> str:
    """JSON escapes a text as both formats do."""
    pairs = zip(metric.labels, labels, strict=True)
    return ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in pairs)
