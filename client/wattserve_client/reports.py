"""What the server says of itself: what it serves, its meter, its limits, and its ledger.

Plain immutable values, with energies as in `results`. Knows nothing of grpc or protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from wattserve_client.results import EnergySource, joules_of


class VariantState(StrEnum):
    """Whether a variant can answer."""

    UNSPECIFIED = "unspecified"  # the server did not say, or in a word newer than this client
    READY = "ready"
    UNLOADED = "unloaded"  # not in memory; `load_variant` loads it, on a lazy server a request too
    LOADING = "loading"  # its requests wait
    CALIBRATING = "calibrating"  # loaded; the meter learns what it costs, and its requests wait
    FAILED = "failed"  # could not be made: see state_reason; loading may be tried again


@dataclass(frozen=True, slots=True)
class Variant:
    """One precision of the hosted model."""

    name: str
    device: str
    dtype: str  # of the activations between layers
    native: bool
    kernels: str  # what does the matrix work
    detail: str  # e.g. layers kept in higher precision
    parameter_bytes: int
    warmup_seconds: float
    warmup_shapes: int
    state: VariantState = VariantState.UNSPECIFIED
    state_reason: str = ""  # why it failed, or which of its devices has
    proxy: str = ""  # empty, or: it only stands in for a precision; what really runs
    verified: bool = False  # the profiler saw its linear layers multiply at its declared precision
    verification: str = ""  # what the profiler saw, or why it was not asked
    operands: str = ""  # the precision in which its linear layers multiply, e.g. "int8"
    weights: str = ""  # how their weights are stored
    kept_layers: tuple[str, ...] = ()  # linear layers left in a higher precision
    shared_bytes: int = 0  # of parameter_bytes, those that other loaded variants use as well
    tuning: str = ""  # how it was made fast on its device; empty: it runs as it was built
    packs_tokens: bool = False  # several sequences share a row, so hardly any padding is computed
    threads: int = 0  # that compute a batch, on a CPU; 0: does not apply
    other_devices: tuple[str, ...] = ()  # that run it too, each with a copy of its own


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, one batch and the queue may hold, and how long receipts are kept."""

    max_sequence_tokens: int
    max_batch_sequences: int
    max_batch_tokens: int
    max_queue_sequences: int
    max_request_sequences: int
    vocabulary_size: int
    receipt_retention_seconds: int
    receipt_retention_count: int
    settlement_limit_seconds: int


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """A counter against the same board's power, integrated over the same time."""

    window_seconds: float
    counter_joules: float
    power_joules: float


@dataclass(frozen=True, slots=True)
class SensorProbe:
    """What polling the sensor showed, before the first request. What was not found is None."""

    duration_seconds: float
    reads: int
    stepped: bool  # the value stands still between updates
    update_period_seconds: float | None  # median time between updates
    edge_jitter_seconds: float | None  # deviation of that time
    read_cost_p50_seconds: float | None
    read_cost_p99_seconds: float | None
    resolution_uj: int | None  # the smallest step that explains all changes seen
    watts: float | None  # drawn during the probe
    cross_checks: tuple[CrossCheck, ...]
    unsupported: Mapping[str, str]  # what the sensor does not offer, and why


