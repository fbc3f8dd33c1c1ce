"""The tables of a language model: results in, rows of text out. It knows no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from wattserve_common.stats import Interval
from wattserve_loadgen import words
from wattserve_loadgen.model.results import Perplexity, Results
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.report.boxes import Box, Table, box, percentile_box, signed_bounds, table_of
from wattserve_loadgen.report.scene import point_of


def perplexity_texts(perplexity: Perplexity) -> tuple[str, str]:
    """`4.02`, and its interval, or nothing."""
    ends = (perplexity.low, perplexity.high)
    told = "–".join(words.significant(exp(end)) for end in ends if end is not None)
    return words.significant(perplexity.perplexity), told


def perplexity_table(results: Results) -> Table:
    """Each arm on the rows held out, and paired with the baseline."""
    return table_of(
        [
            {
                "variant": arm,
                "perplexity": Box(*perplexity_texts(one)),
                "nats per token": words.significant(one.nats_per_token, 4),
                "difference": box(
                    None
                    if one.difference is None
                    else Interval(one.difference, one.difference_low, one.difference_high, one.rows),
                    lambda nats: words.signed(nats, 4),
                    lambda interval: signed_bounds(interval, decimals=4),
                ),
                "rows": f"{one.rows:,}",
                "tokens": f"{one.tokens:,}",
                "energy": words.energy(one.energy_uj),
            }
            for arm, one in results.perplexity.items()
        ]
    )


_TIMES_OF_TOKENS = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl"}


def tokens_table(results: Results, loads: Sequence[Load]) -> Table:
    """When the tokens of a language model came, with bounds of 99 % confidence."""
    rows = []
    for arm in results.main_arms:
        for load in loads:
            point = point_of(results, arm.name, load)
            if point is None or point.figures is None or (told := point.figures.generated) is None:
                continue
            row: dict[str, str | Box] = {
                "variant": arm.name,
                "load": load.name,
                "tokens in, out": f"{told.mean_prompt_tokens or 0:.1f}, {told.mean_output_tokens or 0:.1f}",
                **(
                    {"goodput": words.percent(point.figures.goodput_share, 0)}
                    if results.plan.objective
                    else {}
                ),
                "tokens/s": box(told.output_tokens_per_second, words.significant),
            }
            for label, name in _TIMES_OF_TOKENS.items():
                for percentile in ("p50", "p95", "p99"):
                    row[f"{label} {percentile}"] = percentile_box(getattr(told, name), percentile)
            rows.append(row)
    return table_of(rows, numbers_from=2)
