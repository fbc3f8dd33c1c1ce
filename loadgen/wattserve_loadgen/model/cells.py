"""A request and a cell as a results folder keeps them: a line of records.jsonl, an entry of `cells`.

Units are in the names: `_ns` nanoseconds, `_uj` microjoules, `_seconds` seconds. What is not known is None
(null in the files), and the `reason` beside it says why; nothing unknown is ever 0. The comment of a field is
its description in the JSON Schema and in docs/reference/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # the difference of two fits 64 bits
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class RecordedGeneration:
    """What a request to a language model was answered with."""

    prompt_tokens: Count  # that were sent
    output_tokens: Count  # that came
    first_token_ns: Whole  # when the first came, since the start of the sweep
    gaps_ns: list[Whole]  # between messages that brought tokens: one less than there were
    prompt_uj: Whole | None  # of reading the prompt and choosing the first token; null where the energy is
    output_uj: Whole | None  # of choosing the others
    overhead_uj: Whole | None  # of reading again what a preemption had lost: not in the request's energy

    @property
    def time_per_token_ns(self) -> float | None:
        """From the first token to the last, by the tokens behind the first; None of a single token."""
        return sum(self.gaps_ns) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Stamps count from the start of the sweep, on the client's monotonic clock."""

    cell: Count  # the position of its cell
    block: Count  # which repetition of the plan, from 1; the heat-up block is not recorded
    arm: str  # what is compared, by its name
    load: str  # the load's name
    rows: list[Count]  # of the dataset: one for each sequence of the request
    tokens: Count | None  # of all its sequences; of a generation prompt and output; None for images
    scheduled_ns: Whole | None  # when it was due; None in a closed loop, which has no schedule
    sent_ns: Whole  # when it was sent
    done_ns: Whole  # when its answer was there, or its failure
    in_window: bool  # due (without a schedule: sent) within the window: counts for every figure
    ok: bool  # whether it was answered
    code: str  # gRPC status
    message: str | None  # of a failure
    predicted: list[Count | None]  # index of the highest logit; None for models without labels
    labels: list[Count | None]  # the rows' labels; None where a row has none
    receipt_id: str | None  # the server's id of its receipt
    energy_uj: Whole | None  # active
    energy_low_uj: Whole | None  # lower end of the receipt's 95 % interval
    energy_high_uj: Whole | None  # upper end
    energy_state: str | None  # settled, provisional, unknown
    energy_reason: str | None  # why there is no figure
    batch_size: Count | None  # sequences in the batch that it ran in
    padded_tokens: Count | None  # tokens that were computed for it, padding included
    queue_ns: Whole | None  # until it was in a batch, on the server's clock
    compute_ns: Whole | None  # its batch's window, on the server's clock
    generation: RecordedGeneration | None = None  # None of a model that writes no tokens, and of a failure
    server: str | None = None  # of a fleet: the address that it was sent to

    @property
    def begun_ns(self) -> int:
        """From where its latency counts: due where there is a schedule, else sent."""
        return self.sent_ns if self.scheduled_ns is None else self.scheduled_ns

    @property
    def latency_ns(self) -> int:
        """Response time where there is a schedule, service time where there is none."""
        return self.done_ns - self.begun_ns

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token, from where latency counts; None where no token came."""
        return None if self.generation is None else self.generation.first_token_ns - self.begun_ns


PERCENTILES = {"p50_ns": 50.0, "p90_ns": 90.0, "p95_ns": 95.0, "p99_ns": 99.0, "p999_ns": 99.9}


@dataclass(frozen=True)
class Percentiles:
    """Latencies of a sample. A percentile and its bound are None below its floor."""

    samples: int  # how many latencies
    effective_samples: float | None  # how many independent values the sample is worth
    mean_ns: float | None  # their mean
    p50_ns: int | None  # median latency; percentiles are None where the sample is too small to bound them
    p90_ns: int | None  # 90th percentile
    p95_ns: int | None  # 95th percentile
    p99_ns: int | None  # 99th percentile
    p999_ns: int | None  # 99.9th percentile
    p50_bound_ns: int | None  # bounds: the quantile lies below with 99 % confidence
    p90_bound_ns: int | None  # of the 90th percentile
    p95_bound_ns: int | None  # of the 95th percentile
    p99_bound_ns: int | None  # of the 99th percentile
    p999_bound_ns: int | None  # of the 99.9th percentile
    max_ns: int | None  # the longest


@dataclass(frozen=True)
class MeterWindow:
    """The meter's own count over a cell's window, interpolated at both edges between readings."""

    measured_uj: int | None  # what the meter counted in that time, measured or not: the source says
    seconds: float  # length of the window
    readings: int  # within the window
    longest_gap_seconds: float | None  # between two readings
    watts: float | None  # mean power over the window
    watts_deviation: float | None  # standard deviation of the power between readings
    reason: str  # a reason code and why there is no figure, or ""


@dataclass(frozen=True)
class CellEnergy:
    """What one cell cost. Accounts are the ledger's growth from before the cell to after it settled."""

    settled: int  # receipts of the window with a figure
    unknown: int  # receipts of the window without one
    unknown_reasons: dict[str, int]  # how often each reason was given
    active_uj_per_request: float | None  # mean of the window's settled receipts, plus failed_uj_per_request
    failed_uj_per_request: float | None  # what failed requests burned, carried by the answered ones
    active_uj_per_token: float | None  # of the window's settled receipts, over the tokens of those requests
    active_uj_per_padded_token: float | None  # the same over the tokens that were computed, padding included
    idle_uj_per_request: float | None  # idle power over the cell / throughput of the window
    idle_watts: float | None  # mean idle draw over the cell
    ledger_seconds: float | None  # between the ledger's readings before and after the cell
    measured_uj: int | None  # what the meter counted in that time, measured or not: the source says
    active_uj: int | None  # of this cell's variant
    other_active_uj: int | None  # of all other variants, and of server warm-up
    idle_uj: int | None  # booked as idle
    unattributed_uj: int | None  # above idle, and explained by no batch
    pending_uj: int | None  # metered and not settled at the end of the cell
    gap_uj: int | None  # counted over meter gaps, and nobody's
    receipts_uj: int | None  # sum over all settled receipts of the cell, window or not
    accounts_residual_uj: int | None  # measured - sum of the accounts: 0 when the ledger is exact
    receipts_residual_uj: int | None  # active of the variant - sum of receipts: failed and unread requests
    foreign_sequences: int  # settled on this server in this cell, and not sent by us
    gap_count: int  # gaps of the meter within the cell
    gap_seconds: float  # their length
    reason: str  # why there are no joules, or ""
    meter: MeterWindow | None = None  # None: no reading was taken; older results have none
    meter_uj_per_request: float | None = None  # the meter's own count over the window / answers in it
    method: str = "receipts"  # how active and idle were found; of a peer without receipts, in words

    @property
    def total_uj_per_request(self) -> float | None:
        """Active and idle, by receipts."""
        if self.active_uj_per_request is None or self.idle_uj_per_request is None:
            return None
        return self.active_uj_per_request + self.idle_uj_per_request

    @property
    def meter_difference(self) -> float | None:
        """(receipts with their idle share - meter) / meter, per request."""
        total, meter = self.total_uj_per_request, self.meter_uj_per_request
        return None if total is None or not meter else (total - meter) / meter


