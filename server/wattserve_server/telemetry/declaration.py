"""What a declaration of a metric says. The metrics are in `declared_events` and `declared_state`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prometheus_client.metrics_core import Metric

BASE_UNITS = ("seconds", "joules", "watts", "bytes", "ratio")
"""Units that stand in the names of their metrics; whatever else is counted is what the name says."""


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


SUFFIXES = {Kind.COUNTER: "_total", Kind.INFO: "_info"}
"""What OpenMetrics adds to the name of a family to make that of its series."""


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """One metric, as it is scraped and as docs/metrics.md shows it.

    name: of its series, as a query writes it, but for a histogram's `_bucket`, `_sum` and `_count`. unit: of
    its values. absent: when it has no series. buckets: upper bounds, without the last one, which is infinity.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    absent: str = ""
    buckets: tuple[float, ...] = ()
    has_exemplars: bool = False

    def __post_init__(self) -> None:
        if not self.name.endswith(SUFFIXES.get(self.kind, "")):
            raise ValueError(f"{self.name}: a {self.kind.value} ends with {SUFFIXES[self.kind]}")
        if bool(self.buckets) != (self.kind is Kind.HISTOGRAM) or list(self.buckets) != sorted(self.buckets):
            raise ValueError(f"{self.name}: histograms, and they alone, have buckets, the smallest first")

    @property
    def family(self) -> str:
        """The name of its family, in OpenMetrics' sense."""
        return self.name.removesuffix(SUFFIXES.get(self.kind, ""))

    def new_family(self) -> Metric:
        """As prometheus_client prints it; still without samples."""
        unit = self.unit if self.family.endswith(f"_{self.unit}") else ""
        return Metric(self.family, self.meaning, self.kind.value, unit)
