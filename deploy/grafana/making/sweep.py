"""The dashboard Sweep: precisions side by side while loadgen runs against them."""

from __future__ import annotations

from deploy.grafana.making.expressions import (
    INSTANCE,
    INTERVAL,
    RANGE,
    VARIANT,
    mean,
    per,
    quantile,
    total,
)
from deploy.grafana.making.panels import ACCOUNTS, VARIANTS, lines, query, table, thresholds
from deploy.grafana.making.parts import VARIANTS as VARIANT_VARIABLE
from deploy.grafana.making.parts import dashboard, row, values_of

REQUESTS = "wattserve_requests_total"
DURATION = "wattserve_request_duration_seconds"
ENERGY = "wattserve_request_energy_joules"
ACTIVE = "wattserve_energy_active_joules_total"
TOKENS = "wattserve_settled_tokens_total"
BATCH = "wattserve_batch_sequences"
ACCOUNT = "wattserve_energy_account_joules_total"

BASELINE_VALUES = values_of(
    "baseline",
    "Baseline",
    'label_values(wattserve_variant_ready{instance=~"$instance"}, variant)',
    "The variant that the others are compared with.",
)
BASELINE = {
    **BASELINE_VALUES,
    "multi": False,
    "includeAll": False,
    "current": {"text": "fp32", "value": "fp32"},
}
del BASELINE["allValue"]

NOT_A_RESULT = (
    "For watching. What loadgen reports is the result: it measures at the client, interleaves the variants in"
    " blocks, throws the warm-up away and refuses points that it spoiled itself."
)
TURNS = "A sweep asks one variant at a time, so the lines take turns; a gap is another one's turn."


def against_baseline(by_variant: str, of_baseline: str) -> str:
    return f"{by_variant} / on () group_left () ({of_baseline} > 0) - 1"


def baseline(over: str) -> str:
    within = f'{INSTANCE}, variant="$baseline"'
    return mean(ENERGY, within, over=over)


SUMMARY = (
    table(
        "Precisions over the shown time",
        f"Everything that these requests were, warm-up and all loads together. {NOT_A_RESULT}",
        (
            (
                "requests",
                "short",
                f'sum by (variant) (increase({REQUESTS}{{{VARIANT}, code="OK"}}[{RANGE}]))',
            ),
            ("latency, median", "s", quantile("0.5", DURATION, VARIANT, "variant", RANGE)),
            ("latency, 95th percentile", "s", quantile("0.95", DURATION, VARIANT, "variant", RANGE)),
            ("energy per request", "joule", mean(ENERGY, VARIANT, "variant", RANGE)),
            (
                "energy against the baseline",
                "percentunit",
                against_baseline(mean(ENERGY, VARIANT, "variant", RANGE), baseline(RANGE)),
            ),
            ("energy per token", "joule", per(ACTIVE, TOKENS, VARIANT, "variant", RANGE)),
            ("sequences in a batch", "none", mean(BATCH, VARIANT, "variant", RANGE)),
        ),
        ("variant",),
        height=6,
    ),
)

LATENCY = (
    row("Throughput and latency"),
    lines(
        "Answers per second",
        TURNS,
        "reqps",
        query(
            f'sum by (variant) (rate({REQUESTS}{{{VARIANT}, code="OK"}}[{INTERVAL}]))',
            "{{variant}}",
        ),
        colours=VARIANTS,
    ),
    lines(
        "Latency, median",
        f"Inside the server. {TURNS}",
        "s",
        query(quantile("0.5", DURATION, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
    ),
    lines(
        "Latency, 95th percentile",
        f"Inside the server. {TURNS}",
        "s",
        query(quantile("0.95", DURATION, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
    ),
)

ENERGIES = (
    row("Energy"),
    lines(
        "Energy per request",
        f"Settled active energy; whether measured, estimated or simulated, the dashboard Energy says."
        f" {TURNS}",
        "joule",
        query(mean(ENERGY, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
    ),
    lines(
        "Energy per request, against $baseline",
        "Over the last five minutes, which hold a turn of each variant, at all loads alike. Below zero:"
        " cheaper.",
        "percentunit",
        query(
            against_baseline(mean(ENERGY, VARIANT, "variant", "5m"), baseline("5m")),
            "{{variant}}",
        ),
        colours=VARIANTS,
        lowest=None,
        marks=thresholds((0, "text")),
    ),
    lines(
        "Energy per token",
        f"Settled active energy over real tokens. {TURNS}",
        "joule",
        query(per(ACTIVE, TOKENS, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
    ),
    lines(
        "Power by account",
        "Settled energy. In the pauses between the blocks only idle remains.",
        "watt",
        query(total(ACCOUNT, INSTANCE, "account"), "{{account}}"),
        colours=ACCOUNTS,
        stacked=True,
    ),
    lines(
        "Active power by variant",
        "Above idle, by the variant whose requests caused it.",
        "watt",
        query(total(ACTIVE, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
        stacked=True,
    ),
    lines(
        "Sequences in a batch, mean",
        "It follows the load: the same variant at another load has other batches, and another price.",
        "none",
        query(mean(BATCH, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
    ),
)

DASHBOARD = dashboard(
    "Sweep",
    f"Latency and energy per precision while loadgen runs. {NOT_A_RESULT}",
    [VARIANT_VARIABLE, BASELINE],
    (*SUMMARY, *LATENCY, *ENERGIES),
    since="now-15m",
    refresh="5s",
)
