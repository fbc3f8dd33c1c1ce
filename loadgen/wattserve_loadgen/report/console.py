"""What a sweep says on the console at its end: results in, lines out."""

from __future__ import annotations

from wattserve_common.stats import SAMPLE_FLOORS
from wattserve_common.words import share_of
from wattserve_loadgen import words
from wattserve_loadgen.model.results import Point, Results
from wattserve_loadgen.plan.load import OFFLINE
from wattserve_loadgen.report.facts import energy_sources
from wattserve_loadgen.report.page import marked
from wattserve_loadgen.report.scene import loads_of, point_of, twin_of_baseline
from wattserve_loadgen.report.text import headline, search_sentence, told_codes

_FIGURES = range(2, 9)  # columns of the table


def summary(results: Results) -> list[str]:
    """What searches found, a table of every point, what its columns mean, the headline; [] of nothing."""
    results, _ = marked(results, {})
    rows = [
        _row(results, point)
        for load in loads_of(results)
        for arm in results.plan.arms
        if (point := point_of(results, arm.name, load)) is not None
    ]
    lines = [search_sentence(search) for search in results.searches]
    if rows:
        against = f"against {results.baseline}"
        head = ("load", "variant", "answers/s", "p50", "p99", "J/request", "+ idle", against, "accuracy")
        verdict = "verdict" if any(row[-1] for row in rows) else ""
        lines += words.in_columns([(*head, verdict), *rows], _FIGURES)
        lines += [*_meanings(results), headline(results)]
    return lines


def _row(results: Results, point: Point) -> tuple[str, ...]:
    figures, accuracy = point.figures, results.accuracy.get(point.arm)
    shown = [words.ABSENT] * 6
    if figures is not None:
        rate, ratio = figures.rate_per_second, figures.ratios.active_energy
        shown = [
            words.ABSENT if rate is None else words.significant(rate.mean),
            words.milliseconds(figures.latency.p50_ns),
            words.milliseconds(figures.latency.p99_ns),
            words.mean_energy(figures.active_uj),
            words.mean_energy(figures.idle_uj if figures.active_uj else None),
            f"{words.times(ratio)} {words.bounds(ratio)}".rstrip(),
        ]
        if point.arm == results.baseline and figures.active_uj is not None:
            shown[-1] = "1"
    right = words.percent(None if accuracy is None else accuracy.share)
    return point.load, point.arm, *shown, right, ", ".join(told_codes(results, point, "point", "energy"))


def _meanings(results: Results) -> list[str]:
    """Of the columns that have figures."""
    told = [point.figures for point in results.points if point.figures is not None]
    lines, twin = [], twin_of_baseline(results)
    if any(figures.active_uj is not None for figures in told):
        blocks = words.counted(results.plan.blocks, "block")
        source = energy_sources(results)[0]
        share = share_of(source.get("method", ""), str(source.get("quality")))
        lines.append(f"J/request is active energy, {share}; its ratio has a 95 % interval over {blocks}.")
        lines.append("+ idle is a request's share of what the device draws anyway, beside its J/request.")
        if twin is not None:
            lines.append(
                f"{twin}: {results.baseline} once more. A difference below its own means nothing here."
            )
    timed = [point for point in results.points if point.figures and results.load(point.load).shape != OFFLINE]
    if any(point.shown.latency.p99_ns is None for point in timed):
        lines.append(
            f"p99 {words.ABSENT}: too few independent answers, {SAMPLE_FLOORS[99.0]} are needed (p50:"
            f" {SAMPLE_FLOORS[50.0]})."
        )
    if results.accuracy_reason:
        lines.append(f"accuracy {words.ABSENT}: {results.accuracy_reason}.")
    elif results.dataset.unlabelled_rows:
        lines.append(f"{words.unlabelled(results.dataset.unlabelled_rows, results.dataset.rows)}.")
    return lines