@dataclass(frozen=True)
class GeneratedCell:
    """What a language model did in one cell's window; means are over the answered requests."""

    mean_prompt_tokens: float  # of a request
    mean_output_tokens: float  # of a request
    output_tokens_per_second: float | None  # of the requests that ended within the window / its length
    ttft: Percentiles  # time to first token, from where latency counts
    tpot: Percentiles  # time per output token behind the first, the mean of each request
    itl: Percentiles  # from a message with tokens to the next
    active_uj_per_output_token: float | None  # of the window's settled receipts, over the tokens they wrote
    prompt_uj_per_request: float | None  # of reading prompts and choosing first tokens
    output_uj_per_request: float | None  # of choosing the other tokens
    overhead_uj_per_request: float | None  # of reading again what preemptions had lost: beside the receipts
    energy_delay_uj_seconds: float | None  # active energy of a request times its mean latency


@dataclass(frozen=True)
class ServerPart:
    """What one server of a fleet did in a cell."""

    address: str  # HOST:PORT
    answered: int  # requests of the window
    failed: int  # requests of the window
    p50_ns: float | None  # their median latency
    active_uj_per_request: float | None  # the mean of their settled receipts
    measured_uj: int | None  # what its meters counted over the cell
    active_uj: int | None  # of that, the active energy of this cell's variant
    idle_uj: int | None  # of that, booked as idle
    reason: str  # why it has no joules, or ""


