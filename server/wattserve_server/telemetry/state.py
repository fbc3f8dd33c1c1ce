"""What is read at every scrape: the queue, the variants, the ledger; the meter's figures beside it.

Knows nothing of requests, transports and models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import MeterStatus
from wattserve_server.telemetry.meter_figures import MeterFigures, counter, gauge


@dataclass(frozen=True, slots=True)
class VariantLabels:
    """What the variant metrics say of one variant."""

    name: str
    device: str
    dtype: str
    kernels: str
    parameter_bytes: int
    warmup_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    ledger: Callable[[], Ledger]
    meter: Callable[[], MeterStatus]
    queued: Callable[[], int]
    model: dict[str, str]
    variants: list[VariantLabels]
    figures: MeterFigures

    def collect(self) -> Iterable[Metric]:
        yield gauge("wattserve_queue_sequences", "Sequences that wait.", self.queued())
        yield InfoMetricFamily("wattserve_model", "The hosted model.", value=self.model)
        yield from self._variants()
        yield from self.figures.collect(self.meter())
        ledger = self.ledger()
        if ledger.since_ns is not None:
            yield from self._energy(ledger)

    def _variants(self) -> Iterable[Metric]:
        info = GaugeMetricFamily(
            "wattserve_variant_info",
            "What a variant really runs.",
            labels=["variant", "device", "dtype", "kernels"],
        )
        size = GaugeMetricFamily(
            "wattserve_variant_parameter_bytes", "Weights and scales of a variant.", labels=["variant"]
        )
        warmup = GaugeMetricFamily(
            "wattserve_variant_warmup_seconds", "Time that warming a variant up took.", labels=["variant"]
        )
        for variant in self.variants:
            info.add_metric([variant.name, variant.device, variant.dtype, variant.kernels], 1)
            size.add_metric([variant.name], variant.parameter_bytes)
            warmup.add_metric([variant.name], variant.warmup_seconds)
        return [info, size, warmup]

    def _energy(self, ledger: Ledger) -> Iterable[Metric]:
        active = CounterMetricFamily(
            "wattserve_energy_active_joules", "Settled active energy, by variant.", labels=["variant"]
        )
        for variant in self.variants:
            totals = ledger.active.get(variant.name)
            active.add_metric([variant.name], totals.active_uj / 1e6 if totals else 0.0)
        yield active
        accounts = CounterMetricFamily(
            "wattserve_energy_account_joules",
            "Settled energy, by account; with the pending energy they sum to what was measured.",
            labels=["account"],
        )
        for account, amount_uj in (
            ("active", sum(totals.active_uj for totals in ledger.active.values())),
            ("warmup", ledger.warmup_uj),
            ("idle", ledger.idle_uj),
            ("unattributed", ledger.unattributed_uj),
            ("gap", ledger.gap_uj),
        ):
            accounts.add_metric([account], amount_uj / 1e6)
        yield accounts
        yield counter("wattserve_energy_measured_joules", "What the meter counted.", ledger.measured_uj / 1e6)
        yield gauge("wattserve_energy_pending_joules", "Metered, not settled yet.", ledger.pending_uj / 1e6)
        yield counter("wattserve_meter_gaps", "Intervals without a usable reading.", ledger.gap_count)
        yield counter("wattserve_meter_gap_seconds", "How long they lasted.", ledger.gap_ns / 1e9)
