"""The shape of results.json and of a line of records.jsonl.

Units are in the names: `_ns` nanoseconds, `_uj` microjoules, `_seconds` seconds. What is not known is null,
and the `reason` beside it says why; nothing unknown is ever 0. Change `SCHEMA_VERSION` when a reader would
break; a field that older results lack has a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.plan.schedule import Plan

SCHEMA = "wattserve-loadgen-results"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Stamps count from the start of the sweep, on the client's monotonic clock."""

    block: int
    variant: str
    concurrency: int
    row: int
    tokens: int | None  # None for an image
    sent_ns: int
    done_ns: int
    in_window: bool  # sent within the window: counts for latency, energy and accuracy
    ok: bool
    code: str  # gRPC status
    message: str | None  # of a failure
    predicted: int | None
    label: int | None
    receipt_id: str | None
    energy_uj: int | None  # active
    energy_low_uj: int | None
    energy_high_uj: int | None
    energy_state: str | None  # settled, provisional, unknown
    energy_reason: str | None  # why there is no figure
    batch_size: int | None
    padded_tokens: int | None
    queue_ns: int | None
    compute_ns: int | None


@dataclass(frozen=True)
class CellEnergy:
    """What one cell cost. Accounts are the ledger's growth from before the cell to after it settled."""

    settled: int  # receipts of the window with a figure
    unknown: int  # receipts of the window without one
    unknown_reasons: dict[str, int]
    active_uj_per_request: float | None  # mean of the window's settled receipts, plus failed_uj_per_request
    failed_uj_per_request: float | None  # what failed requests burned, carried by the answered ones
    active_uj_per_token: float | None
    idle_uj_per_request: float | None  # idle power over the cell / throughput of the window
    idle_watts: float | None
    ledger_seconds: float | None
    measured_uj: int | None
    active_uj: int | None  # of this cell's variant
    other_active_uj: int | None  # of all other variants, and of server warm-up
    idle_uj: int | None
    unattributed_uj: int | None
    pending_uj: int | None
    receipts_uj: int | None  # sum over all settled receipts of the cell, window or not
    accounts_residual_uj: int | None  # measured - sum of the accounts: 0 when the ledger is exact
    receipts_residual_uj: int | None  # active of the variant - sum of receipts: failed and unread requests
    foreign_sequences: int  # settled on this server in this cell, and not sent by us
    gap_count: int
    gap_seconds: float
    reason: str  # why there are no joules, or ""
    gap_uj: int | None = None  # counted over meter gaps, and nobody's; older results do not tell it apart


@dataclass(frozen=True)
class CellResult:
    """One cell that ran. Latency figures are of the requests sent and answered within the window."""

    position: int
    block: int
    variant: str
    concurrency: int
    window_seconds: float
    sent: int  # in the window
    answered: int  # of those
    failed: int  # of those
    failures: dict[str, int]  # by code
    failure_example: str
    rate_per_second: float | None
    p50_ns: int | None
    p90_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    effective_samples: float | None
    client_cpu_seconds: float  # of the whole client process, during the window
    client_cpu_share: float | None  # of one core
    mean_tokens: float | None
    mean_batch_size: float | None
    padding_share: float | None  # of the token positions that were computed
    mean_queue_ns: float | None
    mean_compute_ns: float | None
    mean_latency_ns: float | None
    energy: CellEnergy
    stopped: str  # why it ended before its time, or ""
    proxy: str = ""  # empty, or: the variant only stands in for a precision; what really ran
    verified: bool | None = None  # whether the server saw its precision; None when it does not say


@dataclass(frozen=True)
class Verdict:
    """Why a point must not be published as it is."""

    code: str
    text: str


@dataclass(frozen=True)
class Point:
    """One variant at one concurrency over all its blocks. Percentiles pool the blocks; intervals are over
    blocks.
    """

    variant: str
    concurrency: int
    blocks: int
    window_seconds: float
    answered: int
    failed: int
    rate_per_second: Interval | None
    p50_ns: int | None
    p90_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    p999_ns: int | None
    p50_blocks_ns: Interval | None
    p95_blocks_ns: Interval | None
    effective_samples: float | None
    active_uj: Interval | None  # per request
    idle_uj: Interval | None  # per request
    active_uj_per_token: Interval | None
    mean_batch_size: float | None
    padding_share: float | None
    mean_queue_ns: float | None
    mean_compute_ns: float | None
    mean_latency_ns: float | None
    client_cpu_share: float | None  # the highest of its blocks
    speed_ratio: Interval | None  # throughput over the baseline's, paired by block
    energy_ratio: Interval | None  # active energy per request over the baseline's, paired by block
    verdicts: list[Verdict]
    proxy: str = ""  # as in its cells
    verified: bool | None = None


@dataclass(frozen=True)
class Accuracy:
    """Share of rows whose highest logit is at the label, each row counted once."""

    correct: int
    rows: int
    low: float  # Wilson's 95 % interval
    high: float
    unstable_rows: int  # answered differently at different times

    @property
    def share(self) -> float:
        return self.correct / self.rows


@dataclass(frozen=True)
class DatasetSummary:
    """What was replayed."""

    folder: str
    sha256: str
    rows: int
    labelled: bool
    min_tokens: int  # an image counts as one
    mean_tokens: float
    max_tokens: int
    description: dict[str, Any]  # dataset.json
    pixel_shape: tuple[int, ...] = ()  # channels, height, width of its images; empty for tokens


@dataclass(frozen=True)
class Results:
    """results.json."""

    schema: str
    schema_version: int
    loadgen_version: str
    created: str  # ISO 8601, UTC
    command: list[str]
    target: str
    ended: str  # "complete", or why it ended early
    cells_planned: int  # without the heat-up block
    plan: Plan
    dataset: DatasetSummary
    client: dict[str, Any]
    server: dict[str, Any]  # ServerInfo, field by field
    energy_reason: str  # why there are no joules at all, or ""
    accuracy_reason: str  # why accuracy does not apply, or ""
    accuracy_rows: int  # rows that every variant answered
    accuracy: dict[str, Accuracy]
    notes: list[str]
    points: list[Point] = field(default_factory=list)
    cells: list[CellResult] = field(default_factory=list)

    @property
    def baseline(self) -> str:
        """The variant that ratios are relative to: the first."""
        return self.plan.variants[0]

    @property
    def complete(self) -> bool:
        return self.ended == "complete"
