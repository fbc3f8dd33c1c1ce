"""The dashboard Energy: who draws the watts, what a request costs, and how far to trust it."""

from __future__ import annotations

from deploy.grafana.making.expressions import (
    DEVICE,
    INSTANCE,
    RANGE,
    VARIANT,
    buckets,
    mean,
    per,
    quantile,
    ratio,
    total,
)
from deploy.grafana.making.panels import (
    ACCOUNTS,
    RED,
    VARIANTS,
    heatmap,
    lines,
    query,
    stat,
    thresholds,
)
from deploy.grafana.making.parts import DEVICES, dashboard, row
from deploy.grafana.making.parts import VARIANTS as VARIANT_VARIABLE
from deploy.grafana.making.sensors import BOARDS, SENSORS

BOTH = f'{DEVICE}, variant=~"$variant"'
MEASURED = "wattserve_energy_measured_joules_total"
ACCOUNT = "wattserve_energy_account_joules_total"
ACTIVE = "wattserve_energy_active_joules_total"
REQUEST = "wattserve_request_energy_joules"
ERROR = "wattserve_provisional_error_ratio"
PENDING = "wattserve_energy_pending_joules"

WHENCE = "Whether it is measured, estimated or simulated, the panel Figures are says."
SETTLED = "Energy comes into its account when it is settled, mostly within a second after it was drawn."


def share(account: str, by: str = "") -> str:
    within = f'{DEVICE}, account="{account}"'
    return ratio(total(ACCOUNT, within, by), total(MEASURED, DEVICE, by))


def residual(by: str) -> str:
    """To the microjoule: below that is nothing but the rounding of floats."""
    return (
        f"round(sum by ({by}) ({MEASURED}{{{DEVICE}}}) - sum by ({by}) ({ACCOUNT}{{{DEVICE}}})"
        f" - sum by ({by}) ({PENDING}{{{DEVICE}}}), 0.000001)"
    )


OVERVIEW = (
    stat(
        "Figures are",
        "Where joules come from. `measured`: a counter of the hardware, apportioned to requests."
        " `estimated`: from"
        " CPU time and a declared power. `simulated`: an imagined device. Compare like with like only.",
        "none",
        query(f"wattserve_meter_info{{{DEVICE}}}", "{{device}}: {{quality}} ({{source}})"),
        text="name",
        width=8,
    ),
    stat(
        "Power",
        f"Of the metered devices, all accounts. {WHENCE}",
        "watt",
        query(total(MEASURED, DEVICE), "power"),
    ),
    stat(
        "Energy in the shown time",
        f"What the meters counted, idle included. {WHENCE}",
        "joule",
        query(f"sum(increase({MEASURED}{{{DEVICE}}}[{RANGE}]))", "energy"),
    ),
    stat(
        "Idle share",
        "What the devices would have drawn doing nothing, of all that was counted.",
        "percentunit",
        query(share("idle"), "idle"),
        decimals=1,
    ),
    stat(
        "Residual now",
        "Counted energy that is in no account, or in two: the largest of all devices. Anything but 0 is a bug"
        " (alert WattserveEnergyResidual).",
        "joule",
        query(f"max(abs({residual('instance, device')}))", "residual"),
        marks=thresholds((0.001, RED)),
        decimals=3,
    ),
)

