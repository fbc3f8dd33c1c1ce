"""The observer, which is told what happens to requests, batches and calls, and counts it.

From it come the counted metrics, Triton's statistics and the last failures. Only the event loop tells it, so
that it needs no locks. It knows nothing of transports and models. Names of variants come from the server,
never from callers.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from wattserve_server.energy.receipt import Receipt, Window
from wattserve_server.errors import REFUSALS, OverloadedError
from wattserve_server.telemetry import scrape, table
from wattserve_server.telemetry.series import Counter, Counters, Histogram, Histograms
from wattserve_server.telemetry.state import ServerState
from wattserve_server.telemetry.table import MetricSpec, SeriesType

NO_VARIANT = "none"  # the variant label of a request that named none that exists

# Codes whose series are there from the start, so that a rate sees the first one, too.
WATCHED_CODES = ("OK", "INTERNAL", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE")

STAGES = ("tokenize", "queue", "compute", "output")  # the label `stage`, as `Times` has them

KEPT_FAILURES = 20
MAX_MESSAGE = 200  # characters of a failure's message, which may repeat what a caller sent


class Times(NamedTuple):
    """Where the time of one answered request went, in nanoseconds of the server's monotonic clock."""

    tokenize_ns: int  # 0 when the caller sent tokens
    queue_ns: int  # accepted until its last sequence was put into a batch, less what earlier ones took
    compute_ns: int  # the windows of its batches
    output_ns: int  # the rest of its way through the engine
    total_ns: int  # received until the answer was ready, a wait for settled energy included


@dataclass(frozen=True, slots=True)
class FailedRequest:
    unix_s: float
    variant: str  # empty when the request named none that exists
    code: str
    reason: str
    message: str


@dataclass(slots=True)
class Duration:
    """How many took how long together."""

    count: int = 0
    total_ns: int = 0

    def add(self, total_ns: int, count: int = 1) -> None:
        self.count += count
        self.total_ns += total_ns


@dataclass(slots=True)
class VariantStatistics:
    """What happened since the start to one variant or several, as Triton's statistics count it.

    Unlike the metrics, whole numbers that a client subtracts from one another.
    """

    sequences: int = 0
    fail: Duration = field(default_factory=Duration)
    tokenize: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    output: Duration = field(default_factory=Duration)
    batches: dict[int, Duration] = field(default_factory=lambda: defaultdict(Duration))  # by their size
    settled: int = 0  # requests whose energy became known
    settled_uj: int = 0  # of these
    last_unix_ms: int = 0  # when the last request was answered; 0: none was

    @property
    def stages(self) -> tuple[Duration, ...]:
        return (self.tokenize, self.queue, self.compute, self.output)

    @property
    def success(self) -> Duration:
        """The answered requests, which passed every stage."""
        return Duration(self.output.count, sum(stage.total_ns for stage in self.stages))

    def add(self, other: VariantStatistics) -> None:
        """All but the stages."""
        self.sequences += other.sequences
        self.settled += other.settled
        self.settled_uj += other.settled_uj
        self.last_unix_ms = max(self.last_unix_ms, other.last_unix_ms)
        self.fail.add(other.fail.total_ns, other.fail.count)
        for size, duration in other.batches.items():
            self.batches[size].add(duration.total_ns, duration.count)


class _Answered(NamedTuple):
    """The series in which an answered request of one variant counts.

    Looked up once: finding a series costs as much as counting in it.
    """

    requests: Counter
    duration: Histogram
    stages: tuple[Histogram, ...]
    statistics: VariantStatistics


class MethodCalls:
    """The calls of one method of gRPC. Its series are there from its first call on.

    Named and labelled as go-grpc-prometheus does, whose dashboards then fit.
    """

    __slots__ = ("_duration", "_handled", "_labels", "_observer", "_started")

    def __init__(self, observer: Observer, labels: tuple[str, str, str]) -> None:
        self._observer = observer
        self._labels = labels
        self._started: Counter | None = None
        self._duration: Histogram
        self._handled: dict[str, Counter] = {}

    def start(self) -> int:
        """A call has come: the instant, for `end`."""
        if self._started is None:
            self._started = self._observer.calls_started.of(*self._labels)
            self._duration = self._observer.call_durations.of(*self._labels)
        self._started.add()
        return time.monotonic_ns()

    def refused(self, tenant: str, code: str, reason: str, error: OverloadedError) -> None:
        """One was refused before its message was read, and counts as a request."""
        self._observer.failed("", code, reason, str(error), 0, error.limit)
        self._observer.tenant_asked(tenant, code)

    def end(self, begun_ns: int, code: str) -> None:
        """code: the name of gRPC's status code, in capitals."""
        handled = self._handled.get(code)
        if handled is None:
            handled = self._observer.calls_handled.of(*self._labels, go_name(code))
            self._handled[code] = handled
        handled.add()
        self._duration.observe((time.monotonic_ns() - begun_ns) / 1e9)


