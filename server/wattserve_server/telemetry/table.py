"""The metrics, each declared once: its name, type, labels, unit and meaning, and how a scrape reads it.

A row added here is on /metrics and in docs/metrics.md, and the dashboards can use it. The `Observer` counts
those that are not read, as they happen. Names, types, units and labels do not change within a major version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from prometheus_client.metrics_core import Metric

from wattserve_server.energy.ledger import VariantTotals
from wattserve_server.energy.probe import SensorProbe
from wattserve_server.telemetry.state import (
    AccountBookState,
    BoardFigures,
    DeviceState,
    LaneState,
    ServedVariant,
    ServerState,
)

T = TypeVar("T")

Labels = tuple[str, ...]
Value = float | None  # None where it is not known, which leaves no series
Values = Value | Mapping[Labels, Value]  # of one series, or of several by their further labels

# Units that stand in the names of their metrics. Whatever else is counted is what the name says.
BASE_UNITS = ("seconds", "joules", "watts", "bytes", "ratio")


class SeriesType(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


# What OpenMetrics adds to the name of a family to make that of its series.
SUFFIXES = {SeriesType.COUNTER: "_total", SeriesType.INFO: "_info"}


@dataclass(frozen=True, slots=True, eq=False)
class MetricSpec:
    """One metric, as it is scraped and as docs/metrics.md shows it. As text it is its name."""

    name: str  # of its series, as a query writes it, without a histogram's `_bucket`, `_sum` and `_count`
    type: SeriesType
    unit: str  # of its values
    meaning: str
    labels: Labels = ()
    absent: str = ""  # when it has no series
    buckets: tuple[float, ...] = ()  # upper bounds, without the last one, which is infinity
    has_exemplars: bool = False

    def __post_init__(self) -> None:
        if not (self.is_dcgm or self.name.endswith(SUFFIXES.get(self.type, ""))):
            raise ValueError(f"{self.name}: a {self.type.value} ends with {SUFFIXES[self.type]}")
        is_histogram = self.type is SeriesType.HISTOGRAM
        if bool(self.buckets) != is_histogram or list(self.buckets) != sorted(self.buckets):
            raise ValueError(f"{self.name}: histograms, and they alone, have buckets, the smallest first")

    def __str__(self) -> str:
        return self.name

    @property
    def is_dcgm(self) -> bool:
        """Whether it is named as NVIDIA's DCGM names it, whose counters have no `_total`."""
        return self.name.startswith("DCGM_")

    @property
    def family(self) -> str:
        """The name of its family, in OpenMetrics' sense."""
        return self.name.removesuffix(SUFFIXES.get(self.type, ""))

    def new_family(self) -> Metric:
        """As prometheus_client prints it; still without samples."""
        unit = self.unit if self.family.endswith(f"_{self.unit}") else ""
        return Metric(self.family, self.meaning, self.type.value, unit)


@dataclass(slots=True, eq=False)
class Section(Generic[T]):
    """A heading of docs/metrics.md with its metrics. Each is read of a `T`, or counted."""

    heading: str
    labels: Labels = ()  # that all of them have, before their own
    absent: str = ""  # when they have no series, unless they say otherwise
    subjects: Callable[[ServerState], Iterable[tuple[Labels, T]]] = lambda state: ()  # and their labels
    rows: dict[MetricSpec, Callable[[T], Values] | None] = field(default_factory=dict)

    def samples(self, state: ServerState) -> Iterable[tuple[MetricSpec, Value, Labels]]:
        for labels, subject in self.subjects(state):
            for metric, read in self.rows.items():
                values = read(subject) if read is not None else {}
                if not isinstance(values, Mapping):
                    values = {(): values}
                yield from ((metric, value, (*labels, *own)) for own, value in values.items())

    def add(
        self, type_: SeriesType, name: str, read: Callable[[T], Values] | None, meaning: str, *,
        labels: Labels = (), unit: str = "", absent: str = "",
        buckets: tuple[float, ...] = (), has_exemplars: bool = False,
    ) -> MetricSpec:  # fmt: skip
        """A row of the table. labels: its own. unit: by default the last word of the name."""
        last_word = name.removesuffix(SUFFIXES.get(type_, "")).rpartition("_")[2]
        unit = unit or ("always 1" if type_ is SeriesType.INFO else last_word)
        labels, absent = (*self.labels, *labels), absent or self.absent
        metric = MetricSpec(name, type_, unit, meaning, labels, absent, buckets, has_exemplars)
        self.rows[metric] = read
        return metric


