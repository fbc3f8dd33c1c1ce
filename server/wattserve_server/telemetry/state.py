"""What a scrape reads of a server that has its model, as plain values.

Knows nothing of requests, transports and models.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattserve_server.energy.ledger import Ledger, VariantTotals
from wattserve_server.energy.probe import MeterPart, SensorProbe
from wattserve_server.energy.reading import Energy, MeterStatus, Quality


@dataclass(frozen=True, slots=True)
class ServedVariant:
    """One of the server's variants. Only one that is in memory has what follows `is_ready`."""

    name: str
    device: str
    is_ready: bool
    dtype: str = ""
    kernels: str = ""
    proxy: str = ""
    is_verified: bool = False
    parameter_bytes: int | None = None
    warmup_s: float | None = None
    cache_used_bytes: int | None = None  # of keys and values; None: it does not generate, or has not yet
    cache_limit_bytes: int | None = None
    other_devices: Sequence[str] = ()  # that run it too

    @property
    def devices(self) -> Sequence[str]:
        return (self.device, *self.other_devices)

    def labels(self) -> Mapping[tuple[str, ...], int]:
        """What it really runs, as the values of labels."""
        trust = (self.proxy, "true" if self.is_verified else "false")
        ran_by = self.devices if self.is_ready else ()
        return {(device, self.dtype, self.kernels, *trust): 1 for device in ran_by}


@dataclass(frozen=True, slots=True)
class LaneState:
    """A device as it runs batches."""

    device: str
    busy_ns: int  # for how long it has
    is_up: bool = True  # it takes more; one of several may have failed


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device's ledger and meter."""

    device: str
    ledger: Ledger
    meter: MeterStatus
    probe: SensorProbe | None = None  # what start-up found
    parts: Sequence[MeterPart] = ()  # of a sum of meters
    raw_energy: Energy | None = None  # what the sensor itself counted, where its figures are corrected
    is_shared: bool = False  # it holds a counter on which other devices draw too
    receipts_residual_uj: int = 0  # the active account, less what receipts were charged
    unix_offset_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

    @property
    def is_counted(self) -> bool:
        """Whether the ledger holds an interval between two readings."""
        return self.ledger.since_ns is not None and self.ledger.until_ns is not None

    @property
    def has_meter(self) -> bool:
        return self.meter.source.quality is not Quality.NONE

    def unix_s(self, monotonic_ns: int | None) -> float | None:
        return None if monotonic_ns is None else (monotonic_ns + self.unix_offset_ns) / 1e9

    def source_labels(self) -> Mapping[tuple[str, ...], int]:
        source = self.meter.source
        return {(source.name, source.method, source.quality.value): 1}

    def holds(self, variant: ServedVariant) -> bool:
        """Whether a variant's joules are in this ledger."""
        return self.device in variant.devices or (self.is_shared and variant.name in self.ledger.active)

    def totals_of(self, variant: ServedVariant) -> VariantTotals:
        """Its sequences and tokens are told with its own device only, so that sums over devices are right."""
        totals = self.ledger.active.get(variant.name, VariantTotals())
        return totals if self.device in variant.devices else VariantTotals(totals.active_uj)

    def by_account(self) -> Mapping[tuple[str, ...], float]:
        """Joules by account, without the pending ones."""
        ledger = self.ledger
        return {
            ("active",): ledger.active_uj / 1e6,
            ("warmup",): ledger.warmup_uj / 1e6,
            ("idle",): ledger.idle_uj / 1e6,
            ("unattributed",): ledger.unattributed_uj / 1e6,
            ("gap",): ledger.gap_uj / 1e6,
        }

    def by_part(self) -> Mapping[tuple[str, ...], float]:
        """Joules by part of a sum of meters, and its quality."""
        return {(part.source.name, part.source.quality.value): part.energy.uj / 1e6 for part in self.parts}

    def idle_by_part(self) -> Mapping[tuple[str, ...], float | None]:
        """Watts, likewise."""
        return {(part.source.name, part.source.quality.value): part.idle_watts for part in self.parts}


@dataclass(frozen=True, slots=True)
class AccountBookState:
    """What the writer of an account book says of it. Receipts are counted since the server's start."""

    is_writing: bool  # the last transaction succeeded
    written: int  # receipts
    waiting: int  # receipts that are not written yet
    left_out: int  # receipts that are in sums alone
    removed: int  # receipts that were too old, or too many
    kept_bytes: int  # of receipts in the book, about
    written_unix_ns: int  # until when all is in it


@dataclass(frozen=True, slots=True)
class TenantBudget:
    """One of a tenant's budgets, and what is used of it in the period of now."""

    tenant: str
    kind: str
    period: str
    limit_uj: int
    spent_uj: int

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tenant, self.kind, self.period


@dataclass(frozen=True, slots=True)
class ServerState:
    queued: int  # sequences that wait, for all devices together
    queue_limit: int  # of these
    pending_receipts: int
    model: tuple[str, str, str]  # its name, source and task
    variants: Sequence[ServedVariant]
    devices: Sequence[DeviceState]
    queue_wait_s: float = 0.0  # for all that waits
    queue_callers: int = 0  # who have something waiting
    tokenizer_characters: int | None = None  # that wait for it; None: there is none
    abandoned: int = 0  # sequences computed for callers who had left
    receipt_bytes: int = 0  # of final receipts that are kept
    watchers: int = 0  # of all receipts
    lines_left_out: int = 0  # of the log
    in_flight: Mapping[str, int] = field(default_factory=dict)  # predictions, by tenant
    preemptions: int | None = None  # of generations; None: there are none to preempt
    account_book: AccountBookState | None = None
    is_audited: bool | None = None  # what accountants are told is recorded; None: nobody asked for it
    audit_bytes: int | None = None  # of the file
    budgets: Sequence[TenantBudget] = ()
    lanes: Sequence[LaneState] = ()
    message_bytes: int = 0  # long ones', of calls in progress, and of replies that are not read


@dataclass(frozen=True, slots=True)
class BoardFigures:
    """What a GPU's board says of itself now; None: it does not say."""

    utilization: float | None = None
    power_watts: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    # The rest only where DCGM's names are asked for.
    index: int | None = None  # among the boards of this machine
    name: str = ""  # of its model
    energy_mj: int | None = None  # that it counted since its driver was loaded
