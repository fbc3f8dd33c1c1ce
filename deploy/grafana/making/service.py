"""The dashboard Service: is it answering, how fast, and what do requests wait for."""

from __future__ import annotations

from deploy.grafana.making.expressions import (
    CALLERS,
    DEVICE,
    INSTANCE,
    INTERVAL,
    VARIANT,
    buckets,
    mean,
    per,
    quantile,
    ratio,
    total,
)
from deploy.grafana.making.panels import (
    RED,
    STAGES,
    VARIANTS,
    YELLOW,
    heatmap,
    lines,
    query,
    repeated,
    stat,
    thresholds,
)
from deploy.grafana.making.parts import DEVICES, choice, dashboard, row
from deploy.grafana.making.parts import VARIANTS as VARIANT_VARIABLE

REQUESTS = "wattserve_requests_total"
DURATION = "wattserve_request_duration_seconds"
STAGE = "wattserve_stage_duration_seconds"
BATCH = "wattserve_batch_sequences"
QUEUE = f"wattserve_queue_sequences{{{INSTANCE}}}"
QUEUE_SHARE = f"{QUEUE} / wattserve_queue_limit_sequences{{{INSTANCE}}}"
STARTED, HANDLED = "grpc_server_started_total", "grpc_server_handled_total"
BUCKETS_NOTE = "Read off a histogram, so exact to the width of its buckets (docs/metrics.md)."

FAILED = (
    f'(sum(rate({REQUESTS}{{{VARIANT}, code!~"{CALLERS}"}}[{INTERVAL}])) or vector(0))'
    f" / (sum(rate({REQUESTS}{{{VARIANT}}}[{INTERVAL}])) > 0)"
)

PERCENTILE = choice(
    "percentile",
    "Percentile",
    ("0.5", "0.9", "0.95", "0.99"),
    "0.95",
    "Of the latencies. 0.99 needs some 700 requests in the interval to mean anything.",
)

OVERVIEW = (
    stat(
        "Requests per second",
        "Requests that ended, well or not; of a stream each one.",
        "reqps",
        query(total(REQUESTS, VARIANT), "requests"),
    ),
    stat(
        "Failed, of all requests",
        "By the server's doing: refused for want of room, expired in the queue, internal errors. Not what"
        " callers"
        " got wrong, and not what they cancelled. The alerts WattserveErrors and WattserveRefusing watch"
        " this.",
        "percentunit",
        query(FAILED, "failed"),
        marks=thresholds((0.001, YELLOW), (0.01, RED)),
        decimals=2,
    ),
    stat(
        "Latency, percentile $percentile",
        f"From receiving a request to having its answer, over the chosen variants together. {BUCKETS_NOTE}",
        "s",
        query(quantile("$percentile", DURATION, VARIANT), "latency"),
    ),
    stat(
        "Queue, of its limit",
        "The fullest queue of the chosen servers. At 100 % requests are refused.",
        "percentunit",
        query(f"max({QUEUE_SHARE})", "queue"),
        marks=thresholds((0.5, YELLOW), (0.8, RED)),
        decimals=1,
    ),
    stat(
        "Busiest device",
        "Share of the time in which it ran batches. Near 100 % more load only makes requests wait.",
        "percentunit",
        query(f"max(rate(wattserve_device_busy_seconds_total{{{DEVICE}}}[{INTERVAL}]))", "busy"),
        marks=thresholds((0.8, YELLOW), (0.95, RED)),
        decimals=1,
    ),
    stat(
        "Calls in progress",
        "gRPC calls that have started and not ended; an open stream is one.",
        "none",
        query(f"sum({STARTED}{{{INSTANCE}}}) - sum({HANDLED}{{{INSTANCE}}})", "calls"),
        decimals=0,
    ),
)

