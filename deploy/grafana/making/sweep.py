"""The dashboard Sweep: precisions side by side while loadgen runs against them."""

from __future__ import annotations

from deploy.grafana.making.panels import (
    ACCOUNTS,
    VARIANT_VALUES,
    dashboard,
    lines,
    marks_of,
    query,
    row,
    table,
    thresholds,
    values_of,
    variant_lines,
)
from deploy.grafana.making.promql import INSTANCE, RANGE, VARIANT, mean, per, quantile, total
from wattserve_server.telemetry import table as metrics

# fmt: off

BASELINE = values_of(
    "baseline", "Baseline", metrics.VARIANT_READY, "The variant that the others are compared with.", "variant"
)
BASELINE |= {"multi": False, "includeAll": False, "current": {"text": "fp32", "value": "fp32"}}
del BASELINE["allValue"]

ANSWERED = f'{VARIANT}, code="OK"'

NOT_A_RESULT = (
    "For watching. What loadgen reports is the result: it measures at the client, interleaves the variants in"
    " blocks, throws the warm-up away and refuses points that it spoiled itself."
)
TURNS = "A sweep asks one variant at a time, so the lines take turns; a gap is another one's turn."


def against_baseline(over: str) -> str:
    """A variant's energy per request against the baseline's: 0 where they are alike."""
    baseline = mean(metrics.REQUEST_ENERGY, f'{INSTANCE}, variant="$baseline"', over=over)
    variant = mean(metrics.REQUEST_ENERGY, VARIANT, "variant", over)
    return f"{variant} / on () group_left () ({baseline} > 0) - 1"


SUMMARY = (
    table("Precisions over the shown time",
        f"Everything that these requests were, warm-up and all loads together. {NOT_A_RESULT}",
        (
            ("requests", "short", f"sum by (variant) (increase({metrics.REQUESTS}{{{ANSWERED}}}[{RANGE}]))"),
            ("latency, median", "s", quantile("0.5", metrics.REQUEST_DURATION, VARIANT, "variant", RANGE)),
            ("latency, 95th percentile", "s",
                quantile("0.95", metrics.REQUEST_DURATION, VARIANT, "variant", RANGE)),
            ("energy per request", "joule", mean(metrics.REQUEST_ENERGY, VARIANT, "variant", RANGE)),
            ("energy against the baseline", "percentunit", against_baseline(RANGE)),
            ("energy per token", "joule",
                per(metrics.ACTIVE_ENERGY, metrics.SETTLED_TOKENS, VARIANT, "variant", RANGE)),
            ("sequences in a batch", "none", mean(metrics.BATCH_SEQUENCES, VARIANT, "variant", RANGE)),
        ),
        ("variant",), height=6),
)

LATENCY = (
    row("Throughput and latency"),
    variant_lines("Answers per second", TURNS, "reqps", total(metrics.REQUESTS, ANSWERED, "variant")),
    variant_lines("Latency, median", f"Inside the server. {TURNS}", "s",
        quantile("0.5", metrics.REQUEST_DURATION, VARIANT, "variant")),
    variant_lines("Latency, 95th percentile", f"Inside the server. {TURNS}", "s",
        quantile("0.95", metrics.REQUEST_DURATION, VARIANT, "variant")),
)

ENERGIES = (
    row("Energy"),
    variant_lines("Energy per request",
        "Settled active energy, without idle draw: a share, apportioned from what the meters counted. Whether"
        " that is measured, estimated or simulated, the dashboard Energy says, which shows idle beside it."
        f" {TURNS}",
        "joule", mean(metrics.REQUEST_ENERGY, VARIANT, "variant")),
    variant_lines("Energy per request, against $baseline",
        "Over the last five minutes, which hold a turn of each variant, at all loads alike. Below zero:"
        " cheaper.",
        "percentunit", against_baseline("5m"), lowest=None, marks=thresholds((0, "text"))),
    variant_lines("Energy per token", f"Settled active energy over real tokens. {TURNS}", "joule",
        per(metrics.ACTIVE_ENERGY, metrics.SETTLED_TOKENS, VARIANT, "variant")),
    lines("Power by account", "Settled energy. In the pauses between the blocks only idle remains.", "watt",
        query(total(metrics.ACCOUNTS, INSTANCE, "account"), "{{account}}"), colours=ACCOUNTS, stacked=True),
    variant_lines("Active power by variant", "Above idle, by the variant whose requests caused it.", "watt",
        total(metrics.ACTIVE_ENERGY, VARIANT, "variant"), stacked=True),
    variant_lines("Sequences in a batch, mean",
        "It follows the load: the same variant at another load has other batches, and another price.", "none",
        mean(metrics.BATCH_SEQUENCES, VARIANT, "variant")),
)

# Series of loadgen's own (--metrics-port): a Prometheus that scrapes it too has them.
CELLS = marks_of("Sweep cells", "wattserve_loadgen_cell_info", "{{arm}} under {{load}}", "block {{block}}")

DASHBOARD = dashboard(
    "Sweep", f"Latency and energy per precision while loadgen runs. {NOT_A_RESULT}",
    [VARIANT_VALUES, BASELINE], (*SUMMARY, *LATENCY, *ENERGIES), since="now-15m", refresh="5s",
    annotations=[CELLS],
)
