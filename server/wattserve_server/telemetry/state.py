"""What is read at every scrape: the queue, the variants, the ledgers; the meters' figures beside them.

Knows nothing of requests, transports and models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import MeterStatus
from wattserve_server.telemetry.meter_figures import MeterFigures, counter, gauge


@dataclass(frozen=True, slots=True)
class VariantLabels:
    """What the variant metrics say of one variant; all but the first three only of one that is ready."""

    name: str
    device: str
    is_ready: bool
    dtype: str = ""
    kernels: str = ""
    proxy: str = ""
    is_verified: bool = False
    parameter_bytes: int = 0
    warmup_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class DeviceState:
    """One device's ledger and meter, as they are when asked."""

    device: str
    ledger: Callable[[], Ledger]
    meter: Callable[[], MeterStatus]
    figures: MeterFigures


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    devices: Sequence[DeviceState]
    queued: Callable[[], int]
    model: dict[str, str]
    variants: Callable[[], Sequence[VariantLabels]]

    def collect(self) -> Iterable[Metric]:
        variants = self.variants()
        yield gauge("wattserve_queue_sequences", "Sequences that wait.", self.queued())
        yield InfoMetricFamily("wattserve_model", "The hosted model.", value=self.model)
        yield from _variants(variants)
        families: dict[str, Metric] = {}
        for state in self.devices:
            own = [variant.name for variant in variants if variant.device == state.device]
            for family in _of_device(state, own):
                for index, sample in enumerate(family.samples):
                    family.samples[index] = sample._replace(labels={"device": state.device, **sample.labels})
                families.setdefault(family.name, family)
                if families[family.name] is not family:
                    families[family.name].samples.extend(family.samples)
        yield from families.values()


def _of_device(state: DeviceState, variants: Sequence[str]) -> Iterable[Metric]:
    yield from state.figures.collect(state.meter())
    ledger = state.ledger()
    if ledger.since_ns is not None:
        yield from _energy(ledger, variants)


def _variants(variants: Sequence[VariantLabels]) -> Iterable[Metric]:
    info = GaugeMetricFamily(
        "wattserve_variant_info",
        "What a variant really runs; proxy and verified say how far its name can be trusted.",
        labels=["variant", "device", "dtype", "kernels", "proxy", "verified"],
    )
    ready = GaugeMetricFamily("wattserve_variant_ready", "1 for a variant in memory.", labels=["variant"])
    size = GaugeMetricFamily(
        "wattserve_variant_parameter_bytes", "Weights and scales of a variant.", labels=["variant"]
    )
    warmup = GaugeMetricFamily(
        "wattserve_variant_warmup_seconds", "Time that warming a variant up took.", labels=["variant"]
    )
    for variant in variants:
        ready.add_metric([variant.name], float(variant.is_ready))
        if variant.is_ready:
            trust = [variant.proxy, "true" if variant.is_verified else "false"]
            info.add_metric([variant.name, variant.device, variant.dtype, variant.kernels, *trust], 1)
            size.add_metric([variant.name], variant.parameter_bytes)
            warmup.add_metric([variant.name], variant.warmup_seconds)
    return [info, ready, size, warmup]


def _energy(ledger: Ledger, variants: Sequence[str]) -> Iterable[Metric]:
    active = CounterMetricFamily(
        "wattserve_energy_active_joules", "Settled active energy, by variant.", labels=["variant"]
    )
    for variant in variants:
        totals = ledger.active.get(variant)
        active.add_metric([variant], totals.active_uj / 1e6 if totals else 0.0)
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