COUNTER, GAUGE, HISTOGRAM, INFO = SeriesType
COUNTED = None  # as it happens, rather than read at a scrape

# A request for one short text takes 0.3 ms of a GPU and some milliseconds of a CPU, its parts a tenth of
# that, and a queue can make it wait for seconds: finest around 1 ms, where half a millisecond is half of it.
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
# Calls are requests, and streams, which last for as long as their callers like.
CALL_SECONDS = (*SECONDS, 30.0, 60.0, 300.0)
# 500 W for 3 ms, shared by a batch of 128, are 12 mJ; 10 W for 0.5 ms, shared by 16, are 0.3 mJ; a request
# for 256 long texts takes a CPU 10 s of 10 W. Steps of 2 to 2.5 over all of these. There is no histogram of
# joules per token: the mean, which is what a bill is made of, comes exactly from two counters, and how it
# spreads is in what spreads it, the lengths and the batches.
JOULES = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Below 1 % nobody would act on it; above 1 the provisional figure was worth nothing, and how little still
# tells a law that was not learned from one that is merely coarse.
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

# fmt: off

_requests = Section[None]("Requests", ("variant",), "until the first of this variant")
REQUESTS = _requests.add(COUNTER, "wattserve_requests_total", COUNTED,
    "Requests that ended, by gRPC status code. Each request of a stream counts. The variant is `none` where "
    "the request named none that exists.", labels=("code",), absent="a code other than OK: until the first")
REQUEST_DURATION = _requests.add(HISTOGRAM, "wattserve_request_duration_seconds", COUNTED,
    "Time from receiving a request to having its answer; only answered requests.",
    buckets=SECONDS, has_exemplars=True)
STAGE_DURATION = _requests.add(HISTOGRAM, "wattserve_stage_duration_seconds", COUNTED,
    "Where the time of an answered request went: tokenize, queue, compute, output (the rest of its way "
    "through the engine). The stages sum to its duration, except for reading it and for a wait "
    "for settled energy.", labels=("stage",), buckets=SECONDS)
REQUEST_ENERGY = _requests.add(HISTOGRAM, "wattserve_request_energy_joules", COUNTED,
    "Settled active energy of a request, however it ended; observed when its receipt is settled.",
    absent="until the first of this variant; for ever where the energy is not known",
    buckets=JOULES, has_exemplars=True)
PROVISIONAL_ERROR = _requests.add(HISTOGRAM, "wattserve_provisional_error_ratio", COUNTED,
    "Distance of a request's provisional energy from its settled energy, relative to the settled one.",
    absent="until the first of this variant that had both figures", buckets=RATIOS)
UNKNOWN_RECEIPTS = _requests.add(COUNTER, "wattserve_unknown_receipts_total", COUNTED,
    "Requests that ran and whose energy is not known.", absent="never")

_refusals = Section[None]("Refusals", ("limit",), "never")
REFUSED = _refusals.add(COUNTER, "wattserve_refused_requests_total", COUNTED,
    "Requests for which there was no room, by the limit that they met: `sequences` and `time` of the queue, "
    "their own `deadline`, the queue of the `tokenizer`, how many `watchers` there may be, what "
    "their tenant may use: `tenant_rate`, `tenant_in_flight`, `tenant_budget`, what a caller without a key "
    "may: `peer_in_flight`; the `message_bytes` that are held; and `metrics_connections`, which were closed.")

