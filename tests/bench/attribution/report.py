"""The tables, and which of the issue's goals are met. All of it is Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

import numpy as np

from tests.bench.attribution.metrics import FLOOR, OURS, Result
from tests.bench.attribution.random_worlds import PREFIX
from tests.bench.attribution.scenarios import LAWFUL, Goal, Scenario

COVERED = 90.0
PROVISIONAL = 5.0


def render(scenarios: Sequence[Scenario], results: Sequence[Result]) -> str:
    """Of the results of `scenarios`, in their order."""
    worlds = [result for result in results if result.scenario.startswith(PREFIX)]
    parts = [
        "Errors per request in %: median / p95 / bias of the worst variant (/ idle error, of the bill)",
        "Requests are judged by the receipts' split rule under the true law; *rule*: how far that is from"
        " exact Shapley values (median). *noise floor*: the true law without the noise of each batch.",
        _accuracy_table(results),
        "How ours behaved. Latencies in s and over lag + 3.5 ramp + 1.5 periods; the rest in %, if not said",
        _conduct_table(results),
    ]
    if len(worlds) > 1:
        parts += [f"{len(worlds)} random worlds, ours", _worlds_table(worlds)]
    parts += ["Goals", "\n".join(_goals(scenarios, results, worlds))]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def _short(value: float | None) -> str:
    if value is None or isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}"


def _accuracy_table(results: Sequence[Result]) -> str:
    names = list(results[0].accuracy)
    rows = []
    for result in results:
        row = [result.scenario, str(result.batches), str(result.requests), _short(result.rule)]
        for name in names:
            figures = result.accuracy[name]
            shown = [figures.median, figures.p95, figures.bias]
            shown += [figures.idle] if figures.idle is not None else []
            row.append(" / ".join(map(_short, shown)))
        rows.append(row)
    return _table(["scenario", "batches", "requests", "rule", *names], rows)


def _conduct_table(results: Sequence[Result]) -> str:
    head = [
        "scenario",
        "residual uJ",
        "violations",
        "latency p50 / p95 / max",
        "ratio p95 / max",
        "covered",
        "provisional to settled / truth",
        "unknown",
        "uncharged",
        "warned",
        "unattributed",
        "us/batch",
        "lag, ramp ms",
    ]
    rows = []
    for result in results:
        c = result.conduct
        lag, ramp = (_short(None if s is None else 1000 * s) for s in (c.lag_s, c.ramp_s))
        rows.append(
            [
                result.scenario,
                str(c.residual_uj),
                f"{c.violations} ({c.broken})" if c.violations else "0",
                f"{c.latency_p50:.3f} / {c.latency_p95:.3f} / {c.latency_max:.3f}",
                f"{c.latency_ratio_p95:.2f} / {c.latency_ratio_max:.2f}",
                _short(c.coverage),
                f"{_short(c.provisional_settled)} / {_short(c.provisional_true)}",
                _short(c.unknown),
                _short(c.uncharged),
                _short(c.warned),
                _short(c.unattributed),
                _short(c.cpu_us_per_batch),
                f"{lag}, {ramp}",
            ]
        )
    return _table(head, rows)


_WORLD_FIGURES: dict[str, Callable[[Result], float]] = {
    "median error": lambda result: result.accuracy[OURS].median,
    "p95 error": lambda result: result.accuracy[OURS].p95,
    "bias": lambda result: result.accuracy[OURS].bias,
    "idle error": lambda result: result.accuracy[OURS].idle or 0.0,
    "not covered": lambda result: 100 - result.conduct.coverage,
    "provisional to settled": lambda result: result.conduct.provisional_settled,
    "latency ratio, p95": lambda result: result.conduct.latency_ratio_p95,
    "noise floor, median error": lambda result: result.accuracy[FLOOR].median,
}


def _quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that a part `q` of them do not exceed; a missing figure is the worst."""
    ordered = sorted(np.inf if isnan(value) else value for value in values)
    return ordered[max(0, int(np.ceil(q * len(ordered))) - 1)]


def _worlds_table(worlds: Sequence[Result]) -> str:
    rows = []
    for name, figure in _WORLD_FIGURES.items():
        values = [figure(world) for world in worlds]
        rows.append([name, *(_short(_quantile(values, q)) for q in (0.5, 0.9, 1.0))])
    return _table(["figure, %", "in half", "in 90 %", "worst"], rows)


def _verdict(words: str, checks: Sequence[tuple[str, float, float]]) -> str:
    """checks: what, its value, the most it may be."""
    missed = [check for check in checks if not check[1] <= check[2]]
    shown = ", ".join(f"{what} {value:.3g} (<= {most:g})" for what, value, most in missed or checks)
    return f"- {'missed' if missed else 'met'}: {words}: {shown}"


def _goals(scenarios: Sequence[Scenario], results: Sequence[Result], worlds: Sequence[Result]) -> list[str]:
    lines = []
    for scenario, result in zip(scenarios, results, strict=True):
        if scenario.goal is not None:
            lines.append(_verdict(_whose(scenario), _checks(scenario.goal, result)))
    if worlds:
        lines += _world_goals(worlds)
    broken = [r.scenario for r in results if r.conduct.residual_uj or r.conduct.violations]
    words = f"missed: in {', '.join(broken)}" if broken else f"met: in all {len(results)} runs"
    lines.append(f"- {words}: residual 0 at every tick, nothing negative, nothing charged twice or lost")
    return lines


def _whose(scenario: Scenario) -> str:
    return scenario.name if scenario.goal is LAWFUL else f"{scenario.name} (the prototype's figures)"


def _checks(goal: Goal, result: Result) -> list[tuple[str, float, float]]:
    ours = result.accuracy[OURS]
    checks = [
        ("median", ours.median, goal.median),
        ("p95", ours.p95, goal.p95),
        ("bias", ours.bias, goal.bias),
    ]
    if goal.idle is not None:
        conduct = result.conduct
        checks += [
            ("idle", np.nan if ours.idle is None else ours.idle, goal.idle),
            ("not covered", 100 - conduct.coverage, 100 - COVERED),
            ("provisional to settled", conduct.provisional_settled, PROVISIONAL),
            ("latency ratio p95", conduct.latency_ratio_p95, 1.0),
            ("unknown or uncharged", conduct.unknown + conduct.uncharged, 0.0),
        ]
    return checks


def _world_goals(worlds: Sequence[Result]) -> list[str]:
    def at(name: str, q: float) -> float:
        return _quantile([_WORLD_FIGURES[name](world) for world in worlds], q)

    return [
        _verdict(
            "random worlds, in half of them",
            [
                ("median error", at("median error", 0.5), 8),
                ("bias", at("bias", 0.5), 6),
                ("provisional to settled", at("provisional to settled", 0.5), PROVISIONAL),
            ],
        ),
        _verdict(
            "random worlds, in 90 % of them",
            [
                ("median error", at("median error", 0.9), 15),
                ("bias", at("bias", 0.9), 18),
                ("not covered", at("not covered", 0.9), 100 - COVERED),
                ("latency ratio p95", at("latency ratio, p95", 0.9), 1.0),
            ],
        ),
    ]