POWER = (
    row("Power"),
    lines(
        "Power by account",
        f"The stack is what was settled, the line what the meter counted. {SETTLED} Until then the line runs"
        " ahead"
        " of the stack, and only for so long.",
        "watt",
        query(total(ACCOUNT, DEVICE, "account"), "{{account}}"),
        query(total(MEASURED, DEVICE), "measured"),
        colours=ACCOUNTS,
        stacked=True,
        overrides=[
            {
                "matcher": {"id": "byName", "options": "measured"},
                "properties": [
                    {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
                    {"id": "custom.fillOpacity", "value": 0},
                    {"id": "custom.lineWidth", "value": 2},
                ],
            }
        ],
    ),
    lines(
        "Active power by variant",
        f"Above idle, by the variant whose requests caused it. {SETTLED}",
        "watt",
        query(total(ACTIVE, BOTH, "variant"), "{{variant}}"),
        colours=VARIANTS,
        stacked=True,
    ),
    lines(
        "Power and idle draw by device",
        "The idle draw is what the server takes for it now: found at start-up, followed since.",
        "watt",
        query(total(MEASURED, DEVICE, "instance, device"), "{{device}} on {{instance}}"),
        query(f"wattserve_idle_watts{{{DEVICE}}}", "idle draw of {{device}} on {{instance}}"),
    ),
)

COST = (
    row("What a request costs"),
    lines(
        "Energy per request, by variant",
        f"Settled active energy: without idle draw. {SETTLED} It moves with lengths and batch sizes as well"
        " as with"
        " the variant: look at energy per token beside it.",
        "joule",
        query(mean(REQUEST, VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
    ),
    lines(
        "Energy per token, by variant",
        "Settled active energy over the real tokens it was for; padding costs and does not count.",
        "joule",
        query(per(ACTIVE, "wattserve_settled_tokens_total", BOTH, "variant"), "{{variant}}"),
        colours=VARIANTS,
    ),
    heatmap(
        "Energy per request, distribution",
        "How many requests cost how much. An exemplar names a request by its receipt_id.",
        "joule",
        query(buckets(REQUEST, VARIANT), "{{le}}", form="heatmap", exemplar=True),
    ),
)

TRUST = (
    row("How far to trust it"),
    lines(
        "Idle and unattributed shares",
        "Of all that was counted. Unattributed was drawn by something else, or is more than idle draw and"
        " batches"
        " explain; on CPU meters also the server's own work beside its batches.",
        "percentunit",
        query(share("idle", "device"), "idle, {{device}}"),
        query(share("unattributed", "device"), "unattributed, {{device}}"),
        highest=1,
    ),
    lines(
        "Residual",
        "Counted less all accounts less pending, to the microjoule. Anything but a straight line at zero is a"
        " bug.",
        "joule",
        query(residual("instance, device"), "{{device}} on {{instance}}"),
        lowest=None,
        around_zero=0.002,
        marks=thresholds((0.001, RED)),
    ),
    lines(
        "Counted, not settled yet",
        "It should come and go. If it only grows, settlement has stopped.",
        "joule",
        query(f"sum by (instance, device) ({PENDING}{{{DEVICE}}})", "{{device}} on {{instance}}"),
    ),
    lines(
        "Provisional figures off by more than 10 %",
        "Of the requests that had a provisional and a settled figure. High after a start, while the"
        " variants' cost"
        " laws are being learned, and for variants that are seldom asked for.",
        "percentunit",
        query(
            "1 - " + ratio(
                total(f"{ERROR}_bucket", f'{VARIANT}, le="0.1"', "variant"),
                total(f"{ERROR}_count", VARIANT, "variant"),
            ),
            "{{variant}}",
        ),
        width=6,
        colours=VARIANTS,
        highest=1,
    ),
    lines(
        "Error of provisional figures, median",
        "Distance of a reply's figure from the settled one, relative to the latter. Read off a histogram.",
        "percentunit",
        query(quantile("0.5", ERROR, VARIANT, "variant"), "{{variant}}"),
        width=6,
        colours=VARIANTS,
    ),
    lines(
        "Receipts that name no energy",
        "Requests per second that ran and whose energy is not known; each receipt says why.",
        "reqps",
        query(total("wattserve_unknown_receipts_total", VARIANT, "variant"), "{{variant}}"),
        colours=VARIANTS,
        width=6,
    ),
    lines(
        "Receipts that are not final yet",
        "Their energy is still to be settled. It should come and go with the load.",
        "none",
        query(f"sum by (instance) (wattserve_pending_receipts{{{INSTANCE}}})", "{{instance}}"),
        width=6,
    ),
)  # fmt: skip


DASHBOARD = dashboard(
    "Energy",
    "Watts by account, joules per request and token by variant, idle share, residual, provisional error,"
    " sensors.",
    [VARIANT_VARIABLE, DEVICES],
    (*OVERVIEW, *POWER, *COST, *TRUST, *SENSORS, *BOARDS),
    since="now-1h",
    refresh="10s",
)