@dataclass(frozen=True, slots=True)
class Meter:
    """The meter, now and as its probe found it at start-up. What is not known is None."""

    source: EnergySource
    poll_period_seconds: float
    update_period_seconds: float | None  # how often the value changed
    read_cost_seconds: float | None
    idle_watts: float | None  # now
    idle_origin: str  # "measured", "configured" or "unknown"
    boundary: str  # which hardware the figure covers
    probe: SensorProbe | None = None
    lag_seconds: float | None = None  # from drawing to being counted, as estimated from the figures
    ramp_seconds: float | None = None  # time constant of the device's rise and decay, likewise
    neighbours: int | None = None  # other processes on the metered device, now
    parts: tuple[Meter, ...] = ()  # of a composite meter
    device: str = ""  # whose energy it meters, as variants name it
    average_seconds: float | None = None  # over which the sensor counts the mean of the power, likewise
    unresolved: str = ""  # why lag, ramp and average do not explain the counter; empty: they do
    shared_by: tuple[str, ...] = ()  # the devices whose requests it charges, where they are several


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What is served, by what, under which limits."""

    server_version: str
    model_name: str
    model_source: str
    task: str
    labels: tuple[str, ...]  # empty for a model without labels
    accepts_text: bool
    random_weights: bool  # accuracy means nothing for this model
    default_variant: str
    variants: tuple[Variant, ...]
    meter: Meter
    limits: Limits
    versions: Mapping[str, str]  # python, torch, transformers, ...
    hardware: str
    instance_id: str  # of this run: new at every start of the server; receipt ids begin with it
    model_parameters: int
    other_meters: tuple[Meter, ...] = ()  # of a server whose variants run on several devices: one for each
    pixel_shape: tuple[int, ...] = ()  # channels, height, width, for a model that takes images
    model_memory_limit_bytes: int = 0  # for the weights of all loaded variants of a device; 0: no limit
    weights_digest: str = ""  # the same for the same weights; empty for random ones


@dataclass(frozen=True, slots=True)
class VariantEnergy:
    """What the settled sequences of one variant cost together."""

    variant: str
    active_uj: int | None  # None when the report has no figure at all
    sequences: int
    tokens: int
    padded_tokens: int

    active_joules = joules_of("active_uj")


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which the meter told nothing."""

    start_unix_ns: int
    end_unix_ns: int | None  # None: still open
    reason: str


@dataclass(frozen=True, slots=True)
class EnergyReport:
    """One meter's ledger: where every microjoule of it stands.

    When known, measured_uj = sum of active + warmup_uj + idle_uj + unattributed_uj + gap_uj + pending_uj,
    exactly. A server whose variants run on several devices keeps a ledger for each, and one for the host
    that they share: every joule is in one of them.
    """

    source: EnergySource
    since_unix_ns: int  # the first reading: the same in every report of a run
    until_unix_ns: int  # the last reading in the ledger
    measured_uj: int | None  # what the meter counted
    active: tuple[VariantEnergy, ...]
    warmup_uj: int | None  # before the server was ready
    idle_uj: int | None
    idle_shared_uj: int | None  # the part of idle_uj shown as idle_share_uj on receipts
    unattributed_uj: int | None  # above idle, with no batch to explain it
    pending_uj: int | None  # metered, its windows not settled yet
    gap_count: int
    gap_seconds: float  # of those that have ended
    recent_gaps: tuple[Gap, ...]
    unknown_sequences: int  # sequences that ran and whose energy is not known
    pending_receipts: int
    idle_watts: float | None  # now
    unknown_reason: str  # set when there is no figure at all
    gap_uj: int | None = None  # what the meter counted over gaps, once they ended: nobody's
    device: str = ""  # as variants name it
    other_devices: tuple[EnergyReport, ...] = ()
    now_unix_ns: int = 0  # when the server wrote this; 0 from an older one
    instance_id: str = ""  # of the run whose ledger it is: another one began again at 0; "" from an older one
    parts: tuple[EnergyReport, ...] = ()  # the ledgers whose sum it is, one for each counter
    part: str = ""  # of the machine, in a ledger of one counter: "accelerator" or "host"

    measured_joules = joules_of("measured_uj")

    @property
    def active_uj(self) -> int | None:
        """Over all variants; None when the report has no figure at all."""
        if self.measured_uj is None:
            return None
        return sum(variant.active_uj for variant in self.active if variant.active_uj is not None)

    active_joules = joules_of("active_uj")
    warmup_joules = joules_of("warmup_uj")
    idle_joules = joules_of("idle_uj")
    idle_shared_joules = joules_of("idle_shared_uj")
    unattributed_joules = joules_of("unattributed_uj")
    gap_joules = joules_of("gap_uj")
    pending_joules = joules_of("pending_uj")
