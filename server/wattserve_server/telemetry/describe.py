"""`python -m wattserve_server.telemetry.describe`: docs/metrics.md, from the declarations of the metrics."""

from __future__ import annotations

from wattserve_server.telemetry import declared_events, declared_state
from wattserve_server.telemetry.declaration import Declared, Kind

GROUPS = {**declared_events.GROUPS, **declared_state.GROUPS}

_HEAD = """\
# Metrics

<!-- Made by `python -m wattserve_server.telemetry.describe > docs/metrics.md`; a test compares. -->

`wattserve serve` answers `GET /metrics` on `--metrics-port` (9464), as plain text or, to a scraper that asks
for it as Prometheus does, as OpenMetrics with exemplars: the last request of a bucket, by `receipt_id`, which
`GetReceipt` takes, and by its `request_id`, where that has at most 64 of the characters `A-Za-z0-9._:/@+=-`.

Names, types, units and labels do not change within a major version; new ones may come. Values of labels come
from this server's variants, devices and methods, never from what a caller writes, so that their number is
bounded. What is not known has no series: nothing here is 0 for want of a figure. What is said of the model,
the variants, the queue, the devices and their meters is there once the server is ready.
Beside these there are Python's own `process_*` and `python_info`.
"""

_QUERIES = (
    (
        "Joules per request",
        "sum by (variant) (rate(wattserve_request_energy_joules_sum[5m]))"
        " / sum by (variant) (rate(wattserve_request_energy_joules_count[5m]))",
    ),
    (
        "Joules per token",
        "sum by (variant) (rate(wattserve_energy_active_joules_total[5m]))"
        " / sum by (variant) (rate(wattserve_settled_tokens_total[5m]))",
    ),
    ("Watts by account", "sum by (device, account) (rate(wattserve_energy_account_joules_total[5m]))"),
    (
        "Idle share",
        'sum by (device) (rate(wattserve_energy_account_joules_total{account="idle"}[5m]))'
        " / sum by (device) (rate(wattserve_energy_measured_joules_total[5m]))",
    ),
    (
        "Unattributed: above idle, with no batch to explain it",
        'sum by (device) (rate(wattserve_energy_account_joules_total{account="unattributed"}[5m]))'
        " / sum by (device) (rate(wattserve_energy_measured_joules_total[5m]))",
    ),
    (
        "Provisional figures off by less than 10 %",
        'sum by (variant) (rate(wattserve_provisional_error_ratio_bucket{le="0.1"}[5m]))'
        " / sum by (variant) (rate(wattserve_provisional_error_ratio_count[5m]))",
    ),
    ("Age of the last reading", "time() - wattserve_meter_last_reading_timestamp_seconds"),
    ("Figures that are not measured", 'wattserve_meter_info{quality!="measured"}'),
    (
        "95th percentile of a stage",
        "histogram_quantile(0.95, sum by (le, variant, stage)"
        " (rate(wattserve_stage_duration_seconds_bucket[5m])))",
    ),
    ("Errors by code", 'sum by (code) (rate(wattserve_requests_total{code!="OK"}[5m]))'),
    (
        "Mean batch",
        "sum by (variant) (rate(wattserve_batch_sequences_sum[5m]))"
        " / sum by (variant) (rate(wattserve_batch_sequences_count[5m]))",
    ),
    (
        "Share of padding",
        "1 - sum by (variant) (rate(wattserve_tokens_total[5m]))"
        " / sum by (variant) (rate(wattserve_padded_tokens_total[5m]))",
    ),
    ("Saturation of the queue", "wattserve_queue_sequences / wattserve_queue_limit_sequences"),
    ("Busy share of a device", "rate(wattserve_device_busy_seconds_total[5m])"),
)

_TOKENS = """\
Two counters of tokens: `wattserve_tokens_total` counts what ran, at once; `wattserve_settled_tokens_total`
what has got its energy, moments later, and never what has none. Only the latter belongs under joules.
"""


def document() -> str:
    parts = [_HEAD]
    for group, metrics in GROUPS.items():
        parts.append(f"## {group}\n\n" + _table([_row(each) for each in metrics]))
    buckets = [
        ("`" + each.name + "`", ", ".join(f"{bound:g}" for bound in each.buckets))
        for metrics in GROUPS.values()
        for each in metrics
        if each.kind is Kind.HISTOGRAM
    ]
    parts.append("## Buckets\n\n" + _table([("Histogram", "Upper bounds, in its unit"), *buckets], False))
    parts.append(
        "## Queries\n\n" + _TOKENS + "\n" + "\n".join(f"- {name}: `{query}`" for name, query in _QUERIES)
    )
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _row(each: Declared) -> tuple[str, ...]:
    kind = f"{each.kind.value} with exemplars" if each.has_exemplars else each.kind.value
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"`{each.name}`", kind, each.unit, labels, each.meaning, each.absent or "never"


def _table(rows: list[tuple[str, ...]], has_metrics: bool = True) -> str:
    if has_metrics:
        rows = [("Metric", "Type", "Unit", "Labels", "Meaning", "Absent"), *rows]
    head, *others = rows
    lines = [head, ("---",) * len(head), *others]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(document(), end="")
