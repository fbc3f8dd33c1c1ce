"""`python -m wattserve_server.telemetry.describe`: docs/metrics.md, from the table of the metrics."""

from __future__ import annotations

from collections.abc import Iterable

from wattserve_server.telemetry import table
from wattserve_server.telemetry.table import MetricSpec, SeriesType

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


def _per(above: MetricSpec | str, below: MetricSpec | str, by: str) -> str:
    """Of two counters: how much of the first for each of the second."""
    return f"sum by ({by}) (rate({above}[5m])) / sum by ({by}) (rate({below}[5m]))"


def _mean(histogram: MetricSpec) -> str:
    return _per(f"{histogram}_sum", f"{histogram}_count", "variant")


def _share(account: str) -> str:
    return _per(f'{table.ACCOUNTS}{{account="{account}"}}', table.MEASURED, "device")


_ERRORS = table.PROVISIONAL_ERROR
_QUERIES = (
    ("Joules per request", _mean(table.REQUEST_ENERGY)),
    ("Joules per token", _per(table.ACTIVE_ENERGY, table.SETTLED_TOKENS, "variant")),
    ("Watts by account", f"sum by (device, account) (rate({table.ACCOUNTS}[5m]))"),
    ("Idle share", _share("idle")),
    ("Unattributed: above idle, with no batch to explain it", _share("unattributed")),
    (
        "Provisional figures off by less than 10 %",
        _per(f'{_ERRORS}_bucket{{le="0.1"}}', f"{_ERRORS}_count", "variant"),
    ),
    ("Age of the last reading", f"time() - {table.LAST_READING}"),
    ("Figures that are not measured", f'{table.METER}{{quality!="measured"}}'),
    (
        "95th percentile of a stage",
        f"histogram_quantile(0.95, sum by (le, variant, stage) (rate({table.STAGE_DURATION}_bucket[5m])))",
    ),
    ("Errors by code", f'sum by (code) (rate({table.REQUESTS}{{code!="OK"}}[5m]))'),
    ("Mean batch", _mean(table.BATCH_SEQUENCES)),
    ("Share of padding", "1 - " + _per(table.TOKENS, table.PADDED_TOKENS, "variant")),
    ("Saturation of the queue", f"{table.QUEUE} / {table.QUEUE_LIMIT}"),
    ("Busy share of a device", f"rate({table.DEVICE_BUSY}[5m])"),
)

_TOKENS = """\
Two counters of tokens: `wattserve_tokens_total` counts what ran, at once; `wattserve_settled_tokens_total`
what has got its energy, moments later, and never what has none. Only the latter belongs under joules.
"""


def document() -> str:
    parts = [_HEAD]
    for section in table.SECTIONS:
        rows = _table(
            ("Metric", "Type", "Unit", "Labels", "Meaning", "Absent"),
            [_row(metric) for metric in section.rows],
        )
        parts.append(f"## {section.heading}\n\n{rows}")
    buckets = [
        (f"`{metric}`", ", ".join(f"{bound:g}" for bound in metric.buckets))
        for metric in table.all_metrics()
        if metric.type is SeriesType.HISTOGRAM
    ]
    parts.append("## Buckets\n\n" + _table(("Histogram", "Upper bounds, in its unit"), buckets))
    queries = "\n".join(f"- {name}: `{query}`" for name, query in _QUERIES)
    parts.append(f"## Queries\n\n{_TOKENS}\n{queries}")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _row(metric: MetricSpec) -> tuple[str, ...]:
    type_ = f"{metric.type.value} with exemplars" if metric.has_exemplars else metric.type.value
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"`{metric}`", type_, metric.unit, labels, metric.meaning, metric.absent or "never"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(document(), end="")
