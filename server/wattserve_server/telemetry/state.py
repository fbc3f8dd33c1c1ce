"""What is read at every scrape: the queue, the variants, the ledgers; the meters' figures beside them.

Knows nothing of requests, transports and models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import MeterStatus
from wattserve_server.telemetry import declared_state as declared
from wattserve_server.telemetry.board import BoardGauges
from wattserve_server.telemetry.meter_figures import MeterFigures
from wattserve_server.telemetry.series import Read


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
    """One device's ledger and meter, as they are when asked. busy_ns: for how long it has run batches.
    boards: of a GPU metered by NVML."""

    device: str
    ledger: Callable[[], Ledger]
    meter: Callable[[], MeterStatus]
    figures: MeterFigures
    busy_ns: Callable[[], int]
    boards: Sequence[BoardGauges] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ServerState:
    """A server that has its model. queue_limit: of sequences that wait, all devices together. model: the
    labels of wattserve_model_info."""

    devices: Sequence[DeviceState]
    queued: Callable[[], int]
    queue_limit: int
    pending_receipts: Callable[[], int]
    model: dict[str, str]
    variants: Callable[[], Sequence[VariantLabels]]


@dataclass(frozen=True, slots=True, eq=False)
class StateCollector(Collector):
    state: ServerState

    def collect(self) -> Iterable[Metric]:
        state, read = self.state, Read()
        variants = state.variants()
        read.add(declared.QUEUE, state.queued())
        read.add(declared.QUEUE_LIMIT, state.queue_limit)
        read.add(declared.PENDING_RECEIPTS, state.pending_receipts())
        for device in state.devices:
            read.add(declared.DEVICE_BUSY, device.busy_ns() / 1e9, device.device)
        read.add_labelled(declared.MODEL, 1, state.model)
        _add_variants(read, variants)
        offset_ns = time.time_ns() - time.monotonic_ns()
        for device in state.devices:
            device.figures.add(read, device.device, device.meter(), offset_ns)
        for device in state.devices:
            names = [variant.name for variant in variants if variant.device == device.device]
            ledger = device.ledger()
            if ledger.since_ns is not None and ledger.until_ns is not None:
                _add_energy(read, device.device, ledger, names)
                read.add(declared.LAST_CHANGE, (ledger.until_ns + offset_ns) / 1e9, device.device)
        return read.families()


def _add_variants(read: Read, variants: Sequence[VariantLabels]) -> None:
    for variant in variants:
        read.add(declared.VARIANT_READY, variant.is_ready, variant.name)
        if variant.is_ready:
            trust = (variant.proxy, "true" if variant.is_verified else "false")
            labels = (variant.name, variant.device, variant.dtype, variant.kernels, *trust)
            read.add(declared.VARIANT, 1, *labels)
            read.add(declared.VARIANT_BYTES, variant.parameter_bytes, variant.name)
            read.add(declared.VARIANT_WARMUP, variant.warmup_seconds, variant.name)


def _add_energy(read: Read, device: str, ledger: Ledger, variants: Sequence[str]) -> None:
    for variant in variants:
        totals = ledger.active.get(variant)
        read.add(declared.ACTIVE_ENERGY, totals.active_uj / 1e6 if totals else 0, device, variant)
        read.add(declared.SETTLED_SEQUENCES, totals.sequences if totals else 0, device, variant)
        read.add(declared.SETTLED_TOKENS, totals.tokens if totals else 0, device, variant)
    for account, amount_uj in (
        ("active", sum(totals.active_uj for totals in ledger.active.values())),
        ("warmup", ledger.warmup_uj),
        ("idle", ledger.idle_uj),
        ("unattributed", ledger.unattributed_uj),
        ("gap", ledger.gap_uj),
    ):
        read.add(declared.ACCOUNTS, amount_uj / 1e6, device, account)
    read.add(declared.IDLE_SHOWN, ledger.idle_shared_uj / 1e6, device)
    read.add(declared.MEASURED, ledger.measured_uj / 1e6, device)
    read.add(declared.PENDING, ledger.pending_uj / 1e6, device)
    read.add(declared.METER_GAPS, ledger.gap_count, device)
    read.add(declared.METER_GAP_SECONDS, ledger.gap_ns / 1e9, device)
