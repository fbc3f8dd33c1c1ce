"""The tables, and which of the issue's goals are met. All of it is Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan, log

import numpy as np

from tests.bench.attribution.metrics import FLOOR, OURS, Result
from tests.bench.attribution.newcomer import FIRST, KNOWN_AFTER_S
from tests.bench.attribution.random_worlds import PREFIX
from tests.bench.attribution.scenarios import LAWFUL, Goal, Scenario

COVERED = 90.0
PROVISIONAL = 5.0

RECEIPTS = (
    "What receipts said, in % of the requests or of the truth: the middle seed, and in brackets the worst."
    " *withheld*: without a figure. *median*, *p95*: of the error, which is 100 where a figure is withheld or"
    " its interval has no end. *bias*: of the worst variant. *covered*: the truth in the 95 % interval."
    " *half-width*: of that interval, median. *unattributed*: of the bill."
)

NEWCOMERS = (
    f"A variant that is loaded: sums of receipts over sums of truth, of its first {FIRST} receipts with a"
    " figure and of its *neighbours* since the loading began. *withheld*: of its receipts"
    f" {KNOWN_AFTER_S:g} s later, in %. *falsely warned*: of the neighbours and of its own by then, in %."
)


def render(scenarios: Sequence[Scenario], results: Sequence[Result]) -> str:
    """Of the results of `scenarios`, in their order."""
    worlds = [result for result in results if result.scenario.startswith(PREFIX)]
    by_name = _by_name(results)
    firsts = [same[0] for same in by_name.values()]
    parts = [
        RECEIPTS,
        _receipts_table(by_name),
        *_newcomers(by_name),
        f"Seed {firsts[0].seed}, beside other ways. Errors per request in %: median / p95 / bias of the worst"
        " variant (/ idle error, of the bill)",
        "Requests are judged by the receipts' split rule under the true law; *rule*: how far that is from"
        " exact Shapley values (median). *noise floor*: the true law without the noise of each batch.",
        _accuracy_table(firsts),
        f"How ours behaved with seed {firsts[0].seed}. Latencies in s and over lag + 3.5 ramp + 1.5 periods;"
        " the rest in %, if not said",
        _conduct_table(firsts),
    ]
    if len(worlds) > 1:
        parts += [f"{len(worlds)} random worlds, ours", _worlds_table(worlds)]
    goals = {scenario.name: scenario.goal for scenario in scenarios if scenario.goal is not None}
    parts += ["Goals, of the middle seed", "\n".join(_goals(goals, by_name, worlds))]
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


def _by_name(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Each world's results, one of each seed."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.scenario, []).append(result)
    return found


def _of_seeds(values: Sequence[float], is_good: bool = False) -> str:
    """The middle one, and the worst of several in brackets. is_good: the more the better."""
    ordered = sorted((value for value in values if not isnan(value)), reverse=is_good)
    if not ordered:
        return "-"
    middle = _short(ordered[(len(ordered) - 1) // 2])
    return f"{middle} ({_short(ordered[-1])})" if len(ordered) > 1 else middle


def _receipts_table(by_name: Mapping[str, Sequence[Result]]) -> str:
    head = [
        "world",
        "requests",
        "withheld",
        "warned",
        "median",
        "p95",
        "bias",
        "covered",
        "half-width",
        "unattributed",
        "CPU s",
    ]
    rows = []
    for name, same in by_name.items():
        for span in same[0].receipts:
            told = [result.receipts[span] for result in same]
            rows.append(
                [
                    f"... {span}" if span else name,
                    str(told[0].requests),
                    _of_seeds([r.withheld for r in told]),
                    _of_seeds([r.warned for r in told]),
                    _of_seeds([r.median for r in told]),
                    _of_seeds([r.p95 for r in told]),
                    _of_seeds([r.bias for r in told]),
                    _of_seeds([r.covered for r in told], is_good=True),
                    _of_seeds([r.half_width for r in told]),
                    "" if span else _of_seeds([result.conduct.unattributed for result in same]),
                    "" if span else _short(sum(result.cpu_s for result in same) / len(same)),
                ]
            )
    return _table(head, rows)


def _newcomers(by_name: Mapping[str, Sequence[Result]]) -> list[str]:
    """What became of variants that were loaded; nothing where none was."""
    head = ["world", "first over truth", "first over later", "withheld", "neighbours over truth"]
    head += ["neighbours' p95", "falsely warned"]
    rows = []
    for name, same in by_name.items():
        told = [result.newcomer for result in same if result.newcomer is not None]
        if told:
            ratios = [
                _ratios([newcomer.first_over_true for newcomer in told]),
                _ratios([newcomer.first_over_later for newcomer in told]),
                _of_seeds([newcomer.withheld for newcomer in told]),
                _ratios([newcomer.neighbours_over_true for newcomer in told]),
                _of_seeds([newcomer.neighbours_p95 for newcomer in told]),
                _of_seeds([newcomer.falsely_warned for newcomer in told]),
            ]
            rows.append([name, *ratios])
    return [NEWCOMERS, _table(head, rows)] if rows else []


def _ratios(values: Sequence[float]) -> str:
    """The middle one, and in brackets the one that is furthest from 1."""
    ordered = sorted((value for value in values if not isnan(value)), key=lambda value: abs(log(value)))
    if not ordered:
        return "-"
    middle = f"{ordered[(len(ordered) - 1) // 2]:.3f}"
    return f"{middle} ({ordered[-1]:.3f})" if len(ordered) > 1 else middle


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
        "provisional to settled / truth",
        "uncharged",
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
                f"{_short(c.provisional_settled)} / {_short(c.provisional_true)}",
                _short(c.uncharged),
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
    "not covered": lambda result: 100 - result.receipts[""].covered,
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


def _goals(
    goals: Mapping[str, Goal], by_name: Mapping[str, Sequence[Result]], worlds: Sequence[Result]
) -> list[str]:
    lines = []
    for name, goal in goals.items():
        whose = name if goal is LAWFUL else f"{name} (the prototype's figures)"
        several = [_checks(goal, result) for result in by_name[name]]
        middle = [
            (what, _quantile([checks[i][1] for checks in several], 0.5), most)
            for i, (what, _, most) in enumerate(several[0])
        ]
        lines.append(_verdict(whose, middle))
    if worlds:
        lines += _world_goals(worlds)
    results = [result for same in by_name.values() for result in same]
    broken = sorted({r.scenario for r in results if r.conduct.residual_uj or r.conduct.violations})
    words = f"missed: in {', '.join(broken)}" if broken else f"met: in all {len(results)} runs"
    lines.append(f"- {words}: residual 0 at every tick, nothing negative, nothing charged twice or lost")
    return lines


def _checks(goal: Goal, result: Result) -> list[tuple[str, float, float]]:
    ours = result.accuracy[OURS]
    checks = [
        ("median", ours.median, goal.median),
        ("p95", ours.p95, goal.p95),
        ("bias", ours.bias, goal.bias),
    ]
    if goal.idle is not None:
        conduct, receipts = result.conduct, result.receipts[""]
        checks += [
            ("idle", np.nan if ours.idle is None else ours.idle, goal.idle),
            ("not covered", 100 - receipts.covered, 100 - COVERED),
            ("provisional to settled", conduct.provisional_settled, PROVISIONAL),
            ("latency ratio p95", conduct.latency_ratio_p95, 1.0),
            ("withheld", receipts.withheld, 0.0),
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