_tenants = Section[None]("Tenants", ("tenant",), "without --keys-file")
TENANT_REQUESTS = _tenants.add(COUNTER, "wattserve_tenant_requests_total", COUNTED,
    "Predictions that a tenant asked for, as they ended, by gRPC status code.", labels=("code",),
    absent="without --keys-file; a code other than OK: until the first")
TENANT_TOKENS = _tenants.add(COUNTER, "wattserve_tenant_tokens_total", COUNTED,
    "Real tokens that a tenant's requests computed, counted when their receipts are final. The last token of "
    "a generation is told and not computed: its usage has one more.")
TENANT_ENERGY = _tenants.add(COUNTER, "wattserve_tenant_energy_joules_total", COUNTED,
    "Settled active energy of a tenant's requests, however they ended. What is not known is not in it.")

_batches = Section[None]("Batches", ("variant",), "never")
BATCH_SEQUENCES = _batches.add(HISTOGRAM, "wattserve_batch_sequences", COUNTED,
    "Sequences that ran together in one batch.", absent="until the first of this variant", buckets=SEQUENCES)
TOKENS = _batches.add(COUNTER, "wattserve_tokens_total", COUNTED,
    "Real tokens (of images: sequence positions) in batches that ran, whether or not their energy is known. "
    "For joules per token use wattserve_settled_tokens_total.")
PADDED_TOKENS = _batches.add(COUNTER, "wattserve_padded_tokens_total", COUNTED,
    "Tokens that these batches computed, padding included.")
NOT_FINITE = _batches.add(COUNTER, "wattserve_not_finite_answers_total", COUNTED,
    "Sequences whose answer was NaN or infinity. Their callers got an error.", unit="sequences")

_generations = Section[None]("Generations", ("variant",), "until the first of this variant")
OUTPUT_TOKENS = _generations.add(COUNTER, "wattserve_output_tokens_total", COUNTED,
    "Tokens that were generated and given to callers.")
FIRST_TOKEN = _generations.add(HISTOGRAM, "wattserve_time_to_first_token_seconds", COUNTED,
    "Time from receiving a request to having the first token of its answer.", buckets=SECONDS)
INTER_TOKEN = _generations.add(HISTOGRAM, "wattserve_inter_token_seconds", COUNTED,
    "Time from a token to the next, as a caller is given them: of one who reads slowly, who gets several at "
    "once, their mean; with the first, 0.", buckets=SECONDS)

_methods = Section[None](
    "gRPC methods", ("grpc_type", "grpc_service", "grpc_method"), "until the first call of this method")
CALLS_STARTED = _methods.add(COUNTER, "grpc_server_started_total", COUNTED,
    "Calls that reached a method of this server. Started less handled calls are in progress.", unit="calls")
CALLS_HANDLED = _methods.add(COUNTER, "grpc_server_handled_total", COUNTED,
    "Calls that ended, by their code in the spelling of gRPC for Go (`OK`, `InvalidArgument`, `Canceled`). A "
    "whole stream is one call.", labels=("grpc_code",), unit="calls",
    absent="until the first call of this method that ended so")
CALL_DURATION = _methods.add(HISTOGRAM, "grpc_server_handling_seconds", COUNTED,
    "How long these calls were in their handlers; of a stream: how long it lasted.", buckets=CALL_SECONDS)

_build = Section[None]("Build")
BUILD = _build.add(INFO, "wattserve_build_info", COUNTED, "The server's version, and Python's.",
    labels=("version", "python"))

_NOT_AUDITED = "unless `wattserve audit record` serves"

_server = Section[ServerState]("Queue and model", subjects=lambda server: [((), server)])
QUEUE = _server.add(GAUGE, "wattserve_queue_sequences", lambda server: server.queued,
    "Sequences that wait, for any device.")
QUEUE_LIMIT = _server.add(GAUGE, "wattserve_queue_limit_sequences", lambda server: server.queue_limit,
    "How many sequences may wait, in the queues of all devices together. Requests beyond are refused.")