RATE = (
    row("Rate and errors"),
    lines(
        "Requests by variant",
        "Requests that ended, whatever their code. `none`: they named no variant that exists.",
        "reqps",
        query(total(REQUESTS, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
        stacked=True,
    ),
    lines(
        "Errors by code",
        "Requests that ended otherwise than well, the callers' own mistakes included. Empty while there are"
        " none:"
        " a code has no series before its first error.",
        "reqps",
        query(
            f'sum by (code) (rate({REQUESTS}{{{VARIANT}, code!="OK"}}[{INTERVAL}]))',
            "{{code}}",
        ),
        stacked=True,
    ),
    lines(
        "gRPC calls by method",
        "All methods, those of the Open Inference Protocol too; a whole stream is one call, counted at its"
        " end.",
        "reqps",
        query(total(HANDLED, INSTANCE, "grpc_method"), "{{grpc_method}}"),
    ),
)

LATENCY = (
    row("Latency"),
    lines(
        "Latency by variant, percentile $percentile",
        f"Answered requests only, inside the server: the network is not in it. {BUCKETS_NOTE}",
        "s",
        query(quantile("$percentile", DURATION, VARIANT, "variant"), "{{variant}}", exemplar=True),
        colours=VARIANTS,
    ),
    heatmap(
        "Latency, distribution",
        "How many answered requests took how long. Two bands mean two kinds of requests, which a percentile"
        " hides."
        " An exemplar names a request by its receipt_id.",
        "s",
        query(buckets(DURATION, VARIANT), "{{le}}", form="heatmap", exemplar=True),
    ),
    lines(
        "Stages, percentile $percentile",
        f"Over the chosen variants together. Percentiles do not add up; the means below do. {BUCKETS_NOTE}",
        "s",
        query(quantile("$percentile", STAGE, VARIANT, "stage"), "{{stage}}"),
        colours=STAGES,
    ),
    row("Where the time goes, by variant"),
    repeated(
        lines(
            "Mean time by stage: $variant",
            "The stages of a request sum to its latency, but for reading it and a wait for settled energy.",
            "s",
            query(mean(STAGE, VARIANT, "stage"), "{{stage}}"),
            colours=STAGES,
            stacked=True,
            width=24,
        ),
        "variant",
        3,
    ),
)

BATCHES = (
    row("Queue and batches"),
    lines(
        "Sequences that wait",
        "In the queues of all devices, when Prometheus looked; what comes and goes between two looks is not"
        " seen."
        " The time in the queue, to the right, misses nothing.",
        "none",
        query(f"sum by (instance) ({QUEUE})", "{{instance}}"),
    ),
    lines(
        "Time in the queue, percentile $percentile",
        f"From being admitted to the start of the batch. {BUCKETS_NOTE}",
        "s",
        query(
            quantile("$percentile", STAGE, f'{VARIANT}, stage="queue"', "variant"),
            "{{variant}}",
        ),
        colours=VARIANTS,
    ),
    lines(
        "Busy share of devices",
        "Share of the time in which the device ran batches, warm-up included.",
        "percentunit",
        query(
            f"sum by (instance, device) (rate(wattserve_device_busy_seconds_total{{{DEVICE}}}[{INTERVAL}]))",
            "{{device}} on {{instance}}",
        ),
        highest=1,
    ),
    lines(
        "Sequences in a batch, mean",
        "Larger batches cost less energy per request and make it wait longer.",
        "none",
        query(mean(BATCH, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
    ),
    heatmap(
        "Sequences in a batch, distribution",
        "How many batches had how many sequences.",
        "none",
        query(buckets(BATCH, VARIANT), "{{le}}", form="heatmap"),
    ),
    lines(
        "Padding, of all computed tokens",
        "Tokens that were computed only because a batch is a rectangle. They cost energy like any other.",
        "percentunit",
        query(
            "1 - " + per("wattserve_tokens_total", "wattserve_padded_tokens_total", VARIANT, "variant"),
            "{{variant}}",
        ),
        colours=VARIANTS,
        highest=1,
    ),
    lines(
        "Answers of NaN or infinity, of all sequences",
        "Their callers were told so as an error. Above zero: the precision overflows on this model or these"
        " inputs.",
        "percentunit",
        query(
            ratio(
                total("wattserve_not_finite_answers_total", VARIANT, "variant"),
                total(f"{BATCH}_sum", VARIANT, "variant"),
            ),
            "{{variant}}",
        ),
        colours=VARIANTS,
    ),
    lines(
        "CPU of the server's process",
        "Cores in use: the model's threads on a CPU, and everything around the model.",
        "none",
        query(f"rate(process_cpu_seconds_total{{{INSTANCE}}}[{INTERVAL}])", "{{instance}}"),
    ),
    lines(
        "Memory of the server's process",
        "Resident. What a GPU holds is not in it.",
        "bytes",
        query(f"process_resident_memory_bytes{{{INSTANCE}}}", "{{instance}}"),
    ),
)

DASHBOARD = dashboard(
    "Service",
    "Rate, errors, latency by stage and variant, queue, batches, padding.",
    [VARIANT_VARIABLE, DEVICES, PERCENTILE],
    (*OVERVIEW, *RATE, *LATENCY, *BATCHES),
    since="now-1h",
    refresh="10s",
)