@dataclass(frozen=True)
class Slices:
    """A cell's window in equal slices: what the steady-state test looks at. Null: too few answers."""

    seconds: float  # of each slice
    rate_per_second: list[float | None]  # answers per second of each slice
    p50_ns: list[float | None]  # median latency of each slice
    active_uj_per_request: list[float | None]  # the mean of each slice's settled receipts


@dataclass(frozen=True)
class Conditions:
    """The client's machine when a cell began; null: it does not say."""

    started_unix_seconds: float  # by the wall clock
    cpu_mhz: float | None  # mean clock of the client's cores
    temperature_celsius: float | None  # of its processor
    load_average: float | None  # over one minute


@dataclass(frozen=True)
class CellResult:
    """One cell that ran. Latency figures are of the requests of the window that were answered."""

    position: int  # when it ran, from 1, heat-up cells counted
    block: int  # which repetition of the plan, from 1; the heat-up block is not recorded
    arm: str  # what is compared, by its name
    load: str  # how requests were offered, by its name
    window_seconds: float  # length of the window; of a point: summed over its blocks
    offered_per_second: float | None  # by the schedule; None in a closed loop
    sent: int  # in the window
    answered: int  # of those
    failed: int  # of those
    failures: dict[str, int]  # by code
    failure_example: str  # the message of one failure, or empty
    rate_per_second: float | None  # answers within the window / its length
    latency: Percentiles  # response time where there is a schedule, service time where there is none
    service: Percentiles | None  # sent to answered; None in a closed loop, where it is the latency
    lag: Percentiles | None  # due to sent; None in a closed loop
    late: int | None  # requests sent too late for their schedule; None in a closed loop
    within_objective: int | None  # answered within the plan's objective; None without one
    client_cpu_seconds: float  # of the whole client, during the window
    client_cpu_share: float | None  # of one core; with several processes, of the busiest
    mean_tokens: float | None  # tokens of a request
    mean_batch_size: float | None  # sequences of the batch that a request ran in
    padding_share: float | None  # of the token positions that were computed
    mean_queue_ns: float | None  # of `queue_ns` of the records
    mean_compute_ns: float | None  # of `compute_ns` of the records
    energy: CellEnergy  # what it cost
    stopped: str  # why it ended before its time, or ""
    window_start_seconds: float | None = None  # since the start of the sweep
    slices: Slices | None = None  # None: older results, or a window too short to slice
    conditions: Conditions | None = None  # None: older results
    proxy: str = ""  # empty, or: the variant only stands in for a precision; what really ran
    verified: bool | None = None  # whether the server saw its precision; None when it does not say
    generated: GeneratedCell | None = None  # None of a model that writes no tokens
    servers: list[ServerPart] = field(default_factory=list)  # of a fleet: each one's part; else empty

    @property
    def client_cpu_us_per_request(self) -> float | None:
        """The client's own CPU time for each request of the window."""
        return self.client_cpu_seconds * 1e6 / self.sent if self.sent else None
