"""Counters and histograms for the way of a request, and their families, which a registry collects.

prometheus_client's own would do but for their price: they take a lock for every number, and make an exemplar
ready to be printed, over 10 us for a request of this server. These are written to by one thread, the event
loop, so that they need no lock; a scrape, on another, may find a histogram's sum an observation behind its
count. What is printed is prometheus_client's, either way.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from wattserve_server.energy.receipt import Receipt
from wattserve_server.telemetry.table import MetricSpec

# A caller's request id that an exemplar shows: OpenMetrics gives its labels 128 characters in all, of which
# `receipt_id` and `request_id` take 20 and a receipt's id 39.
_SAFE_ID = re.compile(r"[A-Za-z0-9._:/@+=-]{1,64}")


class LastObservation(NamedTuple):
    """The last observation of a bucket whose request is known."""

    receipt_id: str
    request_id: str
    value: float
    unix_s: float

    def exemplar(self) -> Exemplar:
        labels = {"receipt_id": self.receipt_id}
        if _SAFE_ID.fullmatch(self.request_id):
            labels["request_id"] = self.request_id
        return Exemplar(labels, self.value, round(self.unix_s, 3))


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Histogram:
    __slots__ = ("_bounds", "counts", "seen", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.seen: dict[int, LastObservation] = {}  # by the number of the bucket

    def observe(self, value: float, receipt: Receipt | None = None) -> None:
        """receipt: of the request that was observed, for an exemplar."""
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if receipt is not None:
            self.seen[bucket] = LastObservation(receipt.receipt_id, receipt.request_id, value, time.time())


class Counters(Collector):
    """The family of a counter: its series by the values of its labels, each there from its first mention."""

    def __init__(self, metric: MetricSpec, registry: CollectorRegistry) -> None:
        self.metric = metric
        self._series: dict[tuple[str, ...], Counter] = {}
        registry.register(self)

    def of(self, *labels: str) -> Counter:
        series = self._series.get(labels)
        if series is None:
            _labels(self.metric, labels)
            series = self._series[labels] = Counter()
        return series

    def collect(self) -> Iterable[Metric]:
        family = self.metric.new_family()
        for labels, series in tuple(self._series.items()):
            family.add_sample(self.metric.name, _labels(self.metric, labels), series.value)
        return [family]


class Histograms(Collector):
    """The family of a histogram, as `Counters`."""

    def __init__(self, metric: MetricSpec, registry: CollectorRegistry) -> None:
        self.metric = metric
        self._series: dict[tuple[str, ...], Histogram] = {}
        self._bounds = [str(floatToGoString(bound)) for bound in (*metric.buckets, float("inf"))]
        registry.register(self)

    def of(self, *labels: str) -> Histogram:
        series = self._series.get(labels)
        if series is None:
            _labels(self.metric, labels)
            series = self._series[labels] = Histogram(self.metric.buckets)
        return series

    def collect(self) -> Iterable[Metric]:
        name, family = self.metric.name, self.metric.new_family()
        for values, series in tuple(self._series.items()):
            labels = _labels(self.metric, values)
            counts, total, seen = tuple(series.counts), series.total, dict(series.seen)
            counted = 0
            for number, count in enumerate(counts):
                counted += count
                exemplar = seen[number].exemplar() if number in seen else None
                bucket = {**labels, "le": self._bounds[number]}
                family.add_sample(f"{name}_bucket", bucket, counted, exemplar=exemplar)
            family.add_sample(f"{name}_count", labels, counted)
            family.add_sample(f"{name}_sum", labels, total)
        return [family]


class Read:
    """Families of what is read at a scrape: those with a sample, in the order of their first one."""

    def __init__(self) -> None:
        self._families: dict[MetricSpec, Metric] = {}

    def add(self, metric: MetricSpec, value: float | None, *labels: str) -> None:
        """value: None where it is not known, which leaves no series."""
        names = _labels(metric, labels)
        if value is None:
            return
        family = self._families.get(metric)
        if family is None:
            family = self._families[metric] = metric.new_family()
        family.add_sample(metric.name, names, float(value))

    def families(self) -> Iterable[Metric]:
        return self._families.values()


def _labels(metric: MetricSpec, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.labels, values, strict=True))
