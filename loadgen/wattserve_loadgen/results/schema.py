"""The shape of results.json and of a line of records.jsonl.

Units are in the names: `_ns` nanoseconds, `_uj` microjoules, `_seconds` seconds. What is not known is null,
and the `reason` beside it says why; nothing unknown is ever 0. Change `SCHEMA_VERSION` when a reader would
break, and teach `upgrade` the step; a field that older results of the version lack has a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wattserve_loadgen.figures.percentiles import Percentiles
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.plan.load import Arm, Load
from wattserve_loadgen.plan.schedule import Plan

SCHEMA = "wattserve-loadgen-results"
SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Stamps count from the start of the sweep, on the client's monotonic clock."""

    cell: int  # the position of its cell
    block: int
    arm: str
    load: str  # the load's name
    rows: list[int]  # of the dataset: one for each sequence of the request
    tokens: int | None  # of all its sequences; None for images
    scheduled_ns: int | None  # when it was due; None in a closed loop, which has no schedule
    sent_ns: int
    done_ns: int
    in_window: bool  # due (without a schedule: sent) within the window: counts for every figure
    ok: bool
    code: str  # gRPC status
    message: str | None  # of a failure
    predicted: list[int | None]
    labels: list[int | None]
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

    @property
    def latency_ns(self) -> int:
        """Response time where there is a schedule, service time where there is none."""
        return self.done_ns - (self.sent_ns if self.scheduled_ns is None else self.scheduled_ns)


@dataclass(frozen=True)
class MeterWindow:
    """The meter's own count over a cell's window, interpolated at both edges between readings."""

    measured_uj: int | None
    seconds: float
    readings: int  # within the window
    longest_gap_seconds: float | None  # between two readings
    watts: float | None
    watts_deviation: float | None  # standard deviation of the power between readings
    reason: str  # a reason code and why there is no figure, or ""


@dataclass(frozen=True)
class CellEnergy:
    """What one cell cost. Accounts are the ledger's growth from before the cell to after it settled."""

    settled: int  # receipts of the window with a figure
    unknown: int  # receipts of the window without one
    unknown_reasons: dict[str, int]
    active_uj_per_request: float | None  # mean of the window's settled receipts, plus failed_uj_per_request
    failed_uj_per_request: float | None  # what failed requests burned, carried by the answered ones
    active_uj_per_token: float | None
    active_uj_per_padded_token: float | None
    idle_uj_per_request: float | None  # idle power over the cell / throughput of the window
    idle_watts: float | None
    ledger_seconds: float | None
    measured_uj: int | None
    active_uj: int | None  # of this cell's variant
    other_active_uj: int | None  # of all other variants, and of server warm-up
    idle_uj: int | None
    unattributed_uj: int | None
    pending_uj: int | None
    gap_uj: int | None  # counted over meter gaps, and nobody's
    receipts_uj: int | None  # sum over all settled receipts of the cell, window or not
    accounts_residual_uj: int | None  # measured - sum of the accounts: 0 when the ledger is exact
    receipts_residual_uj: int | None  # active of the variant - sum of receipts: failed and unread requests
    foreign_sequences: int  # settled on this server in this cell, and not sent by us
    gap_count: int
    gap_seconds: float
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
class Slices:
    """A cell's window in equal slices: what the steady-state test looks at. Null: too few answers."""

    seconds: float  # of each slice
    rate_per_second: list[float | None]
    p50_ns: list[float | None]
    active_uj_per_request: list[float | None]


@dataclass(frozen=True)
class Conditions:
    """The client's machine when a cell began; null: it does not say."""

    started_unix_seconds: float
    cpu_mhz: float | None
    temperature_celsius: float | None
    load_average: float | None


