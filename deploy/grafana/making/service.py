"""The dashboard Service: is it answering, how fast, and what do requests wait for."""

from __future__ import annotations

from deploy.grafana.making.panels import (
    DEVICES,
    RED,
    STAGES,
    VARIANT_VALUES,
    YELLOW,
    Json,
    dashboard,
    heatmap,
    lines,
    query,
    row,
    stat,
    thresholds,
    variant_lines,
)
from deploy.grafana.making.promql import (
    CALLERS,
    DEVICE,
    INSTANCE,
    INTERVAL,
    QUEUE_SHARE,
    VARIANT,
    mean,
    now,
    per,
    quantile,
    ratio,
    total,
)
from wattserve_server.telemetry import table as metrics

# fmt: off

BUCKETS_NOTE = "Read off a histogram, so exact to the width of its buckets (docs/metrics.md)."
BY_SERVER = f'{VARIANT}, code!~"{CALLERS}"'
FAILED = ratio(f"({total(metrics.REQUESTS, BY_SERVER)} or vector(0))", total(metrics.REQUESTS, VARIANT))

PERCENTILES = ("0.5", "0.9", "0.95", "0.99")
PERCENTILE: Json = {
    "name": "percentile",
    "label": "Percentile",
    "description": "Of the latencies. 0.99 needs some 700 requests in the interval to mean anything.",
    "type": "custom",
    "query": ",".join(PERCENTILES),
    "multi": False,
    "includeAll": False,
    "current": {"text": "0.95", "value": "0.95"},
    "options": [{"text": share, "value": share, "selected": share == "0.95"} for share in PERCENTILES],
}

OVERVIEW = (
    stat("Requests per second", "Requests that ended, well or not; of a stream each one.", "reqps",
        query(total(metrics.REQUESTS, VARIANT), "requests")),
    stat("Failed, of all requests",
        "By the server's doing: refused for want of room, expired in the queue, internal errors. Not what"
        " callers got wrong, and not what they cancelled. The alerts WattserveErrors and WattserveRefusing"
        " watch this.",
        "percentunit", query(FAILED, "failed"),
        marks=thresholds((0.001, YELLOW), (0.01, RED)), decimals=2),
    stat("Latency, percentile $percentile",
        f"From receiving a request to having its answer, over the chosen variants together. {BUCKETS_NOTE}",
        "s", query(quantile("$percentile", metrics.REQUEST_DURATION, VARIANT), "latency")),
    stat("Queue, of its limit", "The fullest queue of the chosen servers. At 100 % requests are refused.",
        "percentunit", query(now(QUEUE_SHARE, INSTANCE, how="max"), "queue"),
        marks=thresholds((0.5, YELLOW), (0.8, RED)), decimals=1),
    stat("Busiest device",
        "Share of the time in which it ran batches. Near 100 % more load only makes requests wait.",
        "percentunit", query(f"max(rate({metrics.DEVICE_BUSY}{{{DEVICE}}}[{INTERVAL}]))", "busy"),
        marks=thresholds((0.8, YELLOW), (0.95, RED)), decimals=1),
    stat("Calls in progress", "gRPC calls that have started and not ended; an open stream is one.", "none",
        query(f"{now(metrics.CALLS_STARTED, INSTANCE)} - {now(metrics.CALLS_HANDLED, INSTANCE)}", "calls"),
        decimals=0),
)

RATE = (
    row("Rate and errors"),
    variant_lines("Requests by variant",
        "Requests that ended, whatever their code. `none`: they named no variant that exists.", "reqps",
        total(metrics.REQUESTS, VARIANT, "variant"), stacked=True),
    lines("Errors by code",
        "Requests that ended otherwise than well, the callers' own mistakes included. Empty while there are"
        " none: a code has no series before its first error.", "reqps",
        query(total(metrics.REQUESTS, f'{VARIANT}, code!="OK"', "code"), "{{code}}"), stacked=True),
    lines("gRPC calls by method",
        "All methods, those of the Open Inference Protocol too; a whole stream is one call, counted at its"
        " end.",
        "reqps", query(total(metrics.CALLS_HANDLED, INSTANCE, "grpc_method"), "{{grpc_method}}")),
)

