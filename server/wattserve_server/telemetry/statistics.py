"""What happened to requests and batches since the start, by variant, as Triton's statistics count it.

Unlike the metrics, whole numbers that a client subtracts from one another. Owned by the event loop; knows
nothing of transports and models.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Times(NamedTuple):
    """Where the time of one answered request went, in nanoseconds of the server's monotonic clock.

    tokenize: 0 when the caller sent tokens. queue: accepted until its last sequence was put into a batch,
    less what earlier ones took. compute: the windows of its batches. output: what of its way through the
    engine is in neither. total: received until the answer was ready, a wait for settled energy included.
    """

    tokenize_ns: int
    queue_ns: int
    compute_ns: int
    output_ns: int
    total_ns: int


@dataclass(slots=True)
class Duration:
    """count: of what took `total_ns` together."""

    count: int = 0
    total_ns: int = 0

    def add(self, amount_ns: int) -> None:
        self.count += 1
        self.total_ns += amount_ns


@dataclass(slots=True)
class VariantStatistics:
    """Of one variant. batches: how long those of each size computed. settled: requests whose energy became
    known, and its sum. last_unix_ms: when the last request was answered; 0: none was."""

    sequences: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    tokenize: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    output: Duration = field(default_factory=Duration)
    batches: dict[int, Duration] = field(default_factory=lambda: defaultdict(Duration))
    settled: int = 0
    settled_uj: int = 0
    last_unix_ms: int = 0

    @property
    def durations(self) -> tuple[Duration, ...]:
        return (self.success, self.fail, self.tokenize, self.queue, self.compute, self.output)


class Statistics:
    """One per server."""

    def __init__(self) -> None:
        self._variants: dict[str, VariantStatistics] = defaultdict(VariantStatistics)

    def answered(self, variant: str, sequences: int, times: Times) -> None:
        found = self._variants[variant]
        found.sequences += sequences
        found.success.add(times.tokenize_ns + times.queue_ns + times.compute_ns + times.output_ns)
        found.tokenize.add(times.tokenize_ns)
        found.queue.add(times.queue_ns)
        found.compute.add(times.compute_ns)
        found.output.add(times.output_ns)
        found.last_unix_ms = time.time_ns() // 1_000_000

    def failed(self, variant: str, total_ns: int) -> None:
        self._variants[variant].fail.add(total_ns)

    def batch_ran(self, variant: str, sequences: int, compute_ns: int) -> None:
        self._variants[variant].batches[sequences].add(compute_ns)

    def receipt_final(self, variant: str, energy_uj: int | None) -> None:
        """energy_uj: None when it is not known."""
        if energy_uj is not None:
            self._variants[variant].settled += 1
            self._variants[variant].settled_uj += energy_uj

    def of(self, variants: Iterable[str]) -> VariantStatistics:
        """The sum over these variants."""
        total = VariantStatistics()
        for variant in variants:
            found = self._variants.get(variant)
            if found is None:
                continue
            total.sequences += found.sequences
            total.settled += found.settled
            total.settled_uj += found.settled_uj
            total.last_unix_ms = max(total.last_unix_ms, found.last_unix_ms)
            pairs = [*zip(total.durations, found.durations, strict=True)]
            pairs += [(total.batches[size], batches) for size, batches in found.batches.items()]
            for into, duration in pairs:
                into.count += duration.count
                into.total_ns += duration.total_ns
        return total
