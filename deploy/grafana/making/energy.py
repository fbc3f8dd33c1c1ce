"""The dashboard Energy: who draws the watts, what a request costs, how far to trust it, and the meters."""

from __future__ import annotations

from deploy.grafana.making.panels import (
    ACCOUNTS,
    DEVICES,
    GREEN,
    RED,
    VARIANT_VALUES,
    Json,
    dashboard,
    heatmap,
    lines,
    query,
    row,
    stat,
    table,
    thresholds,
    timeline,
    variant_lines,
)
from deploy.grafana.making.promql import (
    DEVICE,
    IDLE_SHARE,
    INSTANCE,
    RANGE,
    RESIDUAL,
    UNATTRIBUTED_SHARE,
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

BOTH = f'{DEVICE}, variant=~"$variant"'
ON_INSTANCE, PLACE = "{{device}} on {{instance}}", "instance, device"

WHENCE = "Whether it is measured, estimated or simulated, the panel Figures are says."
SHARED = "A share, apportioned from what the meters counted; see the panel Figures are."
SETTLED = "Energy comes into its account when it is settled, mostly within a second after it was drawn."


IDLE_OF_ALL = ratio(total(metrics.ACCOUNTS, f'{DEVICE}, account="idle"'), total(metrics.MEASURED, DEVICE))
# To the microjoule: below that is nothing but the rounding of floats.
EXACT_RESIDUAL = f"round({now(RESIDUAL, DEVICE, 'instance, device')}, 0.000001)"


OVERVIEW = (
    stat("Figures are",
        "What the sums are that the meters count. `measured`: by a counter of the hardware. `estimated`: from"
        " CPU time and a declared power. `simulated`: of an imagined device. What a request or a variant used"
        " is apportioned from them, never measured. Compare like with like only.", "none",
        query(f"{metrics.METER}{{{DEVICE}}}", "{{device}}: {{quality}} ({{source}})"), text="name", width=8),
    stat("Power", f"Of the metered devices, all accounts. {WHENCE}", "watt",
        query(total(metrics.MEASURED, DEVICE), "power")),
    stat("Energy in the shown time", f"What the meters counted, idle included. {WHENCE}", "joule",
        query(f"sum(increase({metrics.MEASURED}{{{DEVICE}}}[{RANGE}]))", "energy")),
    stat("Idle share", "What the devices would have drawn doing nothing, of all that was counted.",
        "percentunit", query(IDLE_OF_ALL, "idle"), decimals=1),
    stat("Residuals now",
        "Counted energy that is in no account, or in two, and active energy that is on no receipt, or on two:"
        " the largest of all devices. Anything but 0 is a bug (alerts WattserveEnergyResidual and"
        " WattserveEnergyReceiptsResidual).", "joule",
        query(
            f"max(abs({EXACT_RESIDUAL})) + max(abs({metrics.RECEIPTS_RESIDUAL}{{{DEVICE}}}))", "residuals"
        ),
        marks=thresholds((0.001, RED)), decimals=3),
)

POWER = (
    row("Power"),
    lines("Power by account",
        f"The stack is what was settled, the line what the meter counted. {SETTLED} Until then the line runs"
        " ahead of the stack, and only for so long.", "watt",
        query(total(metrics.ACCOUNTS, DEVICE, "account"), "{{account}}"),
        query(total(metrics.MEASURED, DEVICE), "measured"),
        colours=ACCOUNTS, stacked=True,
        overrides=[{
            "matcher": {"id": "byName", "options": "measured"},
            "properties": [
                {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
                {"id": "custom.fillOpacity", "value": 0},
                {"id": "custom.lineWidth", "value": 2},
            ],
        }]),
    variant_lines("Active power by variant",
        f"Above idle, by the variant whose requests caused it. {SHARED} {SETTLED}",
        "watt", total(metrics.ACTIVE_ENERGY, BOTH, "variant"), stacked=True),
    lines("Power and idle draw by device",
        "The idle draw is what the server takes for it now: found at start-up, followed since.", "watt",
        query(total(metrics.MEASURED, DEVICE, "instance, device"), ON_INSTANCE),
        query(f"{metrics.IDLE_WATTS}{{{DEVICE}}}", f"idle draw of {ON_INSTANCE}")),
)

COST = (
    row("What a request costs"),
    variant_lines("Energy per request, by variant",
        f"Settled active energy: without idle draw. {SHARED} {SETTLED} It moves with lengths and batch sizes"
        " as well as with the variant: look at energy per token beside"
        " it.", "joule", mean(metrics.REQUEST_ENERGY, VARIANT, "variant"), width=6),
    variant_lines("Energy per token, by variant",
        "Settled active energy over the real tokens it was for; padding costs and does not count.", "joule",
        per(metrics.ACTIVE_ENERGY, metrics.SETTLED_TOKENS, BOTH, "variant"), width=6),
    lines("Energy per sequence, with idle",
        "Active, and with what the device drew anyway while batches ran, which receipts show as their idle"
        " share. A small model on a large board uses mostly that.", "joule",
        query(per(metrics.ACTIVE_ENERGY, metrics.SETTLED_SEQUENCES, DEVICE, PLACE), f"active, {ON_INSTANCE}"),
        query(
            ratio(
                f"({total(metrics.ACTIVE_ENERGY, DEVICE, PLACE)}"
                f" + {total(metrics.IDLE_SHOWN, DEVICE, PLACE)})",
                total(metrics.SETTLED_SEQUENCES, DEVICE, PLACE),
            ),
            f"with idle, {ON_INSTANCE}",
        ), width=6),
    heatmap("Energy per request, distribution",
        "How many requests cost how much. An exemplar names a request by its receipt_id.",
        metrics.REQUEST_ENERGY, "joule", exemplar=True, width=6),
)

TRUST = (
    row("How far to trust it"),
    lines("Idle and unattributed shares",
        "Of all that was counted in five minutes. Unattributed was drawn by something else, or is more than"
        " idle draw and batches explain; on CPU meters also the server's own work beside its batches (alert"
        " WattserveEnergyUnattributed).", "percentunit",
        query(now(IDLE_SHARE, DEVICE, "instance, device"), f"idle, {ON_INSTANCE}"),
        query(now(UNATTRIBUTED_SHARE, DEVICE, "instance, device"), f"unattributed, {ON_INSTANCE}"),
        highest=1),
    lines("Residuals",
        "Counted less all accounts less pending; the account active less what receipts were charged. To the"
        " microjoule: anything but straight lines at zero is a bug.",
        "joule", query(EXACT_RESIDUAL, f"accounts, {ON_INSTANCE}"),
        query(now(metrics.RECEIPTS_RESIDUAL, DEVICE, "instance, device"), f"receipts, {ON_INSTANCE}"),
        lowest=None, around_zero=0.002, marks=thresholds((0.001, RED))),
    lines("Counted, not settled yet", "It should come and go. If it only grows, settlement has stopped.",
        "joule", query(now(metrics.PENDING, DEVICE, "instance, device"), ON_INSTANCE)),
    variant_lines("Provisional figures off by more than 10 %",
        "Of the requests that had a provisional and a settled figure. High after a start, while the"
        " variants' cost laws are being learned, and for variants that are seldom asked for.", "percentunit",
        "1 - " + ratio(
            total(f"{metrics.PROVISIONAL_ERROR}_bucket", f'{VARIANT}, le="0.1"', "variant"),
            total(f"{metrics.PROVISIONAL_ERROR}_count", VARIANT, "variant"),
        ), width=6, highest=1),
    variant_lines("Error of provisional figures, median",
        "Distance of a reply's figure from the settled one, relative to the latter. Read off a histogram.",
        "percentunit", quantile("0.5", metrics.PROVISIONAL_ERROR, VARIANT, "variant"), width=6),
    variant_lines("Receipts that name no energy",
        "Requests per second that ran and whose energy is not known; each receipt says why.", "reqps",
        total(metrics.UNKNOWN_RECEIPTS, VARIANT, "variant"), width=6),
    lines("Receipts that are not final yet",
        "Their energy is still to be settled. It should come and go with the load.", "none",
        query(now(metrics.PENDING_RECEIPTS, INSTANCE, "instance"), "{{instance}}"), width=6),
)


def of_meter(metric: metrics.MetricSpec, where: str = DEVICE) -> str:
    """With the labels of wattserve_meter_info, so that the columns of the table meet in one line."""
    names = "instance, device, source, method, quality"
    matched = "* on (instance, device) group_left (source, method, quality)"
    return f"max by ({names}) ({metric}{{{where}}} {matched} {metrics.METER}{{{DEVICE}}})"


def age(metric: metrics.MetricSpec) -> str:
    return f"max by (instance, device) (time() - {metric}{{{DEVICE}}})"


SENSORS = (
    row("Sensors"),
    timeline("Meters that answer",
        "Whether the last read before each scrape succeeded. While a meter is lost requests are answered,"
        " and their receipts say that their energy is unknown (alert WattserveMeterLost).",
        query(now(metrics.METER_UP, DEVICE, "instance, device", "max"), ON_INSTANCE),
        {"0": ("lost", RED), "1": ("up", GREEN)}, width=6),
    lines("Age of the last reading and of the last change",
        "A counter that is read and does not change has frozen. Up to a scrape's interval, and the difference"
        " between the two clocks, are Prometheus' own.", "s",
        query(age(metrics.LAST_READING), f"read: {ON_INSTANCE}"), query(age(metrics.LAST_CHANGE), "changed:"
            f" {ON_INSTANCE}"),
        lowest=None, marks=thresholds((30, RED)), width=6),
    lines("Failed reads per second",
        "Of the meter. A few are got over; two seconds of nothing else make a gap.", "none",
        query(total(metrics.METER_FAILED_READS, DEVICE, "instance, device"), ON_INSTANCE), width=6),
    lines("Gaps and restarts since the start",
        "Gaps are intervals without a usable reading: what was drawn in them is on no receipt. At a restart"
        " the accounts began again because of a bug (alert WattserveFilterRestarted).",
        "none", query(now(metrics.METER_GAPS, DEVICE, "instance, device"), f"gaps, {ON_INSTANCE}"),
        query(now(metrics.RESTARTS, DEVICE, "instance, device"), f"restarts, {ON_INSTANCE}"), width=6),
    lines("Does the filter know what it does not know?",
        "How far the counter was off what was expected. 1: intervals are as wide as they should be; well"
        " above 2, receipts know less than they say.",
        "none", query(now(metrics.CONSISTENCY, DEVICE, "instance, device"), ON_INSTANCE), width=6),
    table("Meters",
        "As the probe found them at start-up, and as they are polled. An empty cell: it could not be found"
        " out.",
        (
            ("polled every", "s", of_meter(metrics.POLL_PERIOD)),
            ("updated every", "s", of_meter(metrics.UPDATE_PERIOD)),
            ("jitter", "s", of_meter(metrics.EDGE_JITTER)),
            ("resolution", "joule", of_meter(metrics.RESOLUTION)),
            ("a read takes", "s", of_meter(metrics.READ_COST, f'{DEVICE}, statistic="p50"')),
            ("lag", "s", of_meter(metrics.METER_LAG)),
            ("idle draw", "watt", of_meter(metrics.IDLE_WATTS)),
            ("other processes", "none", of_meter(metrics.NEIGHBOURS)),
            ("gaps lasted", "s", of_meter(metrics.METER_GAP_SECONDS)),
        ),
        ("instance", "device", "source", "method", "quality"), height=5),
)


def board(
    title: str, unit: str, metric: metrics.MetricSpec, description: str, highest: float | None = None
) -> Json:
    shown = query(now(metric, INSTANCE, "instance, gpu_uuid", "max"), "{{gpu_uuid}}")
    return lines(title, f"{description} Empty without a GPU metered by NVML.", unit, shown, highest=highest)


BOARDS = (
    row("GPU boards", collapsed=True),
    board("Board power", "watt", metrics.GPU_POWER,
        "By the board itself, mostly the mean of the last second."),
    board("Utilization", "percentunit", metrics.GPU_UTILIZATION,
        "Share of time with any kernel running, not of its power.", 1),
    board("Memory in use", "bytes", metrics.GPU_MEMORY_USED, "Of the board, by all its processes."),
)

DASHBOARD = dashboard(
    "Energy",
    "Watts by account, joules per request and token by variant, idle share, residuals, provisional error,"
    " sensors.",
    [VARIANT_VALUES, DEVICES], (*OVERVIEW, *POWER, *COST, *TRUST, *SENSORS, *BOARDS),
    since="now-1h", refresh="10s",
)
