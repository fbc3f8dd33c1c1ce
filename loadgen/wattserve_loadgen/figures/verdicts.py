"""The gates: what keeps a point, or its joules, out of print, and why. Each is one rule with its constant.

Pure. A gate that cannot tell (no ceiling measured, no slices, no meter) gives no verdict: the checks "client
ceiling", "steady state" and "closed accounts" of `loadgen validate` say what was not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from wattserve_common.stats import SAMPLE_FLOORS
from wattserve_loadgen import words
from wattserve_loadgen.figures import steady
from wattserve_loadgen.figures.measure import lag_limit_ns
from wattserve_loadgen.figures.slo import ACHIEVED_LIMIT, FAILED_LIMIT
from wattserve_loadgen.figures.steady import JOULES, drift_series
from wattserve_loadgen.model.cells import CellResult, Percentiles
from wattserve_loadgen.model.results import Ceiling, Verdict
from wattserve_loadgen.plan.budget import SPARE
from wattserve_loadgen.plan.load import OFFLINE, RAMP, Load
from wattserve_loadgen.plan.schedule import Plan

POINT, ENERGY = "point", "energy"  # what a verdict spoils

LATE_LIMIT = 0.01  # of the sends
CLIENT_CPU_LIMIT = 0.90  # of a core
CEILING_LIMIT = 0.5  # of what the client can do against a server that does nothing
UNKNOWN_LIMIT = 0.01  # of the receipts of a point
SHARED_LIMIT = 0.05  # of the active joules of a point
LATENCY_MULTIPLES = 5
SENSOR_PERIODS = 100
_CHANCE = 3.0  # standard deviations of what happens to be in flight at a window's edges


@dataclass(frozen=True)
class Evidence:
    """What the gates look at: a point's cells, and what is known about its client and meter."""

    plan: Plan
    load: Load
    cells: Sequence[CellResult]  # at least one
    latency: Percentiles  # pooled, as the two below
    service: Percentiles | None
    lag: Percentiles | None
    sensor_period_seconds: float | None
    ceiling: Ceiling | None

    @property
    def sent(self) -> int:
        return sum(cell.sent for cell in self.cells)

    @property
    def window_seconds(self) -> float:
        return sum(cell.window_seconds for cell in self.cells)

    def per_second(self, figure: Callable[[CellResult], float | None]) -> float | None:
        """A rate over all windows; None when one lacks it."""
        known = [(figure(cell), cell.window_seconds) for cell in self.cells]
        total = [rate * seconds for rate, seconds in known if rate is not None]
        return sum(total) / self.window_seconds if len(total) == len(known) and self.window_seconds else None

    @property
    def offered_per_second(self) -> float | None:
        return self.per_second(lambda cell: cell.offered_per_second)

    @property
    def achieved_per_second(self) -> float | None:
        return self.per_second(lambda cell: cell.rate_per_second)


Gate = Callable[[Evidence], Iterator[Verdict]]


def verdicts_of(evidence: Evidence) -> list[Verdict]:
    """Those that spoil the point, then those that spoil its joules alone."""
    verdicts = [verdict for gate in GATES for verdict in gate(evidence)]
    return sorted(verdicts, key=lambda verdict: verdict.spoils != POINT)


def duration_floor_seconds(plan: Plan, slowest_ns: int, sensor_period_seconds: float | None) -> float:
    """The window that a point needs: 5 x its p99, 100 sensor periods, and the preset's own floor (rule 4)."""
    return max(
        LATENCY_MULTIPLES * slowest_ns / 1e9,
        SENSOR_PERIODS * (sensor_period_seconds or 0.0),
        plan.publish_seconds,
    )


