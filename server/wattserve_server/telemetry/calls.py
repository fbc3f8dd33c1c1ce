"""The metrics of gRPC's methods, named and labelled as go-grpc-prometheus does, whose dashboards then fit.

Knows nothing of gRPC: who serves the calls says when one starts and how it ends.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry

from wattserve_server.telemetry import declared_events as declared
from wattserve_server.telemetry.series import Counter, Counters, Histogram, Histograms


class MethodCalls:
    """The calls of one method. Its series are there from its first call on."""

    __slots__ = ("_calls", "_duration", "_handled", "_labels", "_started")

    def __init__(self, calls: Calls, labels: tuple[str, str, str]) -> None:
        self._calls = calls
        self._labels = labels
        self._started: Counter | None = None
        self._duration: Histogram
        self._handled: dict[str, Counter] = {}

    def start(self) -> int:
        """A call has come: the instant, for `end`."""
        if self._started is None:
            self._started = self._calls.started.of(*self._labels)
            self._duration = self._calls.duration.of(*self._labels)
        self._started.add()
        return time.monotonic_ns()

    def end(self, begun_ns: int, code: str) -> None:
        """code: the name of gRPC's status code, in capitals."""
        handled = self._handled.get(code)
        if handled is None:
            handled = self._handled[code] = self._calls.handled.of(*self._labels, go_name(code))
        handled.add()
        self._duration.observe((time.monotonic_ns() - begun_ns) / 1e9)


class Calls:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.started = Counters(declared.CALLS_STARTED, registry)
        self.handled = Counters(declared.CALLS_HANDLED, registry)
        self.duration = Histograms(declared.CALL_DURATION, registry)

    def method(self, kind: str, service: str, method: str) -> MethodCalls:
        """kind: unary, client_stream, server_stream or bidi_stream."""
        return MethodCalls(self, (kind, service, method))


def go_name(code: str) -> str:
    """`INVALID_ARGUMENT` as gRPC for Go spells it: `InvalidArgument`."""
    if code == "OK":
        return code
    return "Canceled" if code == "CANCELLED" else code.title().replace("_", "")
