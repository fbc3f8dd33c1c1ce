"""results.json: every figure of a sweep and how it was made. For units and absence see `cells`.

Change `SCHEMA_VERSION` when a reader would break; a field that older results of the version lack has a
default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from wattserve_common.stats import Interval, finite_exp
from wattserve_loadgen.model.cells import CellResult, Percentiles
from wattserve_loadgen.model.ratios import Ratios
from wattserve_loadgen.plan.load import Arm, Load
from wattserve_loadgen.plan.schedule import Plan

SCHEMA = "wattserve-loadgen-results"
SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Verdict:
    """Why figures must not be published as they are. `spoils`: "point", or "energy" alone."""

    code: str  # a name of the verdict that does not change
    text: str  # the verdict in words
    spoils: str = "point"  # `point`, or `energy` alone


@dataclass(frozen=True)
class GeneratedFigures:
    """What a point of a language model says beside; as in its cells."""

    output_tokens_per_second: Interval | None  # of all requests together
    ttft: Percentiles  # time to first token
    tpot: Percentiles  # time per output token behind the first, the mean of each request
    itl: Percentiles  # from a message with tokens to the next
    mean_prompt_tokens: float | None  # of a request
    mean_output_tokens: float | None  # of a request
    active_uj_per_output_token: Interval | None  # active energy of a request, over the tokens it wrote
    prompt_uj: Interval | None  # per request, of reading the prompt and choosing the first token
    output_uj: Interval | None  # per request, of choosing the other tokens
    overhead_uj: Interval | None  # per request, of reading again what preemptions had lost: beside the others
    energy_delay_uj_seconds: Interval | None  # active energy of a request times its mean latency


@dataclass(frozen=True)
class Figures:
    """What a point says. Percentiles pool the blocks; intervals are over blocks."""

    rate_per_second: Interval | None  # answers per second of the window
    latency: Percentiles  # response time where there is a schedule, service time where there is none
    service: Percentiles | None  # sent to answered; None in a closed loop, where it is the latency
    lag: Percentiles | None  # due to sent; None in a closed loop
    p50_blocks_ns: Interval | None  # the blocks' own medians
    p95_blocks_ns: Interval | None  # the blocks' own 95th percentiles
    goodput_share: float | None  # of the requests sent, answered within the plan's objective
    active_uj: Interval | None  # per request, by receipts
    idle_uj: Interval | None  # per request: idle power over throughput
    total_uj: Interval | None  # active and idle
    meter_uj: Interval | None  # per request, by the meter's own count over the window
    meter_difference: Interval | None  # (total by receipts - meter) / meter
    # of the window's settled receipts, over the tokens of those requests
    active_uj_per_token: Interval | None
    # the same over the tokens that were computed, padding included
    active_uj_per_padded_token: Interval | None
    energy_reason: str  # why there are no joules, or ""
    mean_batch_size: float | None  # sequences of the batch that a request ran in
    padding_share: float | None  # of the token positions that were computed
    mean_queue_ns: float | None  # of `queue_ns` of the records
    mean_compute_ns: float | None  # of `compute_ns` of the records
    client_cpu_share: float | None  # the highest of its blocks
    client_cpu_us_per_request: float | None  # the client's own CPU time, in microseconds
    ratios: Ratios  # to the baseline under the same load
    generated: GeneratedFigures | None = None  # None of a model that writes no tokens


@dataclass(frozen=True)
class Point:
    """One arm under one load over all its blocks.

    A verdict that spoils the point leaves it without `figures`: what was measured stands in `withheld`, to be
    drawn hollow. One that spoils energy leaves either without a joule, and the reason. A look keeps all.
    """

    arm: str  # what is compared, by its name
    load: str  # how requests were offered, by its name
    blocks: int  # how many blocks ran
    window_seconds: float  # length of the window; of a point: summed over its blocks
    offered_per_second: float | None  # by the schedule; None in a closed loop
    answered: int  # requests answered
    failed: int  # requests that failed
    figures: Figures | None  # what is published; None: a verdict speaks against it
    withheld: Figures | None  # what is not published: to be drawn hollow; None when nothing is withheld
    verdicts: list[Verdict]  # why it must not be published as it is; empty when nothing speaks against it
    proxy: str = ""  # as in its cells
    verified: bool | None = None  # whether the server saw its precision; None when it does not say

    @property
    def shown(self) -> Figures:
        """What may be drawn, if need be hollow."""
        figures = self.figures or self.withheld
        if figures is None:
            raise ValueError(f"{self.arm} under {self.load} has neither figures nor withheld ones")
        return figures

    @property
    def hollow(self) -> bool:
        """Whether it must be drawn hollow, and stand on no line of best points."""
        return any(one.spoils == "point" for one in self.verdicts)


@dataclass(frozen=True)
class Accuracy:
    """Share of rows whose highest logit is at the label, each row counted once."""

    correct: int  # rows answered with the label
    rows: Annotated[int, Meta(ge=1)]  # rows that every arm answered
    low: float  # Wilson's 95 % interval
    high: float  # upper end
    unstable_rows: int  # answered differently at different times
    gained_rows: int | None = None  # right here, wrong in the baseline; None for the baseline
    lost_rows: int | None = None  # wrong here, right in the baseline
    difference: float | None = None  # of the shares, paired on the same rows, with its 95 % interval
    difference_low: float | None = None  # lower end of its 95 % interval
    difference_high: float | None = None  # upper end
    p_value: float | None = None  # McNemar's exact test

    @property
    def share(self) -> float:
        return self.correct / self.rows


@dataclass(frozen=True)
class Perplexity:
    """How well an arm foresees rows that are held out: the quality of a language model."""

    nats_per_token: float  # mean negative log-probability of a token, given those before it
    low: float | None  # lower end of the 95 % interval of that: a bootstrap over the rows; None of one row
    high: float | None  # upper end
    rows: int  # that were scored
    tokens: int  # of those rows that have others before them
    difference: float | None = None  # from the baseline's nats per token, on the same rows; None of itself
    difference_low: float | None = None  # lower end of its 95 % interval, the rows drawn in pairs
    difference_high: float | None = None  # upper end
    energy_uj: int | None = None  # active, of scoring them; None where a receipt is unknown
    energy_reason: str = ""  # why it is unknown, or ""

    @property
    def perplexity(self) -> float:
        return finite_exp(self.nats_per_token)


OUTCOMES = {"met": "held", "broken": "not held", "undecided": "not sure"}  # judgements as people read them


@dataclass(frozen=True)
class Trial:
    """One rate that a search tried."""

    rate_per_second: float  # offered
    achieved_per_second: float | None  # answers
    seconds: float  # how long it was tried
    judgement: str  # met, broken, undecided
    text: str  # the percentiles that decided, or why none could
    answered: int | None = None  # requests that were answered
    effective_samples: float | None = None  # independent answers that they are worth


@dataclass(frozen=True)
class Search:
    """What `--find-max` found for one arm."""

    arm: str  # what is compared, by its name
    objective: str  # such as `p99<50ms`
    rate_per_second: float | None  # the highest rate that held the objective
    broken_per_second: float | None  # the lowest rate above it that was seen not to hold it
    trials: list[Trial]  # in the order in which they ran
    ended: str  # what it found in words, and why it ended; empty where it was interrupted
    undecided_per_second: float | None = None  # a rate between the two that could not be decided

    @property
    def bracket(self) -> str:
        """What it knows: `the highest rate lies between 367/s and 418/s; 401/s could not be decided`."""
        held, lost, open_rate = (
            None if rate is None else f"{rate:.4g}/s"
            for rate in (self.rate_per_second, self.broken_per_second, self.undecided_per_second)
        )
        if held is None:
            text = "no rate held" if lost or open_rate else "no rate was decided"
            text += f"; {lost} did not" if lost else ""
        else:
            text = f"the highest rate {f'lies between {held} and {lost}' if lost else f'is at least {held}'}"
        return f"{text}; {open_rate} could not be decided" if open_rate else text


@dataclass(frozen=True)
class Ceiling:
    """What this client alone can do, against a server that does nothing."""

    requests_per_second: float  # answers of a server that does nothing
    client_cpu_us_per_request: float  # the client's own CPU time, in microseconds
    request_bytes: int  # of a request on the wire
    kind: str  # unary, stream, oip
    processes: int  # of the client
    measured: str  # ISO 8601, UTC


@dataclass(frozen=True)
class Check:
    """One line of `loadgen validate`."""

    name: str  # what was looked at
    passed: bool | None  # None: does not apply
    text: str  # what was found, with its figures
    weak: bool = False  # whether it passed for want of anything that could be told

    @property
    def outcome(self) -> str:
        """`passed`, `weak`, `FAILED` or `does not apply`."""
        if self.passed is None:
            return "does not apply"
        return ("weak" if self.weak else "passed") if self.passed else "FAILED"


@dataclass(frozen=True)
class DatasetSummary:
    """What was replayed."""

    folder: str  # as it was given
    sha256: str  # of the tensors' contents
    rows: int  # rows
    labelled: bool  # whether every row has a label
    min_tokens: int  # an image counts as one
    mean_tokens: float  # tokens of a request
    max_tokens: int  # of the longest row
    description: dict[str, Any]  # dataset.json
    pixel_shape: tuple[int, ...] = ()  # channels, height, width of its images; empty for tokens
    unlabelled_rows: int = 0  # rows without a label, which accuracy leaves out


@dataclass(frozen=True)
class TargetSummary:
    """A server of the sweep."""

    name: str  # unique in the sweep
    address: str  # HOST:PORT
    protocol: str  # native unary, native stream, open inference protocol
    server: dict[str, Any]  # ServerInfo, field by field; of a peer, what could be learnt
    meter: dict[str, Any]  # MeterInfo of the server, or of the meter that loadgen reads itself
    meter_origin: str  # server, loadgen, none


@dataclass(frozen=True)
class Results:
    """results.json."""

    schema: str  # `wattserve-loadgen-results`
    schema_version: int  # changes when a reader would break
    loadgen_version: str  # the version of Wattserve that measured
    created: str  # ISO 8601, UTC
    command: list[str]  # the command line
    ended: str  # "complete", or why it ended early
    cells_planned: int  # without the heat-up block
    plan: Plan  # what was to be done
    dataset: DatasetSummary  # what was replayed
    client: dict[str, Any]  # machine, versions and revision of the client
    targets: list[TargetSummary]  # the servers of the sweep
    boundary: str  # which hardware the joules cover, and whether the client's own are among them
    energy_reason: str  # why there are no joules at all, or ""
    accuracy_reason: str  # why accuracy does not apply, or ""
    accuracy_rows: int  # rows with a label that every arm answered
    accuracy: dict[str, Accuracy]  # by arm; empty where it does not apply
    notes: list[str]  # what a reader should know, in sentences
    # what this client can do against a server that does nothing
    ceilings: list[Ceiling] = field(default_factory=list)
    interruptions: list[str] = field(default_factory=list)  # what happened between cells
    searches: list[Search] = field(default_factory=list)  # what `--find-max` found; empty without it
    held_out: str = ""  # the folder of rows whose perplexity was measured; empty without one
    perplexity: dict[str, Perplexity] = field(default_factory=dict)  # of those rows, by arm
    checks: list[Check] = field(default_factory=list)  # what `loadgen validate` says of it
    points: list[Point] = field(default_factory=list)  # the figures of the report
    cells: list[CellResult] = field(default_factory=list)  # what they were made from

    @property
    def baseline(self) -> str:
        """The arm that ratios are relative to: the first."""
        return self.plan.arms[0].name

    @property
    def server(self) -> dict[str, Any]:
        """ServerInfo of the baseline's server."""
        return self.target_of(self.plan.arms[0]).server

    @property
    def generates(self) -> bool:
        """Whether a language model was measured: its answers are tokens, one after the other."""
        return any(cell.generated is not None for cell in self.cells)

    @property
    def complete(self) -> bool:
        return self.ended == "complete"

    @property
    def main_arms(self) -> list[Arm]:
        """Every arm but the baseline's twin."""
        return [arm for arm in self.plan.arms if not arm.twin_of]

    def target_of(self, arm: Arm) -> TargetSummary:
        return next(one for one in self.targets if one.name == arm.target)

    def about(self, arm: Arm) -> dict[str, Any]:
        """What its server says of the variant; {} when it says nothing."""
        variants: list[dict[str, Any]] = self.target_of(arm).server.get("variants") or []
        return next((one for one in variants if one.get("name") == arm.variant), {})

    def cells_of(self, point: Point) -> list[CellResult]:
        return [cell for cell in self.cells if (cell.arm, cell.load) == (point.arm, point.load)]

    def load(self, name: str) -> Load:
        """The load of that name."""
        return next(load for arm in self.plan.arms for load in self.plan.loads_of(arm) if load.name == name)

    def arm(self, name: str) -> Arm:
        return next(one for one in self.plan.arms if one.name == name)
