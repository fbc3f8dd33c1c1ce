"""What a sweep says on the console at its end: results in, lines out."""

from __future__ import annotations

from wattserve_common.stats import SAMPLE_FLOORS
from wattserve_common.words import share_of
from wattserve_loadgen import words
from wattserve_loadgen.model.results import Figures, Point, Results
from wattserve_loadgen.plan.load import OFFLINE
from wattserve_loadgen.report.facts import energy_sources
from wattserve_loadgen.report.page import marked
from wattserve_loadgen.report.scene import loads_of, point_of, twin_of_baseline
from wattserve_loadgen.report.text import blocks_of, headline, search_sentence, told_codes

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
        if results.generates:
            times = ("tokens/s", "TTFT p50", "TPOT p50")
            head = ("load", "variant", *times, "J/token", "+ idle", against, "perplexity")
        verdict = "verdict" if any(row[-1] for row in rows) else ""
        lines += words.in_columns([(*head, verdict), *rows], _FIGURES)
        lines += [*_meanings(results), headline(results)]
    return lines


def _row(results: Results, point: Point) -> tuple[str, ...]:
    figures, accuracy = point.figures, results.accuracy.get(point.arm)
    shown = [words.ABSENT] * 6
    if figures is not None:
        ratio = figures.ratios.token_energy if results.generates else figures.ratios.active_energy
        shown = [*_measured(figures), f"{words.times(ratio)} {words.bounds(ratio)}".rstrip()]
        if point.arm == results.baseline and figures.active_uj is not None:
            shown[-1] = "1"
    quality = words.percent(None if accuracy is None else accuracy.share)
    if (perplexity := results.perplexity.get(point.arm)) is not None:
        quality = words.significant(perplexity.perplexity)
    return point.load, point.arm, *shown, quality, ", ".join(told_codes(results, point, "point", "energy"))


def _measured(figures: Figures) -> list[str]:
    """The five columns from the rate to the idle share."""
    rate, energy = figures.rate_per_second, figures.active_uj
    first, second = figures.latency.p50_ns, figures.latency.p99_ns
    idle = words.energy(figures.idle_uj.mean) if energy and figures.idle_uj else words.ABSENT
    if (told := figures.generated) is not None:
        rate, energy = told.output_tokens_per_second, told.active_uj_per_output_token
        first, second = told.ttft.p50_ns, told.tpot.p50_ns
        if figures.idle_uj and energy and told.mean_output_tokens:
            idle = words.energy(figures.idle_uj.mean / told.mean_output_tokens)
    return [
        words.ABSENT if rate is None else words.significant(rate.mean),
        words.milliseconds(first),
        words.milliseconds(second),
        words.mean_energy(energy),
        idle,
    ]


def _meanings(results: Results) -> list[str]:
    """Of the columns that have figures."""
    told = [point.figures for point in results.points if point.figures is not None]
    lines, twin = [], twin_of_baseline(results)
    if any(figures.active_uj is not None for figures in told):
        source = energy_sources(results)[0]
        share = share_of(source.get("method", ""), str(source.get("quality")))
        what = "token" if results.generates else "request"
        lines.append(
            f"J/{what} is active energy, {share}; its ratio has a 95 % interval over {blocks_of(results)}."
        )
        lines.append(f"+ idle is a {what}'s share of what the device draws anyway, beside its J/{what}.")
        if twin is not None:
            lines.append(
                f"{twin}: {results.baseline} once more. A difference below its own means nothing here."
            )
    timed = [point for point in results.points if point.figures and results.load(point.load).shape != OFFLINE]
    if results.generates:
        lines.append(
            "TTFT is the time to the first token, TPOT that of each token behind it. J/token counts output"
            " tokens, with what their prompts cost."
        )
    elif any(point.shown.latency.p99_ns is None for point in timed):
        lines.append(
            f"p99 {words.ABSENT}: too few independent answers, {SAMPLE_FLOORS[99.0]} are needed (p50:"
            f" {SAMPLE_FLOORS[50.0]})."
        )
    if results.generates:
        lines.append(
            f"perplexity is of the rows of {results.held_out}."
            if results.perplexity
            else f"perplexity {words.ABSENT}: no rows were held out (--held-out)."
        )
    elif results.accuracy_reason:
        lines.append(f"accuracy {words.ABSENT}: {results.accuracy_reason}.")
    elif results.dataset.unlabelled_rows:
        lines.append(f"{words.unlabelled(results.dataset.unlabelled_rows, results.dataset.rows)}.")
    return lines