@dataclass(frozen=True)
class CellResult:
    """One cell that ran. Latency figures are of the requests of the window that were answered."""

    position: int
    block: int
    arm: str
    load: str
    window_seconds: float
    offered_per_second: float | None  # by the schedule; None in a closed loop
    sent: int  # in the window
    answered: int  # of those
    failed: int  # of those
    failures: dict[str, int]  # by code
    failure_example: str
    rate_per_second: float | None  # answers within the window / its length
    latency: Percentiles  # response time where there is a schedule, service time where there is none
    service: Percentiles | None  # sent to answered; None in a closed loop, where it is the latency
    lag: Percentiles | None  # due to sent; None in a closed loop
    late: int | None  # requests sent too late for their schedule; None in a closed loop
    within_objective: int | None  # answered within the plan's objective; None without one
    client_cpu_seconds: float  # of the whole client, during the window
    client_cpu_share: float | None  # of one core; with several processes, of the busiest
    mean_tokens: float | None
    mean_batch_size: float | None
    padding_share: float | None  # of the token positions that were computed
    mean_queue_ns: float | None
    mean_compute_ns: float | None
    energy: CellEnergy
    stopped: str  # why it ended before its time, or ""
    window_start_seconds: float | None = None  # since the start of the sweep
    slices: Slices | None = None
    conditions: Conditions | None = None
    proxy: str = ""  # empty, or: the variant only stands in for a precision; what really ran
    verified: bool | None = None  # whether the server saw its precision; None when it does not say

    @property
    def client_cpu_us_per_request(self) -> float | None:
        """The client's own CPU time for each request of the window."""
        return self.client_cpu_seconds * 1e6 / self.sent if self.sent else None


@dataclass(frozen=True)
class Verdict:
    """Why figures must not be published as they are. `spoils`: "point", or "energy" alone."""

    code: str
    text: str
    spoils: str = "point"


@dataclass(frozen=True)
class Ratios:
    """A figure of this arm over the baseline's under the same load, paired block by block."""

    rate: Interval | None = None
    p50: Interval | None = None
    p95: Interval | None = None
    active_energy: Interval | None = None
    total_energy: Interval | None = None
    reason: str = ""  # why some or all are missing, or ""


@dataclass(frozen=True)
class Figures:
    """What a point says. Percentiles pool the blocks; intervals are over blocks."""

    rate_per_second: Interval | None
    latency: Percentiles
    service: Percentiles | None
    lag: Percentiles | None
    p50_blocks_ns: Interval | None
    p95_blocks_ns: Interval | None
    goodput_share: float | None  # of the requests sent, answered within the plan's objective
    active_uj: Interval | None  # per request, by receipts
    idle_uj: Interval | None
    total_uj: Interval | None  # active and idle
    meter_uj: Interval | None  # per request, by the meter's own count over the window
    meter_difference: Interval | None  # (total by receipts - meter) / meter
    active_uj_per_token: Interval | None
    active_uj_per_padded_token: Interval | None
    energy_reason: str  # why there are no joules, or ""
    mean_batch_size: float | None
    padding_share: float | None
    mean_queue_ns: float | None
    mean_compute_ns: float | None
    client_cpu_share: float | None  # the highest of its blocks
    client_cpu_us_per_request: float | None
    ratios: Ratios


@dataclass(frozen=True)
class Point:
    """One arm under one load over all its blocks.

    A verdict that spoils the point leaves it without `figures`: what was measured stands in `withheld`, to be
    drawn hollow. One that spoils energy leaves either without a joule, and the reason. A look keeps all.
    """

    arm: str
    load: str
    blocks: int
    window_seconds: float
    offered_per_second: float | None
    answered: int
    failed: int
    figures: Figures | None
    withheld: Figures | None
    verdicts: list[Verdict]
    proxy: str = ""  # as in its cells
    verified: bool | None = None

    @property
    def shown(self) -> Figures:
        """What may be drawn, if need be hollow."""
        found = self.figures or self.withheld
        if found is None:
            raise ValueError(f"{self.arm} under {self.load} has neither figures nor withheld ones")
        return found

    @property
    def hollow(self) -> bool:
        """Whether it must be drawn hollow, and stand on no line of best points."""
        return any(one.spoils == "point" for one in self.verdicts)