QUEUE_WAIT = _server.add(GAUGE, "wattserve_queue_wait_seconds", lambda server: server.queue_wait_s,
    "For how long who comes now would wait behind all that waits, as the last batches and steps tell.")
QUEUE_CALLERS = _server.add(GAUGE, "wattserve_queue_callers", lambda server: server.queue_callers,
    "Tenants, else peers, of whom something waits, summed over the devices. A full queue of one is that "
    "one's flood.")
TOKENIZER_QUEUE = _server.add(GAUGE, "wattserve_tokenizer_queue_characters",
    lambda server: server.tokenizer_characters,
    "Characters of texts that wait for the tokeniser, and 100 for each text; of slow ones as many more.",
    absent="without a tokeniser")
ABANDONED = _server.add(COUNTER, "wattserve_abandoned_sequences_total", lambda server: server.abandoned,
    "Sequences that were computed although their caller had left: he did so while they ran.",
    unit="sequences")
PENDING_RECEIPTS = _server.add(GAUGE, "wattserve_pending_receipts", lambda server: server.pending_receipts,
    "Receipts that are not final yet.")
RECEIPT_BYTES = _server.add(GAUGE, "wattserve_kept_receipt_bytes", lambda server: server.receipt_bytes,
    "Memory of the final receipts that are kept, about.")
WATCHERS = _server.add(GAUGE, "wattserve_receipt_watchers", lambda server: server.watchers,
    "Who watches all receipts now.")
MESSAGE_BYTES = _server.add(GAUGE, "wattserve_held_message_bytes", lambda server: server.message_bytes,
    "Of messages of more than 4 KiB: those whose calls have not ended, and replies that nobody read yet.")
PREEMPTIONS = _server.add(COUNTER, "wattserve_preemptions_total", lambda server: server.preemptions,
    "Generations that lost their place to others, and had to be read again.", unit="preemptions",
    absent="for a model that does not generate")
LINES_LEFT_OUT = _server.add(COUNTER, "wattserve_log_lines_left_out_total",
    lambda server: server.lines_left_out,
    "Lines that the log leaves out because enough of their kind were in it in the last minute.", unit="lines")
AUDITED = _server.add(GAUGE, "wattserve_audit_recording", lambda server: server.is_audited,
    "1 while what the energy accounts are told is recorded. 0 once its file could not be written: it is good "
    "up to there, and the log says why.", unit="0 or 1", absent=_NOT_AUDITED)
AUDIT_BYTES = _server.add(GAUGE, "wattserve_audit_file_bytes", lambda server: server.audit_bytes,
    "Size of the audit's file.", absent=_NOT_AUDITED)
MODEL = _server.add(INFO, "wattserve_model_info", lambda server: {server.model: 1},
    "The hosted model.", labels=("name", "source", "task"))

_quotas = Section[ServerState]("Tenants now", subjects=lambda server: [((), server)])
TENANT_IN_FLIGHT = _quotas.add(GAUGE, "wattserve_tenant_in_flight_requests",
    lambda server: {(tenant,): count for tenant, count in server.in_flight.items()},
    "Predictions of a tenant that are being worked on.", labels=("tenant",), unit="requests",
    absent="without --keys-file; until the tenant's first")

BUDGET = _quotas.add(GAUGE, "wattserve_tenant_budget_joules",
    lambda server: {budget.labels: budget.limit_uj / 1e6 for budget in server.budgets},
    "What a tenant may use in a period of UTC, as its keys say: the least, where they say several. Beyond a "
    "`hard` one it is refused, beyond a `soft` one warned.",
    labels=("tenant", "kind", "period"), absent="for a tenant without budgets")
BUDGET_SPENT = _quotas.add(GAUGE, "wattserve_tenant_budget_spent_joules",
    lambda server: {budget.labels: budget.spent_uj / 1e6 for budget in server.budgets},
    "What it has used of that in the period of now: active and shared idle, of all parts and servers, what "
    "is not settled by its provisional figure.", labels=("tenant", "kind", "period"),
    absent="for a tenant without budgets")