def too_short(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 4. Where there is no p99 the slowest answer stands for it. A look always is: nothing else would
    mark the figures, which it shows whatever their sample.
    """
    p99, slowest = evidence.latency.p99_ns, evidence.latency.max_ns
    floor = duration_floor_seconds(
        evidence.plan, (slowest or 0) if p99 is None else p99, evidence.sensor_period_seconds
    )
    seconds = evidence.window_seconds
    if seconds < floor:
        yield Verdict("too short", f"too short to publish: {seconds:.1f} s of {floor:.0f} s")
    elif not evidence.plan.withholds:
        yield Verdict("too short", "a look is never published: ask for the preset full")


def few_blocks(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 6: blocks are the sample."""
    blocks, fewest = len(evidence.cells), evidence.plan.fewest_blocks
    if blocks < fewest:
        yield Verdict("few blocks", f"{blocks} of at least {fewest} blocks")


def few_samples(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 3: not even a median. An offline load has no latency in the first place."""
    latency = evidence.latency
    if evidence.load.shape != OFFLINE and latency.p50_ns is None and latency.samples:
        worth = "" if latency.effective_samples is None else f", worth {latency.effective_samples:.0f}"
        yield Verdict("few samples", f"too few answers for a median: {latency.samples}{worth}")


def few_requests(evidence: Evidence) -> Iterator[Verdict]:
    """The least count of MLPerf's scenarios, where the plan asks for one."""
    sent, least = evidence.sent, evidence.plan.least_requests
    if sent < least:
        yield Verdict("few requests", f"{sent} of at least {least} requests")


def cut_short(evidence: Evidence) -> Iterator[Verdict]:
    """A cell that ended early did not see what the others saw."""
    stopped = [cell.stopped for cell in evidence.cells if cell.stopped]
    if stopped:
        yield Verdict("cut short", f"{len(stopped)} of its cells ended early: {stopped[0]}")


def failed_cells(evidence: Evidence) -> Iterator[Verdict]:
    """A block without an answer is no block."""
    failed = [cell for cell in evidence.cells if not cell.answered]
    if failed:
        example = f": {failed[0].failure_example}" if failed[0].failure_example else ""
        yield Verdict("failed cells", f"{len(failed)} of its cells got no answer{example}")


def failures(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 10 shows them; above 1 % the answered ones are a selection."""
    failed = sum(cell.failed for cell in evidence.cells)
    if failed > FAILED_LIMIT * evidence.sent:
        yield Verdict("failures", f"{failed} of {evidence.sent} requests failed")


def shared_server(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 12. Who loads a variant beside it sends nothing: its joules are warm-up, and so are those of
    preemptions, which are the point's own.
    """
    foreign = sum(cell.energy.foreign_sequences for cell in evidence.cells)
    active_uj = sum(cell.energy.active_uj or 0 for cell in evidence.cells)
    other_uj = sum((cell.energy.other_active_uj or 0) - _overhead_uj(cell) for cell in evidence.cells)
    if foreign:
        yield Verdict("shared server", f"{foreign} sequences of other clients ran meanwhile")
    elif active_uj and other_uj > SHARED_LIMIT * (active_uj + other_uj):
        share = words.percent(other_uj / (active_uj + other_uj), 0)
        yield Verdict(
            "shared server", f"{share} of its active joules were not its own: a variant was loaded?"
        )


def _overhead_uj(cell: CellResult) -> float:
    """What preemptions cost, of all its requests as of those in its window."""
    each_uj = None if cell.generated is None else cell.generated.overhead_uj_per_request
    return (each_uj or 0.0) * cell.sent


def late_sends(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 2: the client did not keep its schedule."""
    late = sum(cell.late or 0 for cell in evidence.cells)
    if late > LATE_LIMIT * evidence.sent:
        yield Verdict("late sends", f"{late} of {evidence.sent} requests were sent late")


def long_lag(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 2: how far behind its schedule the client was."""
    p99 = None if evidence.lag is None else evidence.lag.p99_ns
    limit = lag_limit_ns(None if evidence.service is None else evidence.service.p50_ns)
    if p99 is not None and p99 > limit:
        text = f"the p99 of the lag behind the schedule is {words.milliseconds(p99)}"
        yield Verdict("lag", f"{text}, above {words.milliseconds(limit)}")


def behind_offer(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 2: achieved / offered. A failed request is done too; and what is in flight at the edges of the
    windows varies by chance, which explains about a square root of Little's law.
    """
    offered, achieved = evidence.offered_per_second, evidence.achieved_per_second
    if not offered or achieved is None:
        return
    seconds = evidence.window_seconds
    missing = offered * seconds - achieved * seconds - sum(cell.failed for cell in evidence.cells)
    in_flight = max(0.0, offered * (evidence.latency.mean_ns or 0.0) / 1e9)  # stamps may run backwards
    chance = max(1.0, _CHANCE * (2 * in_flight * len(evidence.cells)) ** 0.5)
    if missing > max((1 - ACHIEVED_LIMIT) * offered * seconds, chance):
        share = 1 - missing / (offered * seconds)
        text = f"{share * 100:.1f} % of the offered {words.rate(offered)} were done: it did not keep up"
        yield Verdict("behind offer", text)


def client_busy(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 2: a client short of CPU measures itself."""
    busiest = max((cell.client_cpu_share or 0.0 for cell in evidence.cells), default=0.0)
    if busiest > CLIENT_CPU_LIMIT:
        text = f"the client used {busiest * 100:.0f} % of a core: it may be what limits"
        yield Verdict("client busy", text)


def rate_to_send(load: Load, offered: float | None, achieved: float | None) -> float | None:
    """What a load asks of its client, in requests per second: of a ramp its highest rate, of another schedule
    what was `offered` (a recording's mean: its bursts show as late sends), else what was `achieved`.
    """
    if load.shape == RAMP:
        return max(load.rate or 0.0, load.rate_end or 0.0)
    return offered if load.scheduled else achieved


def near_ceiling(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 2: above half of what `loadgen calibrate` found."""
    rate = rate_to_send(evidence.load, evidence.offered_per_second, evidence.achieved_per_second)
    if evidence.ceiling is None or rate is None:
        return
    ceiling = evidence.ceiling.requests_per_second
    if rate > CEILING_LIMIT * ceiling:
        text = f"{words.rate(rate)} is above half of the {words.rate(ceiling)} that this client can send"
        yield Verdict("near ceiling", text)


def drift(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 4: a trend test and a 5 % floor on throughput and the median latency, which spoil the point, and
    on J/request, which spoils the joules.
    """
    for name, blocks in drift_series(evidence.load, evidence.cells):
        spoils = ENERGY if name == JOULES else POINT
        drifted = steady.drift_of(blocks)
        if drifted is not None and drifted.significant:
            share = drifted.share_of_level_over_window
            text = f"{name} {'rose' if share > 0 else 'fell'} by {abs(share) * 100:.0f} % within its windows"
            yield Verdict("drift" if spoils == POINT else "energy drift", text, spoils)


def meter_gap(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 8."""
    gaps = sum(cell.energy.gap_count for cell in evidence.cells)
    seconds = sum(cell.energy.gap_seconds for cell in evidence.cells)
    if gaps or seconds > 0:
        count = f"{gaps} meter gaps" if gaps > 1 else f"{gaps or 'a'} meter gap"
        yield Verdict("meter gap", f"{count} of {seconds:.2f} s fell in its cells", ENERGY)


def energy_unknown(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 8: joules of some answers, or of some blocks, are a selection. Without a meter there are none."""
    blank = [cell.energy.reason for cell in evidence.cells if cell.energy.reason]
    unknown = sum(cell.energy.unknown for cell in evidence.cells)
    answered = sum(cell.answered for cell in evidence.cells)
    if 0 < len(blank) < len(evidence.cells):
        text = f"{len(blank)} of its {len(evidence.cells)} cells have no joules: {blank[0]}"
        yield Verdict("energy unknown", text, ENERGY)
    elif not blank and unknown > UNKNOWN_LIMIT * answered:
        yield Verdict("energy unknown", f"{unknown} of {answered} answers have no settled energy", ENERGY)


def open_accounts(evidence: Evidence) -> Iterator[Verdict]:
    """Rule 9: the ledger is exact, to the microjoule."""
    residuals = [cell.energy.accounts_residual_uj for cell in evidence.cells]
    worst = max((residual for residual in residuals if residual is not None), key=abs, default=0)
    if worst:
        left_over = f"{words.energy(worst)} are left over"
        text = f"the server's accounts do not sum to what its meter measured: {left_over}"
        yield Verdict("open accounts", text, ENERGY)


GATES: tuple[Gate, ...] = (
    too_short,
    few_blocks,
    few_samples,
    few_requests,
    cut_short,
    failed_cells,
    failures,
    shared_server,
    late_sends,
    long_lag,
    behind_offer,
    client_busy,
    near_ceiling,
    drift,
    meter_gap,
    energy_unknown,
    open_accounts,
)


def foreseen(plan: Plan, sensor_period_seconds: float | None, ceilings: Collection[Ceiling]) -> Iterator[str]:
    """The verdicts that a plan cannot but get, in sentences that say what to ask for instead. Nothing of a
    look, which shows its figures all the same, nor of what only the server's answers decide.
    """
    if not plan.withholds:
        return
    withheld = "figures will be withheld"
    window, floor = plan.blocks * plan.seconds, duration_floor_seconds(plan, 0, sensor_period_seconds)
    if window < floor and not plan.least_requests:
        who = f"{plan.preset} needs" if floor == plan.publish_seconds else "the energy sensor needs"
        enough = math.ceil(floor * SPARE / plan.blocks)
        text = f"each point gets {window:g} s of windows, {who} {floor:g} s: {withheld}"
        yield f"{text}; give --seconds {enough}, or --preset look, which shows them all the same"
    if plan.blocks < plan.fewest_blocks:
        text = (
            f"each point gets {words.counted(plan.blocks, 'block')}, {plan.preset} needs {plan.fewest_blocks}"
        )
        yield f"{text}: {withheld}; give --blocks {plan.fewest_blocks}"
    limit = CEILING_LIMIT * min((one.requests_per_second for one in ceilings), default=math.inf)
    for load in plan.loads:
        rate = rate_to_send(load, load.rate, None)
        if rate is not None and rate > limit:
            yield f"{load.name}: its {withheld}: above {words.rate(limit)}, half of what this client can send"
        requests = max(plan.least_requests, (rate or math.inf) * window)
        if requests < SAMPLE_FLOORS[50.0]:
            text = f"{load.name}: its {withheld}: about {requests:.0f} requests, too few for a median"
            yield f"{text}; give --seconds {math.ceil(2 * SAMPLE_FLOORS[50.0] / (rate or 1) / plan.blocks)}"