@dataclass(frozen=True)
class Accuracy:
    """Share of rows whose highest logit is at the label, each row counted once."""

    correct: int
    rows: int
    low: float  # Wilson's 95 % interval
    high: float
    unstable_rows: int  # answered differently at different times
    gained_rows: int | None = None  # right here, wrong in the baseline; None for the baseline
    lost_rows: int | None = None
    difference: float | None = None  # of the shares, paired on the same rows, with its 95 % interval
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None  # McNemar's exact test

    @property
    def share(self) -> float:
        return self.correct / self.rows


@dataclass(frozen=True)
class Search:
    """What `--find-max` found for one arm."""

    arm: str
    objective: str
    rate_per_second: float | None  # the highest rate that held the objective
    broken_per_second: float | None  # the lowest rate above it that did not, or could not be decided
    trials: list[Trial]
    ended: str  # what it found in words, and why it ended


@dataclass(frozen=True)
class Trial:
    """One rate that a search tried."""

    rate_per_second: float
    achieved_per_second: float | None
    seconds: float
    judgement: str  # met, broken, undecided
    text: str  # the percentiles that decided


@dataclass(frozen=True)
class Ceiling:
    """What this client alone can do, against a server that does nothing."""

    requests_per_second: float
    client_cpu_us_per_request: float
    request_bytes: int
    kind: str  # unary, stream, oip
    processes: int
    measured: str  # ISO 8601, UTC


@dataclass(frozen=True)
class Check:
    """One line of `loadgen validate`."""

    name: str
    passed: bool | None  # None: does not apply
    text: str


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
class TargetSummary:
    """A server of the sweep."""

    name: str
    address: str
    protocol: str  # native unary, native stream, open inference protocol
    server: dict[str, Any]  # ServerInfo, field by field; of a peer, what could be learnt
    meter: dict[str, Any]  # MeterInfo of the server, or of the meter that loadgen reads itself
    meter_origin: str  # server, loadgen, none


@dataclass(frozen=True)
class Results:
    """results.json."""

    schema: str
    schema_version: int
    loadgen_version: str
    created: str  # ISO 8601, UTC
    command: list[str]
    ended: str  # "complete", or why it ended early
    cells_planned: int  # without the heat-up block
    plan: Plan
    dataset: DatasetSummary
    client: dict[str, Any]
    targets: list[TargetSummary]
    boundary: str  # which hardware the joules cover, and whether the client's own are among them
    energy_reason: str  # why there are no joules at all, or ""
    accuracy_reason: str  # why accuracy does not apply, or ""
    accuracy_rows: int  # rows that every arm answered
    accuracy: dict[str, Accuracy]
    notes: list[str]
    ceilings: list[Ceiling] = field(default_factory=list)
    interruptions: list[str] = field(default_factory=list)  # what happened between cells
    searches: list[Search] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    cells: list[CellResult] = field(default_factory=list)

    @property
    def baseline(self) -> str:
        """The arm that ratios are relative to: the first."""
        return self.plan.arms[0].name

    @property
    def server(self) -> dict[str, Any]:
        """ServerInfo of the baseline's server."""
        return self.target_of(self.plan.arms[0]).server

    @property
    def complete(self) -> bool:
        return self.ended == "complete"

    @property
    def main_arms(self) -> list[Arm]:
        """Every arm but the baseline's twin."""
        return [arm for arm in self.plan.arms if not arm.twin_of]

    def target_of(self, arm: Arm) -> TargetSummary:
        return next(one for one in self.targets if one.name == arm.target)

    def load(self, name: str) -> Load:
        """The load of that name."""
        return next(load for arm in self.plan.arms for load in self.plan.loads_of(arm) if load.name == name)

    def arm(self, name: str) -> Arm:
        return next(one for one in self.plan.arms if one.name == name)