def go_name(code: str) -> str:
    """`INVALID_ARGUMENT` as gRPC for Go spells it: `InvalidArgument`."""
    if code == "OK":
        return code
    return "Canceled" if code == "CANCELLED" else code.title().replace("_", "")


class Observer:
    """One per server."""

    def __init__(self, version: str, python: str = platform.python_version()) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        counters, histograms = dict[MetricSpec, Counters](), dict[MetricSpec, Histograms]()
        for metric in table.counted():
            if metric.type is SeriesType.HISTOGRAM:
                histograms[metric] = Histograms(metric, registry)
            else:
                counters[metric] = Counters(metric, registry)
        counters[table.BUILD].of(version, python).add()
        self._requests = counters[table.REQUESTS]
        self._refused = counters[table.REFUSED]
        for limit in REFUSALS:
            self._refused.of(limit)
        self._tenant_requests = counters[table.TENANT_REQUESTS]
        self._tenant_tokens = counters[table.TENANT_TOKENS]
        self._tenant_energy = counters[table.TENANT_ENERGY]
        self._durations = histograms[table.REQUEST_DURATION]
        self._stages = histograms[table.STAGE_DURATION]
        self._batches = histograms[table.BATCH_SEQUENCES]
        self._tokens = counters[table.TOKENS]
        self._padded_tokens = counters[table.PADDED_TOKENS]
        self._energy = histograms[table.REQUEST_ENERGY]
        self._unknown = counters[table.UNKNOWN_RECEIPTS]
        self._not_finite = counters[table.NOT_FINITE]
        self._output_tokens = counters[table.OUTPUT_TOKENS]
        self._first_token = histograms[table.FIRST_TOKEN]
        self._inter_token = histograms[table.INTER_TOKEN]
        self._provisional_error = histograms[table.PROVISIONAL_ERROR]
        self.calls_started = counters[table.CALLS_STARTED]
        self.calls_handled = counters[table.CALLS_HANDLED]
        self.call_durations = histograms[table.CALL_DURATION]
        self._answered: dict[str, _Answered] = {}
        self._statistics: dict[str, VariantStatistics] = defaultdict(VariantStatistics)  # without stages
        self._failures: deque[FailedRequest] = deque(maxlen=KEPT_FAILURES)
        self._boards: Sequence[scrape.BoardGauges] = ()

    def answered(self, variant: str, sequences: int, times: Times, receipt: Receipt | None = None) -> None:
        """A request was."""
        answered = self._answered.get(variant)
        if answered is None:
            stages = tuple(self._stages.of(variant, stage) for stage in STAGES)
            series = self._requests.of(variant, "OK"), self._durations.of(variant), stages
            answered = self._answered[variant] = _Answered(*series, self._statistics[variant])
        answered.requests.add()
        answered.duration.observe(times.total_ns / 1e9, receipt)
        tokenize, queue, compute, output = answered.stages
        tokenize.observe(times.tokenize_ns / 1e9)
        queue.observe(times.queue_ns / 1e9)
        compute.observe(times.compute_ns / 1e9)
        output.observe(times.output_ns / 1e9)
        statistics = answered.statistics
        statistics.sequences += sequences
        statistics.last_unix_ms = time.time_ns() // 1_000_000

    def refused(self, limit: str) -> None:
        """There was no room for a request, or a watcher, because of that limit."""
        self._refused.of(limit).add()

    def failed(
        self, variant: str, code: str, reason: str, message: str, duration_ns: int, limit: str = ""
    ) -> None:
        """A request did. variant: empty when it named none that exists. limit: which one it met, where there
        was no room for it."""
        if limit:
            self.refused(limit)
        self._requests.of(variant or NO_VARIANT, code).add()
        self._failures.append(FailedRequest(time.time(), variant, code, reason, message[:MAX_MESSAGE]))
        if variant:
            self._statistics[variant].fail.add(duration_ns)

    def batch_ran(self, window: Window, has_failed: bool = False, not_finite: int = 0) -> None:
        """not_finite: sequences answered with NaN or infinity."""
        variant, sequences = window.variant, len(window.lengths)
        self._batches.of(variant).observe(sequences)
        self._tokens.of(variant).add(sum(window.lengths))
        self._padded_tokens.of(variant).add(window.computed_tokens)
        if not_finite:
            self._not_finite.of(variant).add(not_finite)
        if not has_failed:
            self._statistics[variant].batches[sequences].add(window.duration_ns)

    def tokens_came(self, variant: str, count: int, waited_ns: int, is_first: bool) -> None:
        """So many tokens of a generation, so long after the last, or after its request was received."""
        self._output_tokens.of(variant).add(count)
        if is_first:
            self._first_token.of(variant).observe(waited_ns / 1e9)
            count, waited_ns = count - 1, 0  # those that its caller is given with the first
        series = self._inter_token.of(variant)
        for _ in range(count):
            series.observe(waited_ns / count / 1e9)

    def declare_tenants(self, tenants: Iterable[str]) -> None:
        """Whose series there are, so that rates see the first request, too."""
        for tenant in tenants:
            self._tenant_requests.of(tenant, "OK")
            self._tenant_tokens.of(tenant)
            self._tenant_energy.of(tenant)

    def tenant_asked(self, tenant: str, code: str) -> None:
        """A prediction has ended. tenant: a declared one; empty: nobody's, which is not counted."""
        if tenant:
            self._tenant_requests.of(tenant, code).add()

    def receipt_final(self, receipt: Receipt) -> None:
        figures = receipt.whole
        energy_uj, provisional_uj = figures.energy_uj, figures.provisional_uj
        if receipt.tenant:
            tokens = sum(line.tokens for line in receipt.ran if not line.is_overhead)
            self._tenant_tokens.of(receipt.tenant).add(tokens)
            self._tenant_energy.of(receipt.tenant).add((energy_uj or 0) / 1e6)
        if energy_uj is None:
            self._unknown.of(receipt.variant).add()
            return
        self._energy.of(receipt.variant).observe(energy_uj / 1e6, receipt)
        statistics = self._statistics[receipt.variant]
        statistics.settled += 1
        statistics.settled_uj += energy_uj
        if provisional_uj is not None and energy_uj > 0:
            error = abs(provisional_uj - energy_uj) / energy_uj
            self._provisional_error.of(receipt.variant).observe(error)

    def method(self, call_type: str, service: str, method: str) -> MethodCalls:
        """call_type: unary, client_stream, server_stream or bidi_stream."""
        return MethodCalls(self, (call_type, service, method))

    def serve_state(
        self, state: Callable[[], ServerState], boards: Sequence[scrape.BoardGauges] = ()
    ) -> None:
        """Once the model is loaded: what every scrape reads."""
        for variant in state().variants:  # series exist from the start, so that rates have a first point
            for code in WATCHED_CODES:
                self._requests.of(variant.name, code)
            for family in (self._tokens, self._padded_tokens, self._unknown, self._not_finite):
                family.of(variant.name)
        self._boards = boards
        self.registry.register(scrape.StateCollector(state))

    def page(self, accept: str) -> tuple[str, bytes]:
        """The scrape, as its Accept header wants it: content type and page. Any thread."""
        return scrape.render(self.registry, self._boards, accept)

    def statistics(self, variants: Iterable[str]) -> VariantStatistics:
        """The sum over these variants. Its stages are sums of the metrics' series."""
        total = VariantStatistics()
        for variant in variants:
            if variant in self._statistics:
                total.add(self._statistics[variant])
            if variant in self._answered:
                for stage, series in zip(total.stages, self._answered[variant].stages, strict=True):
                    stage.add(round(series.total * 1e9), sum(series.counts))
        return total

    @property
    def failures(self) -> list[FailedRequest]:
        """The last requests that failed, newest first."""
        return list(reversed(self._failures))