_account_book = Section[AccountBookState]("Account book", (), "without --account-book",
    lambda server: [((), server.account_book)] if server.account_book is not None else [])
BOOK_UP = _account_book.add(GAUGE, "wattserve_account_book_up", lambda book: book.is_writing,
    "1 when the last transaction of the account book succeeded. While it is 0, receipts wait in memory.",
    unit="0 or 1")
BOOK_RECEIPTS = _account_book.add(COUNTER, "wattserve_account_book_receipts_total", lambda book: book.written,
    "Receipts that were written to the account book.")
BOOK_WAITING = _account_book.add(GAUGE, "wattserve_account_book_waiting_receipts", lambda book: book.waiting,
    "Receipts that are final and not in the account book yet.")
BOOK_LEFT_OUT = _account_book.add(COUNTER, "wattserve_account_book_left_out_receipts_total",
    lambda book: book.left_out,
    "Receipts for which there was no room to wait while the account book could not be written: they are in "
    "what it adds up, and cannot be found one by one.")
BOOK_REMOVED = _account_book.add(COUNTER, "wattserve_account_book_removed_receipts_total",
    lambda book: book.removed,
    "Receipts that left the account book because they were older or more than it keeps. What they add up to "
    "stays.")
BOOK_BYTES = _account_book.add(GAUGE, "wattserve_account_book_kept_bytes", lambda book: book.kept_bytes,
    "Room that single receipts take in the account book, about.")
BOOK_WRITTEN = _account_book.add(GAUGE, "wattserve_account_book_written_timestamp_seconds",
    lambda book: book.written_unix_ns / 1e9, "Until when all that was settled is in the account book.",
    unit="seconds since 1970")

_variants = Section[ServedVariant]("Variants", ("variant",), "while the variant is not in memory",
    lambda server: [((variant.name,), variant) for variant in server.variants])
VARIANT_READY = _variants.add(GAUGE, "wattserve_variant_ready", lambda variant: variant.is_ready,
    "1 for a variant in memory.", unit="0 or 1", absent="never")
VARIANT = _variants.add(INFO, "wattserve_variant_info", ServedVariant.labels,
    "What a variant really runs. `proxy` and `verified` say how far its name can be trusted.",
    labels=("device", "dtype", "kernels", "proxy", "verified"))
VARIANT_BYTES = _variants.add(GAUGE, "wattserve_variant_parameter_bytes",
    lambda variant: variant.parameter_bytes, "Bytes of a variant's weights and scales.")
VARIANT_WARMUP = _variants.add(GAUGE, "wattserve_variant_warmup_seconds", lambda variant: variant.warmup_s,
    "How long the variant's warm-up took.")

CACHE_USED = _variants.add(GAUGE, "wattserve_cache_used_bytes", lambda variant: variant.cache_used_bytes,
    "Keys and values that the generations of a variant hold now; 0 while there are none.",
    absent="for a model that does not generate; until its first")
CACHE_LIMIT = _variants.add(GAUGE, "wattserve_cache_limit_bytes", lambda variant: variant.cache_limit_bytes,
    "How much of them there may be: --kv-cache-bytes on each device that has held some.",
    absent="for a model that does not generate; until its first")

_lanes = Section[LaneState]("Devices", ("device",), "never",
    lambda server: [((lane.device,), lane) for lane in server.lanes])
DEVICE_BUSY = _lanes.add(COUNTER, "wattserve_device_busy_seconds_total", lambda lane: lane.busy_ns / 1e9,
    "How long the device ran batches, warm-up included. Its rate is the share of time in which it was busy.")
DEVICE_UP = _lanes.add(GAUGE, "wattserve_device_up", lambda lane: lane.is_up,
    "1 while the device takes work. 0 once it has failed, where others run the same variants; where none "
    "does, the server ends.", unit="0 or 1")

_NO_LEDGER = "until the meter's first reading; for ever without a meter"

