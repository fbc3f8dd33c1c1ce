"""The server's Prometheus metrics: base units, `_total` for counters, bounded labels.

What happens per request is counted here; what the ledger and the meter say is read when scraped (`state`).
All of them are declared in `declared_events` and `declared_state`. Knows nothing of transports and models;
names of variants come from the server, never from callers. Written to on the event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from wattserve_server.energy.receipt import Receipt
from wattserve_server.telemetry import declared_events as declared
from wattserve_server.telemetry import scrape
from wattserve_server.telemetry.board import BoardGauges
from wattserve_server.telemetry.calls import Calls
from wattserve_server.telemetry.series import Counters, Histograms, Read
from wattserve_server.telemetry.state import ServerState, StateCollector
from wattserve_server.telemetry.statistics import Times

NO_VARIANT = "none"
"""The variant label of a request that named none that exists."""


WATCHED_CODES = ("OK", "INTERNAL", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE")
"""Codes whose series are there from the start, so that the first one is seen by a rate, too."""


class Metrics:
    """Counts what happens. One per server. calls: for who serves gRPC's methods."""

    def __init__(self, build: dict[str, str]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counters(declared.REQUESTS, registry)
        self._latency = Histograms(declared.REQUEST_DURATION, registry)
        self._stages = Histograms(declared.STAGE_DURATION, registry)
        self._batches = Histograms(declared.BATCH_SEQUENCES, registry)
        self._tokens = Counters(declared.TOKENS, registry)
        self._padded_tokens = Counters(declared.PADDED_TOKENS, registry)
        self._energy = Histograms(declared.REQUEST_ENERGY, registry)
        self._unknown = Counters(declared.UNKNOWN_RECEIPTS, registry)
        self._not_finite = Counters(declared.NOT_FINITE, registry)
        self._provisional_error = Histograms(declared.PROVISIONAL_ERROR, registry)
        self.calls = Calls(registry)
        registry.register(_Build(build))
        self._boards: Sequence[BoardGauges] = ()
        self._answered_by: dict[str, _Answered] = {}

    def page(self, accept: str) -> tuple[str, bytes]:
        """The scrape, as its Accept header wants it: content type and page. Any thread."""
        return scrape.render(self.registry, self._boards, accept)

    def request_ended(self, variant: str, code: str) -> None:
        """variant: empty when the request named none that exists."""
        self._requests.of(variant or NO_VARIANT, code).add()

    def request_answered(self, variant: str, times: Times, receipt: Receipt | None = None) -> None:
        answered = self._answered_by.get(variant)
        if answered is None:
            answered = self._answered_by[variant] = _Answered(
                variant, self._requests, self._latency, self._stages
            )
        answered.count(times, receipt)

    def batch_ran(
        self, variant: str, sequences: int, tokens: int, padded_tokens: int, not_finite: int = 0
    ) -> None:
        """not_finite: of the sequences, those answered with NaN or infinity."""
        self._batches.of(variant).observe(sequences)
        self._tokens.of(variant).add(tokens)
        self._padded_tokens.of(variant).add(padded_tokens)
        if not_finite:
            self._not_finite.of(variant).add(not_finite)

    def receipt_final(self, receipt: Receipt) -> None:
        energy_uj, provisional_uj = receipt.energy_uj, receipt.provisional_uj
        if energy_uj is None:
            self._unknown.of(receipt.variant).add()
            return
        self._energy.of(receipt.variant).observe(energy_uj / 1e6, receipt)
        if provisional_uj is not None and energy_uj > 0:
            error = abs(provisional_uj - energy_uj) / energy_uj
            self._provisional_error.of(receipt.variant).observe(error)

    def serve_state(self, state: ServerState) -> None:
        """Once the model is loaded: what is read at every scrape."""
        for variant in state.variants():  # series exist from the start, so that rates have a first point
            for code in WATCHED_CODES:
                self._requests.of(variant.name, code)
            for family in (self._tokens, self._padded_tokens, self._unknown, self._not_finite):
                family.of(variant.name)
        self._boards = [board for device in state.devices for board in device.boards]
        self.registry.register(StateCollector(state))


class _Answered:
    """What an answered request of one variant counts in. Looked up once: finding a series costs as much as
    counting in it."""

    __slots__ = ("_compute", "_latency", "_output", "_queue", "_requests", "_tokenize")

    def __init__(self, variant: str, requests: Counters, latency: Histograms, stages: Histograms) -> None:
        self._requests = requests.of(variant, "OK")
        self._latency = latency.of(variant)
        self._tokenize, self._queue, self._compute, self._output = (
            stages.of(variant, stage) for stage in declared.STAGES
        )

    def count(self, times: Times, receipt: Receipt | None) -> None:
        self._requests.add()
        self._latency.observe(times.total_ns / 1e9, receipt)
        self._tokenize.observe(times.tokenize_ns / 1e9)
        self._queue.observe(times.queue_ns / 1e9)
        self._compute.observe(times.compute_ns / 1e9)
        self._output.observe(times.output_ns / 1e9)


class _Build(Collector):
    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels

    def collect(self) -> Sequence[Metric]:
        read = Read()
        read.add_labelled(declared.BUILD, 1, self._labels)
        return list(read.families())
