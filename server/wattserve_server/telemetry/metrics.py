"""The server's Prometheus metrics: base units, `_total` for counters, bounded labels.

What happens per request is counted here; what the ledger and the meter say is read when scraped (`state`).
Knows nothing of transports and models; names of variants come from the server, never from callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from wattserve_server.energy.receipt import Receipt
from wattserve_server.telemetry.state import DeviceState, StateCollector, VariantLabels
from wattserve_server.telemetry.statistics import Times

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
JOULES = (1e-4, 1e-3, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for every counter

NO_VARIANT = "none"
"""The variant label of a request that named none that exists."""


class Metrics:
    """Counts what happens. One per server; `registry` is what the exposition serves."""

    def __init__(self, build: dict[str, str]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = Counter(
            "wattserve_requests",
            "Requests that ended, by gRPC status code.",
            ["variant", "code"],
            registry=self.registry,
        )
        self._latency = Histogram(
            "wattserve_request_duration_seconds",
            "From receiving a request to having its answer.",
            ["variant"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self._stages = Histogram(
            "wattserve_stage_duration_seconds",
            "Where the time of an answered request went: tokenize, queue, compute.",
            ["variant", "stage"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self._batches = Histogram(
            "wattserve_batch_sequences",
            "Sequences run together in one batch.",
            ["variant"],
            registry=self.registry,
            buckets=SEQUENCES,
        )
        self._tokens = Counter(
            "wattserve_tokens", "Real tokens of the sequences that ran.", ["variant"], registry=self.registry
        )
        self._padded_tokens = Counter(
            "wattserve_padded_tokens",
            "Tokens computed, padding included.",
            ["variant"],
            registry=self.registry,
        )
        self._energy = Histogram(
            "wattserve_request_energy_joules",
            "Settled active energy of a request.",
            ["variant"],
            registry=self.registry,
            buckets=JOULES,
        )
        self._unknown = Counter(
            "wattserve_unknown_receipts",
            "Requests that ran and whose energy is not known.",
            ["variant"],
            registry=self.registry,
        )
        self._not_finite = Counter(
            "wattserve_not_finite_answers",
            "Sequences answered with NaN or infinity, which their callers were told as an error.",
            ["variant"],
            registry=self.registry,
        )
        self._provisional_error = Histogram(
            "wattserve_provisional_error_ratio",
            "Distance of a request's provisional energy from its settled one, relative to the latter.",
            ["variant"],
            registry=self.registry,
            buckets=RATIOS,
        )
        self._by_variant: dict[str, tuple[Histogram, Histogram]] = {}
        Gauge("wattserve_build_info", "Versions.", list(build), registry=self.registry).labels(**build).set(1)

    def request_ended(self, variant: str, code: str) -> None:
        """variant: empty when the request named none that exists."""
        self._requests.labels(variant or NO_VARIANT, code).inc()

    def request_answered(self, variant: str, times: Times) -> None:
        self.request_ended(variant, "OK")
        self._latency.labels(variant).observe(times.total_ns / 1e9)
        self._stages.labels(variant, "tokenize").observe(times.tokenize_ns / 1e9)
        self._stages.labels(variant, "queue").observe(times.queue_ns / 1e9)
        self._stages.labels(variant, "compute").observe(times.compute_ns / 1e9)

    def batch_ran(
        self, variant: str, sequences: int, tokens: int, padded_tokens: int, not_finite: int = 0
    ) -> None:
        """not_finite: of the sequences, those answered with NaN or infinity."""
        self._batches.labels(variant).observe(sequences)
        self._tokens.labels(variant).inc(tokens)
        self._padded_tokens.labels(variant).inc(padded_tokens)
        if not_finite:
            self._not_finite.labels(variant).inc(not_finite)

    def receipt_final(self, receipt: Receipt) -> None:
        energy_uj, provisional_uj = receipt.energy_uj, receipt.provisional_uj
        if energy_uj is None:
            self._unknown.labels(receipt.variant).inc()
            return
        energy, error = self._of_variant(receipt.variant)
        energy.observe(energy_uj / 1e6)
        if provisional_uj is not None and energy_uj > 0:
            error.observe(abs(provisional_uj - energy_uj) / energy_uj)

    def _of_variant(self, variant: str) -> tuple[Histogram, Histogram]:
        """Looked up once: finding a label's series costs as much as counting in it."""
        found = self._by_variant.get(variant)
        if found is None:
            found = (self._energy.labels(variant), self._provisional_error.labels(variant))
            self._by_variant[variant] = found
        return found

    def serve_state(
        self,
        devices: Sequence[DeviceState],
        queued: Callable[[], int],
        model: dict[str, str],
        variants: Callable[[], Sequence[VariantLabels]],
    ) -> None:
        """Once the model is loaded: what is read at every scrape."""
        for variant in variants():  # series exist from the start, so that rates have a first point
            self._requests.labels(variant.name, "OK")
            self._tokens.labels(variant.name)
            self._padded_tokens.labels(variant.name)
            self._unknown.labels(variant.name)
            self._not_finite.labels(variant.name)
        self.registry.register(StateCollector(devices, queued, model, variants))