_active = Section[VariantTotals]("Energy of variants", ("device", "variant"), _NO_LEDGER,
    lambda server: [((device.device, variant.name), device.totals_of(variant))
        for device in server.devices if device.is_counted
        for variant in server.variants if device.holds(variant)])
ACTIVE_ENERGY = _active.add(COUNTER, "wattserve_energy_active_joules_total",
    lambda totals: totals.active_uj / 1e6,
    "Settled active energy of a variant: its share of what the meter counted, above idle. Of a GPU whose "
    "host is not metered it is board only; what a host of several devices adds has the device `host`.")
SETTLED_SEQUENCES = _active.add(COUNTER, "wattserve_settled_sequences_total", lambda totals: totals.sequences,
    "Sequences whose energy is in wattserve_energy_active_joules_total.")
SETTLED_TOKENS = _active.add(COUNTER, "wattserve_settled_tokens_total", lambda totals: totals.tokens,
    "Real tokens of these sequences.")

_energy = Section[DeviceState]("Energy of devices", ("device",), _NO_LEDGER,
    lambda server: [((device.device,), device) for device in server.devices if device.is_counted])
ACCOUNTS = _energy.add(COUNTER, "wattserve_energy_account_joules_total", DeviceState.by_account,
    "Settled energy by account: active, warmup, idle, unattributed, gap. With the pending energy the "
    "accounts sum to what the meter counted.", labels=("account",))
IDLE_SHOWN = _energy.add(COUNTER, "wattserve_energy_idle_shared_joules_total",
    lambda device: device.ledger.idle_shared_uj / 1e6,
    "The part of the account `idle` that receipts show as their idle share.")
MEASURED = _energy.add(COUNTER, "wattserve_energy_measured_joules_total",
    lambda device: device.ledger.measured_uj / 1e6,
    "What the meter counted. wattserve_meter_info says whether it measured that.")
PENDING = _energy.add(GAUGE, "wattserve_energy_pending_joules", lambda device: device.ledger.pending_uj / 1e6,
    "What the meter counted and what is not settled yet.")
RECEIPTS_RESIDUAL = _energy.add(GAUGE, "wattserve_energy_receipts_residual_joules",
    lambda device: device.receipts_residual_uj / 1e6,
    "The account `active` less all that receipts were charged, both as of the last settlement: 0, or a bug.")
LAST_CHANGE = _energy.add(GAUGE, "wattserve_meter_last_change_timestamp_seconds",
    lambda device: device.unix_s(device.ledger.until_ns),
    "When a reading last differed from the one before. A counter that stands still is read, and does not "
    "change.",
    unit="seconds since 1970")
METER_GAPS = _energy.add(COUNTER, "wattserve_meter_gaps_total", lambda device: device.ledger.gap_count,
    "Intervals without a usable reading.")
METER_GAP_SECONDS = _energy.add(COUNTER, "wattserve_meter_gap_seconds_total",
    lambda device: device.ledger.gap_ns / 1e9,
    "How long these intervals lasted, without one that has not ended.")

_meters = Section[DeviceState]("Meters", ("device",), "never",
    lambda server: [((device.device,), device) for device in server.devices])
METER = _meters.add(INFO, "wattserve_meter_info", DeviceState.source_labels,
    "Where the energy figures come from. `quality` says what the sum is that the meter counted: measured, "
    "estimated, simulated or none. `method` says how it became a request's: apportioned.",
    labels=("source", "method", "quality"))
METER_UP = _meters.add(GAUGE, "wattserve_meter_up", lambda device: not device.meter.last_error,
    "1 when the last read of the meter succeeded.", unit="0 or 1")
METER_READS = _meters.add(COUNTER, "wattserve_meter_reads_total", lambda device: device.meter.reads,
    "Reads of the meter.")
METER_FAILED_READS = _meters.add(COUNTER, "wattserve_meter_failed_reads_total",
    lambda device: device.meter.failed_reads, "Reads of the meter that failed.")
