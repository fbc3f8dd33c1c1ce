"""The end of the dashboard Energy: the meters themselves, and GPU boards."""

from __future__ import annotations

from deploy.grafana.making.expressions import DEVICE, INSTANCE, INTERVAL
from deploy.grafana.making.panels import GREEN, RED, lines, query, table, thresholds, timeline
from deploy.grafana.making.parts import Json, row

READ_AT = "wattserve_meter_last_reading_timestamp_seconds"
CHANGED_AT = "wattserve_meter_last_change_timestamp_seconds"


def of_meters(expression: str) -> str:
    """With the labels of wattserve_meter_info, so that the columns of the table meet in one line."""
    names = "instance, device, source, method, quality"
    matched = "* on (instance, device) group_left (source, method, quality)"
    return f"max by ({names}) ({expression} {matched} wattserve_meter_info{{{DEVICE}}})"


def meter(metric: str, where: str = DEVICE) -> str:
    return of_meters(f"wattserve_{metric}{{{where}}}")


SENSORS = (
    row("Sensors"),
    timeline(
        "Meters that answer",
        "Whether the last read before each scrape succeeded. While a meter is lost requests are answered,"
        " and their"
        " receipts say that their energy is unknown (alert WattserveMeterLost).",
        query(f"max by (instance, device) (wattserve_meter_up{{{DEVICE}}})", "{{device}} on {{instance}}"),
        {"0": ("lost", RED), "1": ("up", GREEN)},
        width=6,
    ),
    lines(
        "Age of the last reading and of the last change",
        "A counter that is read and does not change has frozen. Up to a scrape's interval, and the difference"
        " between the two clocks, are Prometheus' own.",
        "s",
        query(
            f"max by (instance, device) (time() - {READ_AT}{{{DEVICE}}})", "read: {{device}} on {{instance}}"
        ),
        query(
            f"max by (instance, device) (time() - {CHANGED_AT}{{{DEVICE}}})",
            "changed: {{device}} on {{instance}}",
        ),
        lowest=None,
        marks=thresholds((30, RED)),
        width=6,
    ),
    lines(
        "Failed reads per second",
        "Of the meter. A few are got over; two seconds of nothing else make a gap.",
        "none",
        query(
            f"sum by (instance, device) (rate(wattserve_meter_failed_reads_total{{{DEVICE}}}[{INTERVAL}]))",
            "{{device}} on {{instance}}",
        ),
        width=6,
    ),
    lines(
        "Gaps since the start",
        "Intervals without a usable reading. What was drawn in them is in the account gap and on no receipt.",
        "none",
        query(
            f"sum by (instance, device) (wattserve_meter_gaps_total{{{DEVICE}}})",
            "{{device}} on {{instance}}",
        ),
        width=6,
    ),
    table(
        "Meters",
        "As the probe found them at start-up, and as they are polled. An empty cell: it could not be found"
        " out.",
        (
            ("polled every", "s", meter("meter_poll_period_seconds")),
            ("updated every", "s", meter("meter_update_period_seconds")),
            ("jitter", "s", meter("meter_edge_jitter_seconds")),
            ("resolution", "joule", meter("meter_resolution_joules")),
            ("a read takes", "s", meter("meter_read_cost_seconds", f'{DEVICE}, statistic="p50"')),
            ("lag", "s", meter("meter_lag_seconds")),
            ("idle draw", "watt", meter("idle_watts")),
            ("other processes", "none", meter("meter_neighbours")),
            ("gaps lasted", "s", meter("meter_gap_seconds_total")),
        ),
        ("instance", "device", "source", "method", "quality"),
        height=5,
    ),
)


def board(title: str, unit: str, metric: str, description: str, highest: float | None = None) -> Json:
    shown = query(f"max by (instance, gpu_uuid) (nv_gpu_{metric}{{{INSTANCE}}})", "{{gpu_uuid}}")
    return lines(title, f"{description} Empty without a GPU metered by NVML.", unit, shown, highest=highest)


BOARDS = (
    row("GPU boards", collapsed=True),
    board("Board power", "watt", "power_usage", "By the board itself, mostly the mean of the last second."),
    board(
        "Utilization",
        "percentunit",
        "utilization",
        "Share of time with any kernel running, not of its power.",
        1,
    ),
    board("Memory in use", "bytes", "memory_used_bytes", "Of the board, by all its processes."),
)
