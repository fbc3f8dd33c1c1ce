"""PromQL, put together from the table of the metrics. The variables are the dashboards'."""

from __future__ import annotations

from wattserve_server.telemetry.table import MetricSpec

INSTANCE = 'instance=~"$instance"'
VARIANT = f'{INSTANCE}, variant=~"$variant"'
DEVICE = f'{INSTANCE}, device=~"$device"'

INTERVAL = "$__rate_interval"
RANGE = "$__range"

# What deploy/prometheus/rules.yml records, and its alerts watch: panels that show the same ask for it.
QUEUE_SHARE = "instance:wattserve_queue_sequences:ratio"
IDLE_SHARE = "instance_device:wattserve_energy_idle:ratio_rate5m"
UNATTRIBUTED_SHARE = "instance_device:wattserve_energy_unattributed:ratio_rate5m"
RESIDUAL = "instance_device:wattserve_energy_residual_joules:difference"

# Not the server's doing: as in deploy/prometheus/rules.yml, except that a refusal is shown with the errors.
CALLERS = (
    "OK|CANCELLED|INVALID_ARGUMENT|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|UNAUTHENTICATED"
    "|FAILED_PRECONDITION|OUT_OF_RANGE|UNIMPLEMENTED"
)


def now(metric: MetricSpec | str, where: str, by: str = "", how: str = "sum") -> str:
    """The values of a gauge, taken together."""
    return f"{how}{_by(by)}({metric}{{{where}}})"


def total(metric: MetricSpec | str, where: str, by: str = "", over: str = INTERVAL) -> str:
    """The rate of a counter, summed."""
    return f"sum{_by(by)}(rate({metric}{{{where}}}[{over}]))"


def ratio(above: str, below: str) -> str:
    """Without a value where there is nothing to divide by."""
    return f"{above} / ({below} > 0)"


def per(
    above: MetricSpec | str, below: MetricSpec | str, where: str, by: str = "", over: str = INTERVAL
) -> str:
    """Of two counters: how much of the first for each of the second."""
    return ratio(total(above, where, by, over), total(below, where, by, over))


def mean(histogram: MetricSpec, where: str, by: str = "", over: str = INTERVAL) -> str:
    return per(f"{histogram}_sum", f"{histogram}_count", where, by, over)


def quantile(share: str, histogram: MetricSpec, where: str, by: str = "", over: str = INTERVAL) -> str:
    """Without a value, rather than NaN, where nothing was observed."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, {total(f'{histogram}_bucket', where, labels, over)}) >= 0"


def buckets(histogram: MetricSpec, where: str) -> str:
    """For a heat map: how many fell into each bucket."""
    return f"sum by (le) (increase({histogram}_bucket{{{where}}}[{INTERVAL}]))"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