RESTARTS = _meters.add(COUNTER, "wattserve_filter_restarts_total", lambda device: device.meter.restarts,
    "Errors after which the energy accounts began again from what they knew; the log says which. Receipts "
    "that were open then are unknown.")
LAST_READING = _meters.add(GAUGE, "wattserve_meter_last_reading_timestamp_seconds",
    lambda device: device.unix_s(device.meter.last_read_ns), "When the meter was last read successfully.",
    unit="seconds since 1970", absent="until the meter's first reading; for ever without a meter")
IDLE_WATTS = _meters.add(GAUGE, "wattserve_idle_watts", lambda device: device.meter.idle_watts,
    "What the device draws while nothing runs.", absent="while it is not known")
NEIGHBOURS = _meters.add(GAUGE, "wattserve_meter_neighbours", lambda device: device.meter.neighbours,
    "Other processes on the metered device.", unit="processes", absent="where the meter cannot tell")
OTHERS_AT_WORK = _meters.add(GAUGE, "wattserve_meter_others_at_work",
    lambda device: device.meter.others_at_work,
    "How much of the metered device other processes used in the last second: of a GPU the share of its "
    "multiprocessors, of a host its cores, of a sum both together.",
    unit="share of a GPU, or cores", absent="where the meter cannot tell")
POLL_PERIOD = _meters.add(GAUGE, "wattserve_meter_poll_period_seconds",
    lambda device: device.meter.poll_period_s, "How often the meter is read.")
METER_LAG = _meters.add(GAUGE, "wattserve_meter_lag_seconds",
    lambda device: device.meter.lag_s if device.has_meter else None,
    "Estimated time from drawing energy to its being counted.", absent="while it is not known")
METER_RAMP = _meters.add(GAUGE, "wattserve_meter_ramp_seconds",
    lambda device: device.meter.ramp_s if device.has_meter else None,
    "Estimated time constant with which the device's power rises and falls.", absent="while it is not known")
METER_UNRESOLVED = _meters.add(GAUGE, "wattserve_meter_response_unresolved",
    lambda device: bool(device.meter.unresolved) if device.has_meter else None,
    "1 when no lag, ramp and trailing average explains the counter: receipts say so, and have no figure "
    "where the search ended at its bounds.", unit="0 or 1", absent="unless there is a meter")
CONSISTENCY = _meters.add(GAUGE, "wattserve_filter_consistency",
    lambda device: device.meter.consistency if device.has_meter else None,
    "How far the counter was off what the filter expected lately: mean square over the one that it expected. "
    "1 where intervals are as wide as they should be; well above, receipts know less than they say.",
    absent="before batches have been metered")
EDGES = _meters.add(COUNTER, "wattserve_filter_edges_total", lambda device: device.meter.edges,
    "Changes of the counter, with batches, from which the filter learned.")
COVERED_EDGES = _meters.add(COUNTER, "wattserve_filter_covered_edges_total",
    lambda device: device.meter.covered_edges,
    "Of these, how often the counter was off by no more than a 95 % interval such as receipts tell.")
RAW_ENERGY = _meters.add(COUNTER, "wattserve_meter_raw_joules_total",
    lambda device: None if device.raw_energy is None else device.raw_energy.joules,
    "What the sensor itself counted since its meter was opened, before --sensor-gain. "
    "wattserve_energy_measured_joules_total, which began later, holds these joules corrected.",
    absent="unless --sensor-gain or --sensor-gain-error is given")
METER_PARTS = _meters.add(COUNTER, "wattserve_meter_part_joules_total", DeviceState.by_part,
    "What one part of a sum of meters counted, by its own ledger, which begins after the probe at "
    "start-up. These joules are in wattserve_energy_measured_joules_total too. `part` is its meter: `rapl` "
    "and `estimate` are the host, any other the accelerator.",
    labels=("part", "quality"), absent="unless the meter is a sum of meters")
IDLE_PARTS = _meters.add(GAUGE, "wattserve_meter_part_idle_watts", DeviceState.idle_by_part,
    "What one part of a sum of meters draws while nothing runs. It is in wattserve_idle_watts too.",
    labels=("part", "quality"), absent="unless the meter is a sum of meters; while it is not known")