LATENCY = (
    row("Latency"),
    variant_lines("Latency by variant, percentile $percentile",
        f"Answered requests only, inside the server: the network is not in it. {BUCKETS_NOTE}", "s",
        quantile("$percentile", metrics.REQUEST_DURATION, VARIANT, "variant"), exemplar=True),
    heatmap("Latency, distribution",
        "How many answered requests took how long. Two bands mean two kinds of requests, which a percentile"
        " hides. An exemplar names a request by its receipt_id.",
        metrics.REQUEST_DURATION, "s", exemplar=True),
    lines("Stages, percentile $percentile",
        f"Over the chosen variants together. Percentiles do not add up; the means below do. {BUCKETS_NOTE}",
        "s", query(quantile("$percentile", metrics.STAGE_DURATION, VARIANT, "stage"), "{{stage}}"),
        colours=STAGES),
    row("Where the time goes, by variant"),
    lines("Mean time by stage: $variant",
        "The stages of a request sum to its latency, except for reading it and for a wait for settled"
        " energy.", "s", query(mean(metrics.STAGE_DURATION, VARIANT, "stage"), "{{stage}}"),
        colours=STAGES, stacked=True, width=24)
    | {"repeat": "variant", "repeatDirection": "h", "maxPerRow": 3},
)

BATCHES = (
    row("Queue and batches"),
    lines("Sequences that wait",
        "In the queues of all devices, when Prometheus looked; what comes and goes between two looks is not"
        " seen. The time in the queue, to the right, misses nothing.", "none",
        query(now(metrics.QUEUE, INSTANCE, "instance"), "{{instance}}")),
    variant_lines("Time in the queue, percentile $percentile",
        f"From being admitted to the start of the batch. {BUCKETS_NOTE}", "s",
        quantile("$percentile", metrics.STAGE_DURATION, f'{VARIANT}, stage="queue"', "variant")),
    lines("Busy share of devices", "Share of the time in which the device ran batches, warm-up included.",
        "percentunit", query(total(metrics.DEVICE_BUSY, DEVICE, "instance, device"), "{{device}} on"
        " {{instance}}"),
        highest=1),
    variant_lines("Sequences in a batch, mean",
        "Larger batches cost less energy per request and make it wait longer.", "none",
        mean(metrics.BATCH_SEQUENCES, VARIANT, "variant")),
    heatmap("Sequences in a batch, distribution", "How many batches had how many sequences.",
        metrics.BATCH_SEQUENCES, "none"),
    variant_lines("Padding, of all computed tokens",
        "Tokens that were computed only because a batch is a rectangle. They cost energy like any other.",
        "percentunit", "1 - " + per(metrics.TOKENS, metrics.PADDED_TOKENS, VARIANT, "variant"), highest=1),
    variant_lines("Answers of NaN or infinity, of all sequences",
        "Their callers were told so as an error. Above zero: the precision overflows on this model or these"
        " inputs.",
        "percentunit", per(metrics.NOT_FINITE, f"{metrics.BATCH_SEQUENCES}_sum", VARIANT, "variant")),
    lines("CPU of the server's process",
        "Cores in use: the model's threads on a CPU, and everything around the model.", "none",
        query(f"rate(process_cpu_seconds_total{{{INSTANCE}}}[{INTERVAL}])", "{{instance}}")),
    lines("Memory of the server's process", "Resident. What a GPU holds is not in it.", "bytes",
        query(f"process_resident_memory_bytes{{{INSTANCE}}}", "{{instance}}")),
)

DASHBOARD = dashboard(
    "Service", "Rate, errors, latency by stage and variant, queue, batches, padding.",
    [VARIANT_VALUES, DEVICES, PERCENTILE], (*OVERVIEW, *RATE, *LATENCY, *BATCHES),
    since="now-1h", refresh="10s",
)
