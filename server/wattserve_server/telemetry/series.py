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
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from wattserve_server.energy.receipt import Receipt
from wattserve_server.telemetry.declaration import Declared

_SAFE_ID = re.compile(r"[A-Za-z0-9._:/@+=-]{1,64}")
"""A caller's request id that an exemplar shows: OpenMetrics gives its labels 128 characters in all, of which
`receipt_id` and `request_id` take 20 and a receipt's id about 20."""


class Seen(NamedTuple):
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
    """seen: by the number of the bucket."""

    __slots__ = ("_bounds", "counts", "seen", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.seen: dict[int, Seen] = {}

    def observe(self, value: float, receipt: Receipt | None = None) -> None:
        """receipt: of the request that it was, for an exemplar."""
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if receipt is not None:
            self.seen[bucket] = Seen(receipt.receipt_id, receipt.request_id, value, time.time())


class Counters(Collector):
    """The family of a counter: its series by the values of its labels, each there from its first mention."""

    def __init__(self, declared: Declared, registry: CollectorRegistry) -> None:
        self.declared = declared
        self._series: dict[tuple[str, ...], Counter] = {}
        registry.register(self)

    def of(self, *labels: str) -> Counter:
        found = self._series.get(labels)
        if found is None:
            _labels(self.declared, labels)
            found = self._series[labels] = Counter()
        return found

    def collect(self) -> Iterable[Metric]:
        family = self.declared.new_family()
        for labels, series in tuple(self._series.items()):
            family.add_sample(self.declared.name, _labels(self.declared, labels), series.value)
        return [family]


class Histograms(Collector):
    """The family of a histogram, as `Counters`."""

    def __init__(self, declared: Declared, registry: CollectorRegistry) -> None:
        self.declared = declared
        self._series: dict[tuple[str, ...], Histogram] = {}
        self._bounds = [str(floatToGoString(bound)) for bound in (*declared.buckets, float("inf"))]  # type: ignore[no-untyped-call]
        registry.register(self)

    def of(self, *labels: str) -> Histogram:
        found = self._series.get(labels)
        if found is None:
            _labels(self.declared, labels)
            found = self._series[labels] = Histogram(self.declared.buckets)
        return found

    def collect(self) -> Iterable[Metric]:
        name, family = self.declared.name, self.declared.new_family()
        for values, series in tuple(self._series.items()):
            labels = _labels(self.declared, values)
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
        self._families: dict[Declared, Metric] = {}

    def add(self, declared: Declared, value: float | None, *labels: str) -> None:
        """value: None where it is not known, which leaves no series."""
        self.add_labelled(declared, value, _labels(declared, labels))

    def add_labelled(self, declared: Declared, value: float | None, labels: Mapping[str, str]) -> None:
        if value is None:
            return
        family = self._families.get(declared)
        if family is None:
            family = self._families[declared] = declared.new_family()
        family.add_sample(declared.name, dict(labels), float(value))

    def families(self) -> Iterable[Metric]:
        return self._families.values()


def _labels(declared: Declared, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(declared.labels, values, strict=True))