_probes = Section[SensorProbe]("Meters, as the probe found them at start-up", ("device",),
    "where the probe could not tell",
    lambda server: [((device.device,), device.probe) for device in server.devices if device.probe])
UPDATE_PERIOD = _probes.add(GAUGE, "wattserve_meter_update_period_seconds",
    lambda probe: probe.update_period_s, "Median time between updates of the sensor.")
EDGE_JITTER = _probes.add(GAUGE, "wattserve_meter_edge_jitter_seconds", lambda probe: probe.edge_jitter_s,
    "Standard deviation of the time between updates.")
RESOLUTION = _probes.add(GAUGE, "wattserve_meter_resolution_joules",
    lambda probe: None if probe.resolution_uj is None else probe.resolution_uj / 1e6,
    "The largest step of which all changes of the sensor are multiples.")
CROSS_CHECK = _probes.add(GAUGE, "wattserve_meter_cross_check_ratio",
    lambda probe: probe.cross_checks[-1].difference_ratio if probe.cross_checks else None,
    "How far the counted energy lies above the integrated power, relative to the power.",
    absent="unless the meter is a GPU's board that tells both energy and power")
READ_COST = _probes.add(GAUGE, "wattserve_meter_read_cost_seconds",
    lambda probe: {("p50",): probe.read_cost_p50_s, ("p99",): probe.read_cost_p99_s},
    "How long one read took.", labels=("statistic",))

# Named, and without prefix, as Triton's, for perf_analyzer --collect-metrics.
BOARDS = Section[BoardFigures]("GPU boards", ("gpu_uuid",), "unless a GPU is metered by NVML and offers it")
GPU_UTILIZATION = BOARDS.add(GAUGE, "nv_gpu_utilization", lambda board: board.utilization,
    "Share of the last moments in which the GPU was computing, as its driver says.", unit="share, 0 to 1")
GPU_POWER = BOARDS.add(GAUGE, "nv_gpu_power_usage", lambda board: board.power_watts,
    "Power of the GPU's board, mostly the mean of the last second.", unit="watts")
GPU_MEMORY_USED = BOARDS.add(GAUGE, "nv_gpu_memory_used_bytes", lambda board: board.memory_used_bytes,
    "The GPU's memory in use.")
GPU_MEMORY_TOTAL = BOARDS.add(GAUGE, "nv_gpu_memory_total_bytes", lambda board: board.memory_total_bytes,
    "The GPU's memory.")

# Named, labelled and in units as those of NVIDIA's dcgm-exporter, for whatever reads that. AIPerf waits for
# ever for a board without `Hostname`.
DCGM = Section[BoardFigures]("GPU boards, as DCGM names them", ("gpu", "UUID", "modelName", "Hostname"),
    "unless --dcgm-metrics is given and the board offers it")
DCGM_ENERGY = DCGM.add(COUNTER, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", lambda board: board.energy_mj,
    "Energy that the GPU's board counted since its driver was loaded, uncorrected. In OpenMetrics, where a "
    "counter's name ends with `_total`, its type is unknown.", unit="millijoules")
DCGM_POWER = DCGM.add(GAUGE, "DCGM_FI_DEV_POWER_USAGE", lambda board: board.power_watts,
    "Power of the GPU's board, mostly the mean of the last second.", unit="watts")

# fmt: on

SECTIONS: tuple[Section[Any], ...] = (
    _requests, _refusals, _tenants, _batches, _generations, _methods, _build, _server, _quotas, _account_book,
    _variants, _lanes, _active, _energy, _meters, _probes, BOARDS,
    DCGM,
)  # fmt: skip


def all_metrics() -> list[MetricSpec]:
    return [metric for section in SECTIONS for metric in section.rows]


def counted() -> list[MetricSpec]:
    return [metric for section in SECTIONS for metric, read in section.rows.items() if read is None]
