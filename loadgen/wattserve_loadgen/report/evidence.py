"""The tables of what the figures rest on: closure, gates, checks, searches. It knows no HTML."""

from __future__ import annotations

from collections.abc import Sequence

from wattserve_loadgen import words
from wattserve_loadgen.report.tables import Entry, Table
from wattserve_loadgen.results.schema import Ceiling, CellResult, Point, Results

_CLOSURE_COLUMNS = {
    "measured": "measured_uj",
    "active": "active_uj",
    "other variants, warm-up": "other_active_uj",
    "idle": "idle_uj",
    "unattributed": "unattributed_uj",
    "meter gaps": "gap_uj",
    "pending": "pending_uj",
    "measured − sum": "accounts_residual_uj",
    "receipts": "receipts_uj",
    "active − receipts": "receipts_residual_uj",
}
_VALIDITY_COLUMNS = (
    "variant",
    "load",
    "blocks",
    "window",
    "answers",
    "failed",
    "independent samples",
    "lag p99",
    "unknown energy",
    "client CPU",
    "CPU per request",
    "verdict",
)


def closure_table(results: Results) -> Table:
    """The ledger's growth over the cells of each arm, and what the receipts say."""
    rows = []
    for arm in results.plan.arms:
        own = [cell for cell in results.cells if cell.arm == arm.name]
        metered = [cell for cell in own if cell.energy.measured_uj is not None]
        if metered:
            rows.append([Entry(arm.name), *(_summed(metered, name) for name in _CLOSURE_COLUMNS.values())])
    return Table(("cells of", *_CLOSURE_COLUMNS), rows)


def _summed(cells: Sequence[CellResult], account: str) -> Entry:
    known = [value for cell in cells if (value := getattr(cell.energy, account)) is not None]
    return Entry(words.energy(sum(known) if known else None))


def validity_table(results: Results) -> Table:
    """Every point, the twin's too, with what its figures rest on and what the gates say."""
    rows = [[Entry(text) for text in _validity(results, point)] for point in results.points]
    return Table(_VALIDITY_COLUMNS, rows, numbers_from=2, texts_at_end=1)


def _validity(results: Results, point: Point) -> Sequence[str]:
    own = [cell for cell in results.cells if (cell.arm, cell.load) == (point.arm, point.load)]
    figures = point.figures or point.withheld
    effective = figures.latency.effective_samples if figures else None
    late = sum(cell.late for cell in own if cell.late is not None)
    lag = words.milliseconds(figures.lag.p99_ns if figures and figures.lag else None)
    cost = figures.client_cpu_us_per_request if figures else None
    return (
        point.arm,
        point.load,
        f"{point.blocks} of {results.plan.blocks}",
        f"{point.window_seconds:.1f} s",
        f"{point.answered:,}",
        f"{point.failed:,}",
        words.ABSENT if effective is None else f"≈ {effective:,.0f}",
        f"{lag}, {late:,} late" if late else lag,
        "all" if results.energy_reason else f"{sum(cell.energy.unknown for cell in own):,}",
        words.percent(figures.client_cpu_share if figures else None, 0),
        words.ABSENT if cost is None else f"{words.significant(cost)} µs",
        "; ".join(verdict.text for verdict in point.verdicts) or "passed",
    )


def gates_table(results: Results) -> Table:
    """Every gate that a point failed, with the points that did; what is not listed was passed by all."""
    codes = list(dict.fromkeys(one.code for point in results.points for one in point.verdicts))
    rows = []
    for code in codes:
        failed = [point for point in results.points if any(one.code == code for one in point.verdicts)]
        spoils = next(one.spoils for one in failed[0].verdicts if one.code == code)
        names = "; ".join(f"{point.arm}, {point.load}" for point in failed)
        figures = "all its figures" if spoils == "point" else "its joules"
        rows.append(
            [Entry(code), Entry(f"{len(failed)} of {len(results.points)}"), Entry(figures), Entry(names)]
        )
    return Table(("gate", "points that failed", "spoils", "which"), rows, numbers_from=9)


def checks_table(results: Results) -> Table:
    """The checklist of `loadgen validate`."""
    said = {True: "passed", False: "FAILED", None: "does not apply"}
    rows = [[Entry(check.name), Entry(said[check.passed]), Entry(check.text)] for check in results.checks]
    return Table(("check", "result", "what was seen"), rows, numbers_from=9)


def trials_table(results: Results) -> Table:
    """Every rate that a search tried, in the order in which it did."""
    rows = [
        [
            Entry(search.arm),
            Entry(search.objective),
            Entry(words.rate(trial.rate_per_second)),
            Entry(words.rate(trial.achieved_per_second)),
            Entry(f"{trial.seconds:.1f} s"),
            Entry(trial.judgement),
            Entry(trial.text),
        ]
        for search in results.searches
        for trial in search.trials
    ]
    return Table(
        ("variant", "objective", "offered", "achieved", "for", "judgement", "what decided"),
        rows,
        numbers_from=2,
        texts_at_end=2,
    )


def ceiling_sentence(ceiling: Ceiling) -> str:
    """`4,000/s by unary requests of 600 bytes with 1 process, at 200 µs of CPU each (measured 2026-11-20)`"""
    cost = words.significant(ceiling.client_cpu_us_per_request)
    processes = "1 process" if ceiling.processes == 1 else f"{ceiling.processes} processes"
    return (
        f"{words.rate(ceiling.requests_per_second)} by {ceiling.kind} requests of"
        f" {ceiling.request_bytes:,} bytes with {processes}, at {cost} µs of CPU each"
        f" (measured {ceiling.measured[:10]})"
    )
